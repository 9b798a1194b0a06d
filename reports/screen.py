"""Write reports to a terminal, file or pipe: its width, its characters, its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

MAX_WIDTH = 100
BAR_WIDTH = 28
TONES = {"good": "green", "fair": "yellow", "poor": "red", "": ""}
"""Text style of an error, by how good the error is."""

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

    def text(self, text: str, style: str = "") -> Text:
        """Return user text in a form that is safe to show."""
        from rich.text import Text

        if self._ascii_only:
            text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return Text(text, style=style)

    def bar(self, share: float, width: int = BAR_WIDTH) -> Text:
        """Draw a share from 0 to 1 as a bar of up to ``width`` characters."""
        if self._ascii_only:
            return self.text("#" * max(round(share * width), 1), "cyan")
        eighths = max(round(share * width * 8), 1)
        return self.text("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip(), "cyan")

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str | Text]],
        shares: Sequence[float] = (),
        *,
        left: Sequence[str] = (),
        wraps: Sequence[str] = (),
    ) -> None:
        """Write a table with a line under its headers. Rows may be shorter than the headers.

        Columns hold numbers, except the first and those whose header is in ``left``. Only columns
        whose header is in ``wraps`` may take several lines per row. ``shares`` follow as bars if
        they fit.
        """
        left = (headers[0], *left)
        cells = [[self.text(c) if isinstance(c, str) else c for c in row] for row in rows]
        if shares:
            plain = self._ruled(headers, cells, left, wraps)
            width = self.width - self._console.measure(plain).maximum - 3
            if width >= _LEAST_BAR:
                headers, left = (*headers, ""), (*left, "")
                for row, share in zip(cells, shares, strict=True):
                    row.append(self.bar(share, min(width, BAR_WIDTH)))
        self.show(self._ruled(headers, cells, left, wraps))

    def fact_list(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Write rows of a label, a value, and a dimmed note."""
        table = self.grid("left", "right", "left")
        for label, value, note in rows:
            table.add_row(self.text(label), self.text(value), self.text(note, "dim"))
        self.show(table)

    def warnings(self, texts: Sequence[str]) -> None:
        """Write the warnings below a heading of their own, or nothing if there are none."""
        if not texts:
            return
        self.heading("Mind")
        table = self.grid("left", "left")
        for text in texts:
            table.add_row(self.text("!", "bold yellow"), self.text(text, "yellow"))
        self.show(table)

    def grid(self, *sides: str, gap: int = 1, wraps: bool = True) -> Table:
        """Return a table without lines, with ``gap`` blanks between columns. At most the last
        column wraps."""
        from rich.table import Table

        table = Table.grid(padding=(0, gap, 0, 0))
        for position, side in enumerate(sides):
            may_wrap = wraps and position == len(sides) - 1
            table.add_column(justify="right" if side == "right" else "left", no_wrap=not may_wrap)
        return table

    def _ruled(
        self,
        headers: Sequence[str],
        cells: Sequence[Sequence[Text]],
        left: Sequence[str],
        wraps: Sequence[str],
    ) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, 1)
        )
        for header in headers:
            is_number, may_wrap = header not in left, header in wraps
            table.add_column(
                header,
                justify="right" if is_number else "left",
                no_wrap=not may_wrap,
                overflow="fold" if is_number and may_wrap else "ellipsis",
            )
        for row in cells:
            table.add_row(*row)
        return table
