"""What served each family of operators, as rows for tables."""

from __future__ import annotations

from typing import NamedTuple

from reports.facts import Summary, section


class OperatorRow(NamedTuple):
    """One family."""

    family: str
    source: str
    tables: str
    """Kernels and hashes; empty for constants."""
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
            ", ".join(f"{t['kernel']} {t['hash'][:12]}" for t in one.get("tables") or ()),
            str(one.get("label")),
        )
        for one in families
    ]
