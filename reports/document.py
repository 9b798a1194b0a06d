"""What a report says, before it is shown: a headline, tiles, and sections made of blocks.

Each tool builds one `Report`. `reports.terminal` prints it and `reports.html` writes its page. A
block, a column or a section that suits only one of the two says so in ``on``; where the words
differ, ``terminal`` has those of the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reports.numbers import MISSING, named_quantity, whole_percent

if TYPE_CHECKING:
    from reports.svg import Plot, Sheet

Where = Literal["both", "page", "terminal"]
Tone = Literal["", "good", "fair", "bad", "unsure"]
"""How good a value is; ``unsure`` is not told apart from chance."""
Kind = Literal["text", "number", "note", "evidence", "bar"]
"""What a column holds: ``note`` is small muted text, ``bar`` draws each `Cell.share`."""


ANY_WIDTH = (0, 1_000_000)


@dataclass(frozen=True)
class Cell:
    """A table cell that is more than its text."""

    text: str
    tone: Tone = ""
    note: str = ""
    """Small text below, on the page; behind the text in a terminal's table with `Table.lead`."""
    spread: tuple[str, ...] = ()
    """Lines below the text on both, such as the ``±5%`` of a band."""
    share: float | None = None
    """Length of a bar as a share of the longest, -1 to 1."""
    value: float | None = None
    """Number that the page sorts by; by default it is read from the text."""


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    kind: Kind = "text"
    terminal: str | None = None
    """Heading on a terminal, if it is another than the heading with a small first letter."""
    on: Where = "both"
    wraps: bool = False
    """Whether a terminal may break its cells into several lines."""
    drop: int = 0
    """Rank by which a terminal leaves out columns of a table that is too wide, all of the lowest
    rank at once; those of rank 0 stay."""
    below: bool = False
    """Whether a terminal writes the cells of this last column below a table that is too wide."""
    group: str = ""
    """Heading above this column and its neighbors of the same group, on the page."""


def numbers(*headings: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(heading, "number") for heading in headings]


class Tile(NamedTuple):
    """One of the few headline numbers at the top of a page."""

    label: str
    value: str
    note: str


class Fact(NamedTuple):
    """A labeled value with a note, and its spread such as ``±5%``."""

    label: str
    value: str
    note: str = ""
    spread: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph; a note is smaller and muted."""

    text: str
    style: Literal["plain", "note", "bad"] = "plain"
    on: Where = "both"
    widths: tuple[int, int] = ANY_WIDTH
    """Least and most characters of a line of the terminals that show it."""


@dataclass(frozen=True)
class Table:
    """Rows under headings; the first cell of a row is its header. A table without rows is not
    shown."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    terminal: str | None = None
    """Title on a terminal, if it is another."""
    total: Row | None = None
    """Last row, which sorting leaves in its place."""
    note: str = ""
    """Note below the table on the page."""
    lead: int = 0
    """Columns that a terminal repeats in every part of a table that it splits to fit its width;
    0 does not split."""
    headed: bool = True
    """Whether a terminal shows the headings."""
    most_rows: int | None = None
    """Rows that a terminal shows at most, without the total."""
    strong: Collection[int] = ()
    """Rows that the page shows in bold, by their places."""
    on: Where = "both"
    widths: tuple[int, int] = ANY_WIDTH
    """Least and most characters of a line of the terminals that show it."""


@dataclass(frozen=True)
class Facts:
    """A list of labeled values."""

    rows: Sequence[Fact]
    title: str = ""
    on: Where = "both"


@dataclass(frozen=True)
class Warnings:
    """Texts that a reader must mind; the tone ``good`` marks one that no longer holds."""

    texts: Sequence[str | Cell]
    on: Where = "both"


@dataclass(frozen=True)
class Figure:
    """A drawing of the page, drawn for wide and for narrow screens.

    ``draw`` returns None if there is nothing to draw; then ``absent`` is said instead, if given.
    ``evidence`` maps labels to the quantities that carry them.
    """

    draw: Callable[[Sheet], Plot | None]
    evidence: Mapping[str, str] | None = None
    absent: str = ""
    on: Where = "page"


@dataclass(frozen=True)
class Code:
    """Text to copy, such as a command, below its title."""

    text: str
    title: str = ""
    terminal: str | None = None
    """Title on a terminal, if it is another."""
    on: Where = "both"


@dataclass(frozen=True)
class Details:
    """Blocks that a reader of the page may open."""

    summary: str
    blocks: Sequence[Block]
    on: Where = "page"


@dataclass(frozen=True)
class Beside:
    """Blocks that a terminal shows side by side."""

    blocks: Sequence[Facts]
    on: Where = "terminal"


Block = Text | Table | Facts | Warnings | Figure | Code | Details | Beside


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. ``id`` is its anchor in the page; a section without blocks is not
    shown."""

    id: str
    heading: str
    blocks: Sequence[Block]
    terminal: str | None = None
    """Heading on a terminal, if it is another; without characters there is none."""
    on: Where = "both"


@dataclass(frozen=True)
class Report:
    """A report, in the order in which it is read."""

    eyebrow: str
    """Kind of report, above the heading and in the title of the page."""
    heading: str
    """The system that it is about."""
    headline: str
    """The answer in one sentence."""
    sections: Sequence[Section]
    version: str
    tone: Tone = ""
    sentences: Sequence[str | Text] = ()
    """Sentences behind the headline; empty ones are left out."""
    alerts: Sequence[str] = ()
    """Warnings that stand below the answer of the page."""
    tiles: Sequence[Tile] = ()
    closing: Sequence[str] = ()
    """Last lines on a terminal: what was run, and how."""
    footer: Sequence[str] = ()
    """Facts at the foot of the page, after the version."""
    width: int = 100
    """Most characters of a line on a terminal."""
    pipe_width: int | None = 100
    """Characters of a line in a file or pipe; None takes what the environment says."""


def shown(blocks: Iterable[Block], on: Where) -> list[Block]:
    """Return the blocks that are for the page or the terminal and not empty."""
    return [block for block in blocks if block.on in ("both", on) and not _is_empty(block)]


def sections_on(report: Report, on: Where) -> list[Section]:
    """Return the sections for the page or the terminal, each with only its blocks for it."""
    kept = (
        replace(section, blocks=shown(section.blocks, on))
        for section in report.sections
        if section.on in ("both", on)
    )
    return [section for section in kept if section.blocks]


def sentences_on(report: Report, on: Where) -> list[str]:
    """Return the sentences behind the headline for the page or the terminal."""
    texts = (one if isinstance(one, Text) else Text(one) for one in report.sentences)
    return [text.text for text in texts if text.text and text.on in ("both", on)]


def columns_on(table: Table, on: Where) -> list[int]:
    """Return the positions of a table's columns for the page or the terminal: the first, and all
    others in which any cell has content."""
    return [
        place
        for place, column in enumerate(table.columns)
        if column.on in ("both", on)
        and (place == 0 or any(row[place] not in ("", Cell("")) for row in table.rows))
    ]


def all_rows(table: Table) -> list[Row]:
    """Return the rows of a table and its total, if it has one."""
    return [*table.rows, *([] if table.total is None else [table.total])]


def cell(value: str | Cell) -> Cell:
    """Return a cell for a plain text; a cell is returned as it is."""
    return value if isinstance(value, Cell) else Cell(value)


def _is_empty(block: Block) -> bool:
    match block:
        case Table() | Facts():
            return not block.rows
        case Warnings():
            return not block.texts
        case Beside() | Details():
            return not block.blocks
        case Text() | Code():
            return not block.text
    return False


WEAKER = (
    "From strong to weak: measured on this GPU; fitted inside the measured range; extrapolated "
    "beyond it; from a datasheet; reported by others; assumed."
)


def conditions_section(rows: Sequence[Fact], method: str) -> Section:
    """Return the page's section on what was run, and how the answer was found."""
    return Section("conditions", "Conditions", [Facts(rows), Text(method, "note")], on="page")


def warning_section(texts: Sequence[str | Cell], on: Where = "both") -> Section:
    """Return the section of warnings."""
    return Section("warnings", "Mind", [Warnings(texts)], on=on)


def scenario_section(heading: str, files: Mapping[str, str]) -> Section:
    """Return a page's last section: YAML texts by what they are."""
    return Section(
        heading.lower(),
        heading,
        [Details(summary, [Code(text)]) for summary, text in files.items()],
        on="page",
    )


def evidence_section(
    shares: Sequence[tuple[str, float]], sources: Sequence[Mapping[str, Any]] = ()
) -> Section:
    """Return the page's section on what the numbers rest on.

    ``shares`` are pairs of label and share of the simulated time, and ``sources`` are as the
    summary has them.
    """
    parts = ", ".join(f"{whole_percent(share)} {label}" for label, share in shares)
    rows = [
        [
            str(source.get("what") or ""),
            named_quantity(str(source.get("what") or ""), source.get("value")),
            str(source.get("label") or MISSING),
            str(source.get("source") or ""),
        ]
        for source in sources
    ]
    columns = [
        Column("Number"),
        Column("Value", "note"),
        Column("Evidence", "evidence"),
        Column("Source", "note"),
    ]
    said = (
        f"Share of the simulated time by what it rests on: {parts}. A figure's label is the "
        "weakest that carries at least 5% of it."
    )
    summary = f"{len(rows)} numbers the simulation rests on, each with its source"
    return Section(
        "evidence",
        "Evidence",
        [
            Text(said if parts else ""),
            Text(WEAKER, "note"),
            *([Details(summary, [Table(columns, rows)])] if rows else []),
        ],
        on="page",
    )
