"""Terminal summary of a run: the answer first, then the tables behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.facts import (
    GaugeRow,
    Summary,
    account_rows,
    latency_rows,
    other_rows,
    throughput_rows,
    utilization_rows,
    warning_texts,
)
from reports.numbers import duration, listed, percent, spread_note
from reports.run.rows import TIER_COLUMNS as TIER_COLUMNS
from reports.run.rows import operator_rows, tier_rows
from reports.run.speculation import speculation_text
from reports.run.verdict import CLASS_COLUMNS as CLASS_COLUMNS
from reports.run.verdict import SENTENCES, class_rows, conditions_text, verdict
from reports.screen import Screen
from sim.books.metrics import STATISTICS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_LEAST_TARGETS = 10
"""Least width in characters for the column of class targets; if less is left, they go below the
table."""

_TONES = {"good": "bold green", "bad": "bold red", "plain": "bold"}


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """Print a summary (as ``read_summary`` returns it) to a terminal, a file or a pipe.

    An output without color or Unicode gets plain text or ASCII.
    """
    screen = Screen(console)
    answer = verdict(summary)
    screen.say(answer.sentence, _TONES[answer.tone])
    for line in (answer.reason, *(told(summary) for told in SENTENCES)):
        if line:
            screen.say(line)
    _print_latency(screen, summary)
    _print_classes(screen, summary)
    _print_gauges(screen, summary)
    _print_tiers(screen, summary)
    if text := speculation_text(summary):
        screen.say(text, "dim")
    _print_accounts(screen, summary)
    _print_operators(screen, summary)
    screen.warnings(warning_texts(summary))
    screen.say("")
    screen.say(conditions_text(summary), "dim")


def _print_latency(screen: Screen, summary: Summary) -> None:
    rows = latency_rows(summary)
    if not rows:
        return
    cells: list[list[str | Text]] = []
    metrics_over: dict[str, list[str]] = {}
    for row in rows:
        cells.append([row.label, *row.cells, row.unit, row.evidence])
        cells += [["", *(screen.text(spread, "dim") for spread in line)] for line in row.spreads]
        metrics_over.setdefault(row.population, []).append(row.label)
    screen.heading("Latency")
    words = ("", "evidence")
    screen.table(("", *STATISTICS, *words), cells, left=words, wraps=words)
    over = [
        f"{listed(labels)} over {population}" if len(metrics_over) > 1 else f"over {population}"
        for population, labels in metrics_over.items()
        if population
    ]
    if note := spread_note(summary):
        over.append(note)
    screen.say("; ".join(over), "dim")


def _print_classes(screen: Screen, summary: Summary) -> None:
    rows = class_rows(summary)
    if not rows:
        return
    screen.heading("Classes of requests")
    headings = [column.heading for column in CLASS_COLUMNS]
    words = [column.heading for column in CLASS_COLUMNS if column.kind != "n"]
    widths = [max(map(len, texts)) for texts in zip(headings, *rows, strict=True)]
    if screen.width - sum(width + 3 for width in widths[:-1]) >= _LEAST_TARGETS:
        screen.table(headings, rows, left=words, wraps=headings[-1:])
        return
    screen.table(headings[:-1], [row[:-1] for row in rows])
    for row in rows:
        screen.say(f"{row[0]}: {row[-1]}")


def _print_gauges(screen: Screen, summary: Summary) -> None:
    from rich.table import Table

    left, right = throughput_rows(summary), utilization_rows(summary)
    right += other_rows(summary)
    tables = [_gauge_table(screen, rows) for rows in (left, right) if rows]
    if not tables:
        return
    screen.heading("Throughput and utilisation")
    side_by_side = Table.grid(padding=(0, 3, 0, 0))
    side_by_side.add_row(*tables)
    screen.show(side_by_side)


def _gauge_table(screen: Screen, rows: list[GaugeRow]) -> Table:
    table = screen.grid("left", "right", "right", "left")
    for row in rows:
        after = f"max {row.maximum}" if row.maximum else row.unit
        table.add_row(
            screen.text(row.label),
            screen.text(row.value),
            screen.text(row.spread, "dim"),
            screen.text(after, "dim"),
        )
    return table


def _print_tiers(screen: Screen, summary: Summary) -> None:
    rows = tier_rows(summary)
    if not rows:
        return
    screen.heading("Where prefix hits come from, as shares of the prompt tokens")
    screen.table([column.heading for column in TIER_COLUMNS], rows, left=("Tier",))


def _print_accounts(screen: Screen, summary: Summary) -> None:
    rows = account_rows(summary, "e2e_accounts_s")
    if not rows:
        return
    total_s = sum(row.seconds for row in rows)
    screen.heading(f"Where end-to-end time goes, mean {duration(total_s)} a finished request")
    table = screen.grid("left", "left", "right", "right", gap=2, wraps=False)
    widest = max(row.share for row in rows)
    for row in rows:
        table.add_row(
            screen.text(row.label),
            screen.bar(row.share / widest),
            screen.text(percent(row.share)),
            screen.text(duration(row.seconds)),
        )
    screen.show(table)


def _print_operators(screen: Screen, summary: Summary) -> None:
    rows = operator_rows(summary)
    if not rows:
        return
    screen.heading("Where kernel times come from")
    words = ("source", "tables (SHA-256)", "evidence")
    screen.table(("", *words), rows, left=words, wraps=words[:2])
