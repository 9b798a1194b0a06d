"""Terminal text of a trace: the answer first, then the tables behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.terminal import Screen
from reports.trace.answer import answer
from reports.trace.facts import (
    LENGTHS,
    LRU_NOTE,
    QUANTILES,
    Facts,
    arrival_facts,
    correlation_note,
    length_rows,
    lru_headers,
    lru_rows,
    lru_shares,
    reuse_facts,
    reuse_rows,
    session_facts,
)

if TYPE_CHECKING:
    from rich.console import Console


def print_trace(facts: Facts, console: Console | None = None) -> None:
    """Print the facts of `fleetcast trace inspect` to a terminal, a file or a pipe."""
    screen = Screen(console)
    said = answer(facts)
    screen.say(said.sentence, "bold")
    for reason in said.reasons:
        screen.say(reason)
    for heading, rows in (("Arrivals", arrival_facts(facts)), ("Sessions", session_facts(facts))):
        if rows:
            screen.heading(heading)
            screen.fact_list(rows)
    screen.heading("Lengths")
    screen.table(("", *LENGTHS), length_rows(facts))
    screen.say(correlation_note(facts), "dim")
    _print_reuse(screen, facts)
    screen.warnings(facts["warnings"])
    screen.say("")
    screen.say(" · ".join((facts["source"], *facts["notes"])), "dim")


def _print_reuse(screen: Screen, facts: Facts) -> None:
    if facts["reuse"] is None:
        return
    screen.heading("Prefix reuse")
    screen.fact_list(reuse_facts(facts))
    rows = reuse_rows(facts)
    if rows:
        screen.say("")
        screen.table(("", *QUANTILES), rows)
        screen.say("over the uses of blocks seen before", "dim")
    rows = lru_rows(facts)
    if rows:
        screen.heading("One LRU cache for all requests")
        screen.table(lru_headers(facts), rows, lru_shares(facts))
        screen.say(LRU_NOTE, "dim")
