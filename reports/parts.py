"""What a page's template is handed: tiles, columns and cells of tables."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """One of the few numbers at the head of a page."""

    label: str
    value: str
    note: str


class Column(NamedTuple):
    """A column of a table; ``kind`` is its style.

    ``n`` is right-aligned numbers, ``over`` small and muted words, ``tags`` evidence labels.
    """

    heading: str
    kind: str = ""


class Cell(NamedTuple):
    """A cell with more than its text: a tone (good or poor), or a small note below it."""

    text: str
    tone: str = ""
    note: str = ""
