"""Terminal text of a what-if: the answer first, then the tables behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from reports.numbers import MISSING, duration_unit
from reports.terminal import EIGHTHS
from reports.whatif.answer import (
    heading,
    headline,
    method_text,
    per_gpu_sentence,
    slo_sentence,
    together_sentence,
    why_sentence,
    zero_text,
)
from reports.whatif.facts import (
    Content,
    account_deltas,
    base_warnings,
    figure_rows,
    ran,
    refusals,
    settings_text,
    warning_rows,
)

if TYPE_CHECKING:
    from rich.console import Console

_MAX_WIDTH = 120
_BAR = 7
_LEAST_COLUMN = 14
_STYLES = {"good": "green", "bad": "red", "unsure": "dim", "": ""}
_ASCII = str.maketrans({"±": "+-", "\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-", "µ": "u"})


class Block(NamedTuple):
    """A variant's column: its header, and a cell of (value, change, style) per row."""

    header: str
    cells: list[tuple[str, str, str]]
    """Cells; a style is ``good``, ``bad``, ``unsure`` or empty."""


class _Part(NamedTuple):
    """A part of a line with its style."""

    text: str
    style: str = ""


class Printer:
    """Prints to a console within its width and character set."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ascii_only = console.options.ascii_only
        self._width = min(console.width, _MAX_WIDTH)

    def say(self, text: str, style: str = "") -> None:
        """Print a paragraph in the given style."""
        self._show([_Part(text, style)], wrap=True)

    def bar(self, share: float) -> str:
        """Draw a bar for a signed share of the widest bar."""
        if self._ascii_only:
            return "#" * round(abs(share) * _BAR)
        eighths = round(abs(share) * _BAR * 8)
        return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()

    def grid(self, labels: list[tuple[str, str]], base: list[str], blocks: Sequence[Block]) -> None:
        """Print a table of a baseline and its variants, split into parts that fit the width."""
        lead = max(len(label) for label, _ in labels)
        unit = max(len(unit_text) for _, unit_text in labels)
        first = max(len("baseline"), *(len(text) for text in base))
        left = lead + 1 + unit + 2 + first
        while blocks:
            widths: list[tuple[int, int]] = []
            for block in blocks:
                widths.append(
                    (max(len(cell[0]) for cell in block.cells), max(len(c[1]) for c in block.cells))
                )
                used = left + sum(3 + max(a + 1 + b, _LEAST_COLUMN) for a, b in widths)
                if used > self._width and len(widths) > 1:
                    widths.pop()
                    break
            here, blocks = blocks[: len(widths)], blocks[len(widths) :]
            columns = [
                max(a + (1 + b if b else 0), min(len(block.header), _LEAST_COLUMN))
                for block, (a, b) in zip(here, widths, strict=True)
            ]
            self._header(left, lead + 1 + unit + 2, first, here, columns)
            for row, (label, unit_text) in enumerate(labels):
                parts = [_Part(f"{label:{lead}} "), _Part(f"{unit_text:{unit}}  ", "dim")]
                parts.append(_Part(f"{base[row]:>{first}}"))
                for block, (value_width, _), column in zip(here, widths, columns, strict=True):
                    value, change, style = block.cells[row]
                    cell = f"{value:>{value_width}}"
                    rest = f" {change}" if change else ""
                    parts += [_Part(f"   {cell}"), _Part(rest, _STYLES[style])]
                    parts.append(_Part(" " * max(column - len(cell) - len(rest), 0)))
                self._show(parts)
            if blocks:
                self.say("")

    def _header(
        self, left: int, before: int, first: int, blocks: Sequence[Block], columns: list[int]
    ) -> None:
        """Return the lines of names over their columns; names longer than a column are broken."""
        folded = [_fold(block.header, width) for block, width in zip(blocks, columns, strict=True)]
        height = max(len(lines) for lines in folded)
        for line in range(height):
            is_last = line == height - 1
            text = f"{'':{before}}{'baseline' if is_last else '':>{first}}"
            for lines, width in zip(folded, columns, strict=True):
                shown = lines[line - height + len(lines)] if line >= height - len(lines) else ""
                text += f"   {shown:{width}}"
            self._show([_Part(text.rstrip(), "dim")])
        rule = "-" if self._ascii_only else "─"
        self._show([_Part(rule * (left + sum(columns) + 3 * len(columns)), "dim")])

    def _show(self, parts: list[_Part], *, wrap: bool = False) -> None:
        from rich.text import Text

        line = Text()
        for part in parts:
            text = part.text
            if self._ascii_only:
                text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
            line.append(text, style=part.style)
        line.rstrip()
        self._console.print(
            line,
            width=self._width if wrap else None,
            highlight=False,
            markup=False,
            no_wrap=not wrap,
            overflow="fold" if wrap else "ignore",
            crop=False,
        )


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


_PIPE_WIDTH = 110
_LEAST_SHOWN = 1e-3  # share of mean end-to-end time; smaller accounts are in the page and the JSON


def print_whatif(content: Content, console: Console | None = None) -> None:
    """Print the content of whatif.json to a terminal, a file or a pipe.

    An output without color or Unicode gets plain text or ASCII.
    """
    from rich.console import Console

    screen = console or Console(highlight=False)
    if console is None and not screen.is_terminal:
        screen.width = _PIPE_WIDTH  # a file or a pipe has no width of its own
    printer = Printer(screen)
    printer.say(headline(content), "bold")
    for text in (slo_sentence(content), per_gpu_sentence(content), together_sentence(content)):
        if text:
            printer.say(text)
    _print_figures(printer, content)
    _print_refused(printer, content)
    _print_accounts(printer, content)
    _print_warnings(printer, content)
    printer.say("")
    workload = content["baseline"]["conditions"].get("workload") or ""
    printer.say(f"Baseline: {heading(content)}, {workload}. {why_sentence(content)}", "dim")
    printer.say(method_text(content), "dim")


def _print_figures(printer: Printer, content: Content) -> None:
    rows = figure_rows(content, compact=True)
    blocks = []
    for variant in content["variants"]:
        if variant["refused"] is not None:
            refused = [("refused", "", "bad"), *[(MISSING, "", "")] * len(rows)]
            blocks.append(Block(variant["name"], refused))
            continue
        index = ran(content).index(variant)
        block = [
            (c.value, f"~ {c.change}" if c.unsure else c.change, "unsure" if c.unsure else c.tone)
            for c in (row.cells[index] for row in rows)
        ]
        blocks.append(Block(variant["name"], [*block, (variant["label"] or MISSING, "", "")]))
    if any(row.product for row in rows):
        products = [(row.product, "", "") for row in rows]
        blocks.append(Block("product of singles", [*products, ("", "", "")]))
    labels = [(row.label, row.unit) for row in rows]
    base = [row.base for row in rows]
    printer.say("")
    printer.grid(
        [*labels, ("evidence", "")], [*base, content["baseline"]["label"] or MISSING], blocks
    )
    if any(row.cells[i].unsure for row in rows for i in range(len(row.cells))):
        printer.say(f"{zero_text(content)}; pt: percentage points", "dim")


def _print_accounts(printer: Printer, content: Content) -> None:
    every = account_deltas(content)
    if not every or not ran(content):
        return
    total_s = sum(row.base_s for row in every)
    least_s = _LEAST_SHOWN * total_s
    rows = [r for r in every if r.base_s > least_s or max(map(abs, r.deltas_s)) > least_s]
    unit, per_second = duration_unit([total_s])
    decimals = max(4 - len(f"{total_s * per_second:.0f}"), 1)
    widest = max(abs(delta) for row in rows for delta in row.deltas_s) or 1.0
    blocks = []
    for index, variant in enumerate(ran(content)):
        cells = []
        for delta_s in (row.deltas_s[index] for row in rows):
            text = _signed(delta_s * per_second, decimals)
            cells.append((text, printer.bar(delta_s / widest), _tone(delta_s)))
        whole_s = sum(row.deltas_s[index] for row in every)
        cells.append((_signed(whole_s * per_second, decimals), "", _tone(whole_s)))
        blocks.append(Block(variant["name"], cells))
    labels = [*((row.label, unit) for row in rows), ("E2E, the sum", unit)]
    base_s = [*(row.base_s for row in rows), total_s]
    printer.say("\nWhich accounts of mean end-to-end time moved", "bold")
    printer.grid(labels, [f"{s * per_second:,.{decimals}f}" for s in base_s], blocks)


def _print_refused(printer: Printer, content: Content) -> None:
    for name, reason in refusals(content):
        printer.say(f"{name} is refused: {reason}", "red")


def _print_warnings(printer: Printer, content: Content) -> None:
    base, rows = base_warnings(content), warning_rows(content)
    same = [v for v in ran(content) if v["changes_nothing"]]
    if not (base or rows or same):
        return
    printer.say("\nMind", "bold")
    for variant in same:
        printer.say(
            f"! {variant['name']}: changes nothing; {settings_text(variant)} was so.", "yellow"
        )
    for row in rows:
        sign = "!" if row.is_new else "+"
        printer.say(f"{sign} {row.variant}: {row.text}", "yellow" if row.is_new else "")
    for text in base:
        printer.say(f"! baseline: {text}", "yellow")


def _signed(value: float, decimals: int) -> str:
    """Write a number with its sign, and 0 without one if it rounds to zero."""
    text = f"{value:+,.{decimals}f}"
    return text if text.strip("+-0.") else "0"


def _tone(delta_s: float) -> str:
    return "" if delta_s == 0 else "bad" if delta_s > 0 else "good"
