"""A sweep on a terminal: the answer first, then the best points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.screen import MAX_WIDTH, Screen
from reports.sweep.answer import alerts, best_note, headline, reason
from reports.sweep.facts import failures, kept_points, points_table
from reports.sweep.folder import Content
from reports.sweep.tables import ranked

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

_ROWS = 8
_LONGEST = 240


def print_sweep(content: Content, table: pd.DataFrame, console: Console | None = None) -> None:
    """Print what sweep.json and the table say to a terminal, a file or a pipe."""
    from rich.console import Console

    chosen = console or Console(highlight=False)
    if console is None and not chosen.is_terminal:
        chosen.width = MAX_WIDTH  # a file or a pipe has no width of its own
    screen = Screen(chosen)
    points = points_table(content, table)
    screen.say(headline(content, points), "bold green" if kept_points(content) else "bold red")
    for line in (reason(content, points), best_note(content, points)):
        if line:
            screen.say(line)
    if content["choice"] is not None:
        best = ranked(content, points, _ROWS)
        headings, rows = best.headings, best.rows
        while len(headings) > 3 and _width(headings, rows) > screen.width:
            headings, rows = headings[:-1], [row[:-1] for row in rows]
        if rows:
            screen.say("")
            screen.table(headings, rows)
    failed = [f"{f.points:,}: {_shortened(f.message)}" for f in failures(content, table)[:5]]
    screen.warnings([*alerts(content, table), *failed])


def _shortened(message: str) -> str:
    return message if len(message) < _LONGEST else f"{message[:_LONGEST]} ..."


def _width(headings: list[str], rows: list[list[str]]) -> int:
    columns = zip(headings, *rows, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns)
