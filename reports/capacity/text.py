"""Terminal text of a capacity search: the answer first, then the tables behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.capacity.answer import certainty, distance, heading, headline, wanted_lines
from reports.capacity.facts import (
    Content,
    account_rows,
    account_total,
    amount,
    curve_metrics,
    curve_rows,
    is_light,
    level_text,
    miss_rows,
    state_rows,
    tail_text,
)
from reports.numbers import LATENCY_LABELS, sentence
from reports.terminal import MAX_WIDTH, Screen

if TYPE_CHECKING:
    from rich.console import Console


def print_capacity(content: Content, console: Console | None = None) -> None:
    """Print the content of capacity.json to a terminal, a file or a pipe."""
    from rich.console import Console

    chosen = console or Console(highlight=False)
    if console is None and not chosen.is_terminal:
        chosen.width = MAX_WIDTH  # a file or a pipe has no width of its own
    screen = Screen(chosen)
    screen.say(headline(content), "bold green" if content["answer"]["capacity"] else "bold red")
    for line in (certainty(content), distance(content), *wanted_lines(content)):
        if line:
            screen.say(line)
    binding = content["binding"]
    screen.say(binding["sentence"])
    if binding["advice"]:
        screen.say(binding["advice"])
    _print_curve(screen, content)
    _print_accounts(screen, content)
    rows = state_rows(content)
    if rows:
        screen.heading(f"The engines at {amount(content, binding['level'])}")
        screen.fact_list(rows)
    screen.warnings([sentence(warning["text"]) for warning in content["warnings"]])
    _print_conditions(screen, content)


def _print_curve(screen: Screen, content: Content) -> None:
    """Print the curve. If it is wider than the screen, the least important columns are left out."""
    rows = curve_rows(content)
    columns = {
        content["question"]["unit"]: [row.level for row in rows],
        "load": [row.load for row in rows],
        "attainment": [row.attainment for row in rows],
        "95%": [row.interval for row in rows],
    }
    for index, name in enumerate(curve_metrics(content)):
        columns[f"{LATENCY_LABELS[name]} p99"] = [row.latencies[index] for row in rows]
    columns |= {"runs": [row.runs for row in rows], "queue": [row.grows for row in rows]}
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    for name in ("runs", "load", "95%"):
        if _width(shown) > screen.width:
            shown.pop(name, None)
    title = "; load is that of saturation" if "load" in shown else ""
    screen.heading(f"Attainment against load{title}")
    screen.table(list(shown), list(zip(*shown.values(), strict=True)))


def _width(columns: dict[str, list[str]]) -> int:
    widest = [max(map(len, (name, *cells))) for name, cells in columns.items()]
    return sum(widest) + 3 * len(widest)


def _print_accounts(screen: Screen, content: Content) -> None:
    rows, binding = [*account_rows(content), account_total(content)], content["binding"]
    if not binding["accounts"]:
        return
    at, light = (level_text(content, binding[key]) for key in ("level", "light_level"))
    unit = content["question"]["unit"]
    loads = [at] if is_light(content) else [light, at]
    screen.heading(f"{tail_text(content)}: where it goes, at {' and at '.join(loads)} {unit}")
    cells = [(name, *seconds[-len(loads) - 1 :]) for name, *seconds in rows]
    screen.table(("account", *loads, "share"), cells)
    missed = ", ".join(f"{name} {share}" for name, share in miss_rows(content))
    if missed:
        screen.say(f"of the requests that miss the SLO, so many miss: {missed}", "dim")


def _print_conditions(screen: Screen, content: Content) -> None:
    conditions, run = content["conditions"], content["run"]
    screen.say("")
    text = (
        f"{heading(content)} (replicas {conditions['replicas']}, TP "
        f"{conditions['tensor_parallel_size']}) · {conditions['engine']} {conditions['scheduler']} "
        f"{conditions['router']} · {conditions['workload']} · {conditions['runs']}, "
        f"{run['simulations']} runs of seeds {conditions['seed']} · evidence: {content['label']}"
    )
    screen.say(text, "dim")
    screen.say(content["method"], "dim")
