"""Write YAML as people do: one line per field, with comments in a separate column."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

WIDTH = 100
_MOST_COLUMN = 38
"""Rightmost start of the comment column; longer lines push only their own comment out."""
_LEAST_COMMENT = 40
_GLUE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Line:
    """One field, one line of prose (all of it ``text``), or an empty line.

    ``indent`` holds spaces and, for what is commented out, ``# ``: removing one ``# `` sets the
    field. ``comment`` is prose; if it needs several lines, they stay comments however many ``# ``
    are removed in front of them.
    """

    indent: str = ""
    text: str = ""
    comment: str = ""


EMPTY = Line()


def scalar(value: Any) -> str:
    """Return a value as it stands after ``key: ``, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def render(lines: Sequence[Line]) -> str:
    """Return the lines as text; the comments of lines between two empty ones are aligned."""
    text: list[str] = []
    for is_empty, block in groupby(lines, key=lambda line: line == EMPTY):
        if is_empty:
            text += ["" for _ in block]
            continue
        rows = list(block)
        lengths = [len(row.indent + row.text) for row in rows if row.comment]
        column = max((n for n in lengths if n < _MOST_COLUMN), default=0) + 1
        for row in rows:
            text += _rows(row, column)
    return "\n".join(text) + "\n"


def prose(text: str) -> list[str]:
    """Return the comment lines of a paragraph."""
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False)]


def _rows(line: Line, column: int) -> list[str]:
    field = line.indent + line.text
    if not line.comment:
        return [field]
    column = max(column, len(field) + 1)
    room = max(WIDTH - column - 2, _LEAST_COMMENT)
    # No line may begin with a word and a colon: without its comment sign it would be a field.
    glued = re.sub(r" (?=[a-z][a-z0-9_]*: )", _GLUE, line.comment)
    parts = textwrap.wrap(glued, room, break_long_words=False, break_on_hyphens=False)
    parts = [part.replace(_GLUE, " ") for part in parts]
    starts = [field] + [line.indent.rstrip() for _ in parts[1:]]
    return [f"{start:{column}}# {part}" for start, part in zip(starts, parts, strict=True)]
