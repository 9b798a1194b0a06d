"""Variants side by side on a terminal: a grid that breaks into parts where the width ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console

_MAX_WIDTH = 120
_BAR = 7
_LEAST_COLUMN = 14
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STYLES = {"good": "green", "bad": "red", "unsure": "dim", "": ""}
_ASCII = str.maketrans({"±": "+-", "\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-", "µ": "u"})


class Block(NamedTuple):
    """A variant's column: its header, and a cell a row of (value, change, style)."""

    header: str
    cells: list[tuple[str, str, str]]
    """Styles: ``good``, ``bad``, ``unsure`` or nothing."""


class _Part(NamedTuple):
    """A piece of a line with its style."""

    text: str
    style: str = ""


class Printer:
    """Carries the console and its limits."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ascii_only = console.options.ascii_only
        self._width = min(console.width, _MAX_WIDTH)

    def say(self, text: str, style: str = "") -> None:
        """Print a paragraph."""
        self._show([_Part(text, style)], wrap=True)

    def bar(self, share: float) -> str:
        """A bar for a signed share of the widest."""
        if self._ascii_only:
            return "#" * round(abs(share) * _BAR)
        eighths = round(abs(share) * _BAR * 8)
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()

    def grid(self, labels: list[tuple[str, str]], base: list[str], blocks: Sequence[Block]) -> None:
        """A table of a baseline and its variants, in as many parts as the width asks for."""
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
        """Names over their columns, broken at their width where they are longer."""
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
    """Break a name after ``_``, ``-``, a comma or a blank, and after ``=`` where it must be."""
    tokens = re.findall(r"[^_, -]*[_, -]|[^_, -]+", text)
    lines = [""]
    for token in tokens:
        for part in re.findall(r"[^=]*=|[^=]+", token) if len(token) > width else [token]:
            if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return [line.strip()[:width] for line in lines]
