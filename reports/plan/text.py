"""Terminal text of a plan: the answer first, then the tables behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.plan.answer import counts_rows, headline, reasons, relaxed_sentences
from reports.plan.facts import (
    Content,
    attained_rows,
    candidate_rows,
    fleet_rows,
    level_text,
    ranked_rows,
    runs_text,
)
from reports.terminal import MAX_WIDTH, Screen

if TYPE_CHECKING:
    from rich.console import Console

_MOST = 25
"""Most candidates that the terminal shows."""


def print_plan(content: Content, console: Console | None = None) -> None:
    """Print the content of plan.json to a terminal, a file or a pipe."""
    from rich.console import Console

    chosen = console or Console(highlight=False)
    if console is None and not chosen.is_terminal:
        chosen.width = MAX_WIDTH  # a file or a pipe has no width of its own
    screen = Screen(chosen)
    found = bool(content["ranked"])
    screen.say(headline(content), "bold green" if found else "bold red")
    for line in (*reasons(content), *relaxed_sentences(content)):
        if line:
            screen.say(line)
    screen.heading("GPUs")
    screen.fact_list(counts_rows(content))
    if found:
        _print_found(screen, content)
    screen.heading("Why each candidate was kept or dropped")
    rows = candidate_rows(content)
    screen.table(("candidate", "", "why"), rows[:_MOST], left=("", "why"), wraps=("why",))
    if len(rows) > _MOST:
        screen.say(f"and {len(rows) - _MOST:,} more, in the page and in --format json", "dim")
    _print_commands(screen, content)
    _print_conditions(screen, content)


def _print_found(screen: Screen, content: Content) -> None:
    load = level_text(content, content["question"]["level"])
    screen.heading(f"Fleets that meet the targets at {load}, each with the fewest engines")
    screen.table(
        ("candidate", "engines", "GPUs", "$/h", "headroom", "binds", "by"),
        ranked_rows(content),
        left=("binds", "by"),
        wraps=("candidate",),
    )
    screen.heading("The cheapest, target by target")
    screen.table(("target", "percentile", "within", "worst run", "asked"), attained_rows(content))
    rows = fleet_rows(content)
    if len(rows) > 1:
        screen.heading("What more money buys: the latency nearest to its target")
        screen.table(("fleet", "GPUs", "$/h", "of target", "which"), rows, left=("which",))


def _print_commands(screen: Screen, content: Content) -> None:
    if content["winner"] is None:
        return
    screen.heading("To start its engines")
    for row in content["winner"]["commands"]:
        role = "" if row["role"] == "mixed" else f"{row['role']}, "
        screen.say(f"{row['engine']} {row['version']} ({role}{row['replicas']:,} of them)", "dim")
        screen.say(row["command"])


def _print_conditions(screen: Screen, content: Content) -> None:
    conditions, run = content["conditions"], content["run"]
    screen.say("")
    screen.say(
        f"{conditions['model']} · {conditions['workload']} · {runs_text(content)} a fleet · "
        f"{run['candidates']:,} candidates, "
        f"{run['fleets']:,} fleets and {run['requests']:,} requests simulated · evidence: "
        f"{content['evidence']['label'] or 'none'}",
        "dim",
    )
    screen.say(content["method"], "dim")
