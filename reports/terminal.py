"""The summary on a terminal: the answer first, then the tables it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.facts import (
    GaugeRow,
    Summary,
    account_rows,
    latency_rows,
    other_rows,
    throughput_rows,
    utilisation_rows,
    warning_texts,
)
from reports.verdict import conditions_text, requests_sentence, verdict
from reports.words import STATISTICS, duration, listed, percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_MAX_WIDTH = 100
_BAR_WIDTH = 28
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_TONES = {"good": "bold green", "bad": "bold red", "plain": "bold"}
_ASCII = str.maketrans(
    {"≤": "<=", "\N{MULTIPLICATION SIGN}": "x", "·": "|", "\N{EN DASH}": "-", "µ": "u", "±": "+-"}
)


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """Print a summary (as ``read_summary`` returns it) to a terminal, a file or a pipe.

    Where the output cannot take colour or Unicode, plain text and ASCII are written.
    """
    from rich.console import Console

    screen = console or Console(highlight=False)
    _Printer(screen).print_all(summary)


class _Printer:
    """Carries the console and its limits, so that each part need not be handed them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii_only = console.options.ascii_only
        self.width = min(console.width, _MAX_WIDTH)

    def print_all(self, summary: Summary) -> None:
        answer = verdict(summary)
        self._show(self._text(answer.sentence, _TONES[answer.tone]))
        for line in (answer.reason, requests_sentence(summary)):
            if line:
                self._show(self._text(line))
        self._latency(summary)
        self._gauges(summary)
        self._accounts(summary)
        self._warnings(summary)
        self._show("")
        self._show(self._text(conditions_text(summary), "dim"))

    def _latency(self, summary: Summary) -> None:
        rows = latency_rows(summary)
        if not rows:
            return
        self._heading("Latency")
        table = self._table("", *STATISTICS, "", "evidence")
        for column in table.columns[1 : len(STATISTICS) + 1]:
            column.justify = "right"
        metrics_over: dict[str, list[str]] = {}
        for row in rows:
            cells = (row.label, *row.cells, row.unit, row.evidence)
            table.add_row(*(self._text(cell) for cell in cells))
            if row.bands:
                table.add_row("", *(self._text(band, "dim") for band in row.bands))
            metrics_over.setdefault(row.population, []).append(row.label)
        self._show(table)
        over = [
            f"{listed(labels)} over {population}" if len(metrics_over) > 1 else f"over {population}"
            for population, labels in metrics_over.items()
            if population
        ]
        if any(row.bands for row in rows):
            over.append("± is the 90% band, of model and engine")
        self._show(self._text("; ".join(over), "dim"))

    def _gauges(self, summary: Summary) -> None:
        from rich.table import Table

        left, right = throughput_rows(summary), utilisation_rows(summary)
        right += other_rows(summary)
        if not left and not right:
            return
        self._heading("Throughput and utilisation")
        side_by_side = Table.grid(padding=(0, 3, 0, 0))
        side_by_side.add_row(*(self._gauge_table(rows) for rows in (left, right) if rows))
        self._show(side_by_side)

    def _gauge_table(self, rows: list[GaugeRow]) -> Table:
        from rich.table import Table

        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column()
        for row in rows:
            after = f"max {row.maximum}" if row.maximum else row.unit
            table.add_row(
                self._text(row.label),
                self._text(row.value),
                self._text(row.band, "dim"),
                self._text(after, "dim"),
            )
        return table

    def _accounts(self, summary: Summary) -> None:
        from rich.table import Table

        rows = account_rows(summary, "e2e_accounts_s")
        if not rows:
            return
        total_s = sum(row.mean_s for row in rows)
        self._heading(f"Where end-to-end time goes, mean {duration(total_s)} a finished request")
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(width=_BAR_WIDTH)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        widest = max(row.share for row in rows)
        for row in rows:
            bar = self._bar(row.share / widest)
            cells = (percent(row.share), duration(row.mean_s))
            table.add_row(
                self._text(row.label),
                self._text(bar, "cyan"),
                *(self._text(cell) for cell in cells),
            )
        self._show(table)

    def _warnings(self, summary: Summary) -> None:
        from rich.table import Table

        warnings = warning_texts(summary)
        if not warnings:
            return
        self._heading("Mind")
        table = Table.grid(padding=(0, 1, 0, 0))
        for text in warnings:
            table.add_row(self._text("!", "bold yellow"), self._text(text, "yellow"))
        self._show(table)

    def _bar(self, share: float) -> str:
        if self.ascii_only:
            return "#" * max(round(share * _BAR_WIDTH), 1)
        eighths = max(round(share * _BAR_WIDTH * 8), 1)
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()

    def _table(self, *headers: str) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, 1)
        )
        for header in headers:
            table.add_column(header, no_wrap=header in STATISTICS)
        return table

    def _heading(self, text: str) -> None:
        self._show("")
        self._show(self._text(text, "bold"))

    def _text(self, text: str, style: str = "") -> Text:
        """User text as it is: never read as markup, never a character the stream cannot take."""
        from rich.text import Text

        if self.ascii_only:
            text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return Text(text, style=style)

    def _show(self, item: RenderableType) -> None:
        self.console.print(item, width=self.width, highlight=False, markup=False, soft_wrap=False)
