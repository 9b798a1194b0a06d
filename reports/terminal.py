"""Print a report to a terminal, file or pipe, within its width and its characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reports.document import (
    ANY_WIDTH,
    Beside,
    Block,
    Cell,
    Code,
    Column,
    Facts,
    Report,
    Table,
    Text,
    Tone,
    Warnings,
    all_rows,
    cell,
    columns_on,
    sections_on,
    sentences_on,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

MAX_WIDTH = 100
BAR_WIDTH = 28


_STYLES: dict[Tone, str] = {
    "good": "green",
    "fair": "yellow",
    "bad": "red",
    "unsure": "dim",
    "": "",
}
_HEADLINE: dict[Tone, str] = {"good": "bold green", "bad": "bold red"}

_LEAST_WORDS = 10
"""Least width of a column of words; with less room, they go below the table."""
_GAP = 3
"""Characters between two columns."""
_LEAST_BAR = 8
"""Least width of a bar in characters; a shorter one is not readable."""

EIGHTHS = " ▏▎▍▌▋▊▉█"
_ASCII = str.maketrans(
    {"≤": "<=", "\N{MULTIPLICATION SIGN}": "x", "·": "|", "\N{EN DASH}": "-", "µ": "u", "±": "+-"}
)


class Screen:
    """Writes plain text to a console: text is never read as markup, and becomes ASCII if the
    stream can encode no more."""

    def __init__(self, console: Console | None = None, max_width: int = MAX_WIDTH) -> None:
        from rich.console import Console

        self._console = console or Console(highlight=False)
        self._ascii_only = self._console.options.ascii_only
        self.width = min(self._console.width, max_width)
        self.rule = "-" if self._ascii_only else "─"

    def say(self, text: str, style: str = "") -> None:
        """Write a paragraph in the given style."""
        self.show(self.text(text, style))

    def heading(self, text: str) -> None:
        """Write a heading after an empty line."""
        self.say("")
        self.say(text, "bold")

    def show(self, item: RenderableType) -> None:
        """Write anything that rich can render."""
        if not self._ascii_only:
            self._console.print(item, width=self.width, highlight=False, markup=False)
            return
        with self._console.capture() as captured:
            self._console.print(item, width=self.width, highlight=False, markup=False)
        # rich ends truncated text with an ellipsis, which an ASCII stream cannot encode
        text = captured.get().replace("\N{HORIZONTAL ELLIPSIS}", "~")
        self._console.out(text, end="", highlight=False)

    def text(self, text: str, style: str = "") -> RichText:
        """Return user text in a form that is safe to show."""
        from rich.text import Text as RichText

        if self._ascii_only:
            text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return RichText(text, style=style)

    def bar(self, share: float, width: int = BAR_WIDTH) -> RichText:
        """Draw a share from 0 to 1 as a bar of up to ``width`` characters."""
        if self._ascii_only:
            return self.text("#" * max(round(share * width), 1), "cyan")
        eighths = max(round(share * width * 8), 1)
        return self.text("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip(), "cyan")

    def short_bar(self, share: float | None) -> str:
        """Return a bar for the size of a signed share, of at most 7 characters."""
        size = abs(share or 0.0) * _SHORT_BAR
        if self._ascii_only:
            return "#" * round(size)
        eighths = round(size * 8)
        return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()

    def line(self, parts: Sequence[tuple[str, str]]) -> None:
        """Write texts, each with its style, as one line that is never broken."""
        from rich.text import Text as RichText

        line = RichText()
        for text, style in parts:
            line.append(self.text(text, style))
        line.rstrip()
        self._console.print(
            line, highlight=False, markup=False, no_wrap=True, overflow="ignore", crop=False
        )

    def grid(self, *sides: str, gap: int = 1, wraps: bool = True) -> RichTable:
        """Return a table without lines, with ``gap`` blanks between columns. At most the last
        column wraps."""
        from rich.table import Table as RichTable

        table = RichTable.grid(padding=(0, gap, 0, 0))
        for position, side in enumerate(sides):
            may_wrap = wraps and position == len(sides) - 1
            table.add_column(justify="right" if side == "right" else "left", no_wrap=not may_wrap)
        return table


def print_report(report: Report, console: Console | None = None) -> None:
    """Print a report to a terminal, a file or a pipe.

    An output without color or Unicode gets plain text or ASCII.
    """
    from rich.console import Console

    chosen = console or Console(highlight=False)
    if console is None and not chosen.is_terminal and report.pipe_width:
        chosen.width = report.pipe_width
    screen = Screen(chosen, report.width)
    screen.say(report.headline, _HEADLINE.get(report.tone, "bold"))
    for sentence in sentences_on(report, "terminal"):
        screen.say(sentence)
    for section in sections_on(report, "terminal"):
        heading = section.heading if section.terminal is None else section.terminal
        blocks = [block for block in section.blocks if _fits(screen, block)]
        if heading and blocks:
            screen.heading(heading)
        for place, block in enumerate(blocks):
            _print_title(screen, block, is_first=place == 0 and bool(heading))
            _print_block(screen, block)
    if report.closing:
        screen.say("")
    for line in report.closing:
        screen.say(line, "dim")


def _fits(screen: Screen, block: Block) -> bool:
    least, most = block.widths if isinstance(block, Table | Text) else ANY_WIDTH
    return least <= screen.width <= most


def _print_title(screen: Screen, block: Block, *, is_first: bool) -> None:
    """Print a table's or a list's title, or an empty line before one that has none and does not
    stand right under a heading."""
    if not isinstance(block, Table | Facts):
        return
    title = block.title
    if isinstance(block, Table) and block.terminal is not None:
        title = block.terminal
    if title:
        screen.heading(title)
    elif not is_first:
        screen.say("")


def _print_block(screen: Screen, block: Block) -> None:
    match block:
        case Text():
            screen.say(block.text, {"note": "dim", "bad": "red", "plain": ""}[block.style])
        case Code():
            title = block.title if block.terminal is None else block.terminal
            if title:
                screen.say(title, "dim")
            screen.say(block.text)
        case Facts():
            screen.show(_fact_grid(screen, block))
        case Beside():
            from rich.table import Table as RichTable

            grid = RichTable.grid(padding=(0, 3, 0, 0))
            grid.add_row(*(_fact_grid(screen, facts) for facts in block.blocks if facts.rows))
            screen.show(grid)
        case Warnings():
            grid = screen.grid("left", "left")
            for text in map(cell, block.texts):
                mark, style = ("+", "") if text.tone == "good" else ("!", "yellow")
                grid.add_row(
                    screen.text(mark, f"bold {style}".strip()), screen.text(text.text, style)
                )
            screen.show(grid)
        case Table():
            _print_table(screen, block)


def _fact_grid(screen: Screen, facts: Facts) -> RichTable:
    has_spread = any(fact.spread for fact in facts.rows)
    grid = screen.grid("left", "right", *(["right"] if has_spread else []), "left")
    for fact in facts.rows:
        spread = [screen.text(fact.spread, "dim")] if has_spread else []
        grid.add_row(
            screen.text(fact.label), screen.text(fact.value), *spread, screen.text(fact.note, "dim")
        )
    return grid


def _print_table(screen: Screen, table: Table) -> None:
    places = columns_on(table, "terminal")
    columns = [table.columns[place] for place in places]
    if table.most_rows is not None:
        table = replace(table, rows=table.rows[: table.most_rows])
    rows = [[cell(row[place]) for place in places] for row in all_rows(table)]
    if table.lead:
        _print_in_parts(screen, table.lead, columns, rows)
        return
    below: list[list[Cell]] = []
    if columns[-1].below and screen.width - _width(columns[:-1], rows) < _LEAST_WORDS:
        columns, below = columns[:-1], rows
    while _width(columns, rows) - _GAP > screen.width and any(column.drop for column in columns):
        rank = min(column.drop for column in columns if column.drop)
        kept = [place for place, column in enumerate(columns) if column.drop != rank]
        columns = [columns[place] for place in kept]
        rows = [[row[place] for place in kept] for row in rows]
    if not table.headed:
        _print_unheaded(screen, columns, rows)
        return
    _print_ruled(screen, columns, rows)
    for cells in below:
        screen.say(f"{cells[0].text}: {cells[-1].text}")


def _print_ruled(screen: Screen, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table with a line under its headings; a last column of bars takes the room that is
    left, if it is enough for one."""
    from rich import box
    from rich.table import Table as RichTable

    has_bars = columns[-1].kind == "bar"
    table = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, 1)
    )
    for place, column in enumerate(columns[:-1] if has_bars else columns):
        is_number = column.kind == "number" and place > 0
        table.add_column(
            _heading(column),
            justify="right" if is_number else "left",
            no_wrap=not column.wraps,
            overflow="fold" if is_number and column.wraps else "ellipsis",
        )
    room = 0
    if has_bars:
        room = min(screen.width - _width(columns[:-1], rows), BAR_WIDTH)
    if room >= _LEAST_BAR:
        table.add_column("", no_wrap=True)
    for row in rows:
        cells = row[: len(table.columns)]
        table.add_row(
            *(
                screen.bar(one.share or 0.0, room)
                if column.kind == "bar"
                else screen.text(one.text, _STYLES[one.tone])
                for column, one in zip(columns, cells, strict=False)
            )
        )
        for at in range(max(len(one.spread) for one in cells)):
            spreads = ("".join(one.spread[at : at + 1]) for one in cells)
            table.add_row(*(screen.text(text, "dim") for text in spreads))
    screen.show(table)


def _heading(column: Column) -> str:
    """Return a heading for a terminal: ``Evidence`` becomes ``evidence``, and ``GPUs`` stays."""
    if column.terminal is not None:
        return column.terminal
    text = column.heading
    return text[0].lower() + text[1:] if text[1:2].islower() else text


def _width(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> int:
    """Return the characters of a table's longest line and a gap, were no cell broken."""
    widths = [
        max(len(_heading(column)), *(len(row[place].text) for row in rows))
        for place, column in enumerate(columns)
    ]
    return sum(widths) + _GAP * len(widths)


def _print_unheaded(
    screen: Screen, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> None:
    sides = ["right" if column.kind == "number" else "left" for column in columns]
    grid = screen.grid(*sides, gap=2, wraps=columns[-1].wraps)
    for row in rows:
        grid.add_row(
            *(
                screen.bar(one.share or 0.0)
                if column.kind == "bar"
                else screen.text(one.text, "dim" if column.kind == "note" else _STYLES[one.tone])
                for column, one in zip(columns, row, strict=True)
            )
        )
    screen.show(grid)


_LEAST_COLUMN = 14
_SHORT_BAR = 7


def _print_in_parts(
    screen: Screen, lead: int, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> None:
    """Print a table that is split into parts that fit the width, each with the ``lead`` first
    columns. Notes and bars stand behind the values."""
    leading = [
        (max(len(_heading(column)), *(len(row[at].text) for row in rows)), column.kind)
        for at, column in enumerate(columns[:lead])
    ]
    left = sum(len(part) for part, _ in _leading_parts(leading, [""] * lead))
    behind = [[one.note or screen.short_bar(one.share) for one in row] for row in rows]
    start = lead
    while start < len(columns):
        widths: list[tuple[int, int]] = []
        for at in range(start, len(columns)):
            values = max(len(row[at].text) for row in rows)
            widths.append((values, max(len(texts[at]) for texts in behind)))
            used = left + sum(3 + max(a + 1 + b, _LEAST_COLUMN) for a, b in widths)
            if used > screen.width and len(widths) > 1:
                widths.pop()
                break
        here = columns[start : start + len(widths)]
        totals = [
            max(a + (1 + b if b else 0), min(len(_heading(column)), _LEAST_COLUMN))
            for column, (a, b) in zip(here, widths, strict=True)
        ]
        _print_part_head(screen, columns[:lead], leading, here, totals)
        for row, texts in zip(rows, behind, strict=True):
            parts = _leading_parts(leading, [one.text for one in row[:lead]])
            for at, ((values, _), total) in enumerate(zip(widths, totals, strict=True), start):
                rest = f" {texts[at]}" if texts[at] else ""
                value = f"{row[at].text:>{values}}"
                parts += [(f"   {value}", ""), (rest, _STYLES[row[at].tone])]
                parts.append((" " * max(total - len(value) - len(rest), 0), ""))
            screen.line(parts)
        start += len(widths)
        if start < len(columns):
            screen.say("")


def _leading_parts(
    leading: Sequence[tuple[int, str]], texts: Sequence[str]
) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    for (width, kind), text in zip(leading, texts, strict=True):
        gap = "" if not parts else " " if kind == "note" else "  "
        side = ">" if kind == "number" else "<"
        parts.append((f"{gap}{text:{side}{width}}", "dim" if kind == "note" else ""))
    return parts


def _print_part_head(
    screen: Screen,
    lead: Sequence[Column],
    leading: Sequence[tuple[int, str]],
    columns: Sequence[Column],
    widths: Sequence[int],
) -> None:
    """Print the headings of a part; those longer than a column are broken."""
    folded = [_fold(_heading(c), width) for c, width in zip(columns, widths, strict=True)]
    height = max(len(lines) for lines in folded)
    for line in range(height):
        names = [_heading(column) if line == height - 1 else "" for column in lead]
        text = "".join(part for part, _ in _leading_parts(leading, names))
        for lines, width in zip(folded, widths, strict=True):
            shown = lines[line - height + len(lines)] if line >= height - len(lines) else ""
            text += f"   {shown:{width}}"
        screen.line([(text, "dim")])
    left = sum(len(part) for part, _ in _leading_parts(leading, [""] * len(lead)))
    screen.line([(screen.rule * (left + sum(widths) + 3 * len(widths)), "dim")])


def _fold(text: str, width: int) -> list[str]:
    """Break a name after ``_``, ``-``, a comma or a blank, and after ``=`` if necessary."""
    tokens = re.findall(r"[^_, -]*[_, -]|[^_, -]+", text)
    lines = [""]
    for token in tokens:
        for part in re.findall(r"[^=]*=|[^=]+", token) if len(token) > width else [token]:
            if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return [line.strip()[:width] for line in lines]
