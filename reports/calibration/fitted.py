"""The report of a fit: how far predictions were off before and after, where nothing was fitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.document import Cell, Column, Report, Row, Section, Table, Text, Warnings, numbers
from reports.numbers import percent


def fitted_report(facts: Mapping[str, Any]) -> Report:
    """Return the report of the facts that ``scenarios.calibration.observed`` and ``measured``
    return."""
    constants: list[Row] = [
        [row["what"], f"x {row['factor']:.2f}", row["value"]] for row in facts.get("constants", ())
    ]
    errors = Table(
        [Column("Held out"), Column("Statistic"), *numbers("Loads", "Before", "After")],
        [_row(row) for row in facts["errors"]],
    )
    use = f"--set engine.profile={facts['path']}"
    if facts["api_server"]:
        use += " --set engine.api_server_count=1"
    return Report(
        eyebrow="Calibration",
        heading=f"{facts['profile']} on {facts['gpu']}",
        headline=_headline(facts),
        sections=[
            Section("errors", "Mean absolute error where nothing was fitted", [errors]),
            Section(
                "constants",
                "What was fitted, on the constants before",
                [Table([Column("Constant"), *numbers("Factor", "Now")], constants)],
            ),
            Section("warnings", "Mind", [Warnings(facts["warnings"])]),
            Section("use", "Use", [Text(f"fleetcast simulate scenario.yaml {use}")]),
        ],
        version=facts["fleetcast_version"],
    )


def _headline(facts: Mapping[str, Any]) -> str:
    errors = facts["errors"]
    before, after = (sum(row[side] for row in errors) / len(errors) for side in ("before", "after"))
    return (
        f"Fitted to {facts['fitted_to']}: held-out errors are {percent(after)} on average, "
        f"{percent(before)} before. Written to {facts['path']} ({facts['hash'][:12]})."
    )


def _row(row: Mapping[str, Any]) -> Row:
    better = row["after"] <= row["before"]
    return [
        row["what"],
        row["statistic"],
        str(row["count"]),
        percent(row["before"]),
        Cell(percent(row["after"]), "good" if better else "bad"),
    ]
