"""Rows of the comparison with published figures, and how they are printed."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """``bar``: the largest relative error that counts as met; None: printed without one."""

    what: str
    ours: float
    published: float
    unit: str = ""
    bar: float | None = None

    @property
    def error(self) -> float:
        """Relative, of the published figure."""
        return self.ours / self.published - 1

    @property
    def is_met(self) -> bool:
        """Whether the bar is met; a row without one always is."""
        return self.bar is None or abs(self.error) <= self.bar


class Section(NamedTuple):
    """The rows of one published result."""

    title: str
    conditions: str
    rows: list[Row]
    notes: tuple[str, ...] = ()


def print_section(section: Section) -> None:
    """Ours beside published, with the error and the bar."""
    print(f"\n{section.title}\n{section.conditions}")
    width = max((len(row.what) for row in section.rows), default=0)
    for row in section.rows:
        bar = "" if row.bar is None else f"  bar {row.bar:.0%} {'met' if row.is_met else 'MISSED'}"
        print(
            f"  {row.what:{width}}  {row.ours:10.4g} {row.unit:5} published {row.published:10.4g}"
            f"  {row.error:+7.1%}{bar}"
        )
    for note in section.notes:
        print(f"  {note}")


def met(rows: list[Row]) -> str:
    """How many bars are met."""
    barred = [row for row in rows if row.bar is not None]
    return f"{sum(row.is_met for row in barred)} of {len(barred)}"
