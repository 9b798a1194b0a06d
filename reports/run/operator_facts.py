"""What served each family of operators, as rows for tables."""

from __future__ import annotations

from typing import Any, NamedTuple

from reports.facts import Summary, section


class OperatorRow(NamedTuple):
    """One family."""

    family: str
    source: str
    tables: str
    """How many, their kernels, and a hash of all; empty for constants."""
    label: str


def operator_rows(summary: Summary) -> list[OperatorRow]:
    """The families of the model's operators; none where one set of constants serves all."""
    found = section(summary, "conditions").get("operators")
    families = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    if not any(one.get("tables") or one.get("source") == "datasheet" for one in families):
        return []
    return [
        OperatorRow(
            str(one.get("family")),
            str(one.get("source")),
            _tables(one),
            str(one.get("label")),
        )
        for one in families
    ]


def _tables(family: dict[str, Any]) -> str:
    tables = family.get("tables") or ()
    if not tables:
        return ""
    kernels = dict.fromkeys(str(table["kernel"]) for table in tables)
    count = f"{len(tables)} of " if len(tables) > 1 else ""
    return f"{count}{', '.join(kernels)} {str(family.get('hash'))[:12]}"
