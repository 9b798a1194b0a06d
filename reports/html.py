"""Write a report as one HTML page that needs no network: tables that sort, charts for wide and
narrow screens, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reports import svg
from reports.document import (
    Cell,
    Figure,
    Report,
    Row,
    Table,
    all_rows,
    cell,
    columns_on,
    sections_on,
    sentences_on,
    shown,
)
from sim.errors import ScenarioError, printable

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
_MOST_ON_A_PHONE = 3
"""Most columns of a table that a phone shows as a table, or one less if a column holds notes; the
rows of others become cards."""
_MOST_ON_A_DESK = 9
"""Most columns of a table that have their full distance; the columns of others stand closer."""
_CLASSES = {"text": "", "number": "n", "note": "over", "evidence": "tags", "bar": "bars"}
_UNITS = {
    "ns": 1e-9,
    "µs": 1e-6,
    "ms": 1e-3,
    "min": 60.0,
    "h": 3600.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
}
_NUMBER = re.compile(r"[~≤<>±$]*\s*([+-]?)\$?([\d,]*\.?\d+(?:e[+-]?\d+)?)\s*(\S*)")


class _Head(NamedTuple):
    """A heading of a table on the page."""

    text: str
    classes: str
    span: int = 1


class _Shown(NamedTuple):
    """A cell of a table on the page."""

    text: str
    label: str
    classes: str
    notes: tuple[str, ...]
    value: str
    width: str
    """Percentage of the longest bar; empty if the cell has no bar."""
    is_tag: bool


def write_page(report: Report, path: Path) -> Path:
    """Write the page of a report and return its path.

    It is identical for identical reports. Raises `ScenarioError` if it cannot be written.
    """
    text = render_page(report)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write the page {path}: {error.strerror}") from None
    return path


def save_page(report: Report, path: Path) -> Path:
    """Write the page of a report to the path that ``--out`` gives, in a folder that exists, and
    return the path.

    Raises `ScenarioError` if the file cannot be written.
    """
    try:
        path.write_text(render_page(report), encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"--out {path}: {error.strerror}") from None
    return path


def render_page(report: Report) -> str:
    """Return the page of a report as HTML text."""
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            sections=sections_on(report, "page"),
            sentences=sentences_on(report, "page"),
        )
    )
    return text.lstrip()


_FOLDERS = re.compile(r"(?<![\w<:/.&;~+-])/(?:[\w.@+-]+/)+(?=[\w.@+-])")


def _shareable(value: Any) -> Any:
    """Return a text without the folders of absolute paths, which name users and machines, and
    without control characters."""
    return _FOLDERS.sub("", printable(value)) if type(value) is str else value


def sort_value(text: str) -> float | None:
    """Return the number at the start of a text in its base unit (``36 ms`` is 0.036), or None."""
    found = _NUMBER.match(text)
    if found is None:
        return None
    sign, digits, unit = found.groups()
    size = _UNITS.get(unit, _UNITS.get(unit[:1], 1.0) if len(unit) > 1 and unit[1].isupper() else 1)
    return float(f"{sign}{digits.replace(',', '')}") * size


def _environment() -> Environment:
    """Return a Jinja environment that escapes values and takes unknown names as errors."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shareable,
    )
    environment.globals |= {
        "kind_of": lambda block: type(block).__name__,
        "heads_of": _heads,
        "groups_of": _groups,
        "rows_of": _rows,
        "classes_of": _classes_of,
        "drawn": lambda figure: draw(figure),
        "on_page": lambda blocks: shown(blocks, "page"),
        "cell": cell,
    }
    return environment


def draw(figure: Figure) -> list[svg.Plot]:
    """Draw a figure for wide and for narrow screens; nothing if there is nothing to draw."""
    from markupsafe import Markup

    plots = (figure.draw(sheet) for sheet in (svg.WIDE, svg.NARROW))
    return [plot._replace(svg=Markup(plot.svg)) for plot in plots if plot is not None]


def _classes_of(table: Table) -> str:
    """Return the classes of a table that has too many columns for a phone, or for a desk."""
    columns = [table.columns[place] for place in columns_on(table, "page")]
    has_notes = any(column.kind == "note" for column in columns)
    most = _MOST_ON_A_PHONE - has_notes
    limits = {"cards": most, "dense": _MOST_ON_A_DESK}
    return " ".join(name for name, limit in limits.items() if len(columns) > limit)


def _heads(table: Table) -> list[_Head]:
    columns = [table.columns[place] for place in columns_on(table, "page")]
    return [_Head(column.heading, _CLASSES[column.kind]) for column in columns]


def _groups(table: Table) -> list[_Head]:
    """Return the headings above the headings; empty if no column has one."""
    columns = [table.columns[place] for place in columns_on(table, "page")]
    if not any(column.group for column in columns):
        return []
    runs = ((name, list(run)) for name, run in groupby(columns, lambda column: column.group))
    return [_Head(name, "n" if name else "", len(run)) for name, run in runs]


def _rows(table: Table) -> Iterator[tuple[bool, bool, list[_Shown]]]:
    """Yield the rows of a table, and of each whether it is the total and whether it is bold."""
    places = columns_on(table, "page")
    for index, row in enumerate(all_rows(table)):
        is_total = index == len(table.rows)
        is_strong = is_total or index in table.strong
        yield is_total, is_strong, [_shown(table, row, place) for place in places]


def _shown(table: Table, row: Row, place: int) -> _Shown:
    column, one = table.columns[place], cell(row[place])
    classes = " ".join(filter(None, (_CLASSES[column.kind], one.tone)))
    label = " ".join(filter(None, (column.group, column.heading)))
    notes = tuple(filter(None, (one.note, *one.spread)))
    width = ""
    if column.kind == "bar" and one.share is not None:
        width = f"{min(abs(one.share), 1.0) * 100:.2f}"
    is_tag = column.kind == "evidence" and bool(one.text)
    return _Shown(one.text, label, classes, notes, _value(column.kind, one), width, is_tag)


def _value(kind: str, one: Cell) -> str:
    value = one.value
    if value is None and kind == "number":
        value = sort_value(one.text)
    return "" if value is None else f"{value:.6g}"
