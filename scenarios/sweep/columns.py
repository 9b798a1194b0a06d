"""What a run leaves in the table of a sweep: one flat row of numbers and a few words."""

from __future__ import annotations

from typing import Any

from scenarios.simulate import RunResult

Row = dict[str, Any]
"""Column -> number, text, or None where there is none."""


def row_of(result: RunResult) -> Row:
    """Every figure of the summary, the counts behind them, and where the time went.

    Columns are named as figures: ``ttft.p99`` (seconds), ``goodput`` (requests/s); accounts of
    mean end-to-end time are ``e2e_account.<name>`` (seconds a finished request).
    """
    summary = result.summary
    row: Row = {}
    for figure in summary["figures"]:
        name, statistic = figure["name"], figure["statistic"]
        row[name if statistic == "value" else f"{name}.{statistic}"] = figure["value"]
    if (
        not result.metrics.met
    ):  # without a target every finished request is good, which says nothing
        row |= dict.fromkeys(("attainment", "goodput"))
    gpus = summary["conditions"]["gpus"]
    limit = summary["saturation"] or {}
    row |= {
        "gpus": gpus,
        "saturation": limit.get("saturation_per_s"),
        "load": limit.get("load"),
    }
    for name in ("goodput", "output_throughput", "saturation"):
        row[f"{name}_per_gpu"] = None if row[name] is None else row[name] / gpus
    row |= {f"attainment_of.{name}": share for name, share in _targets(summary).items()}
    for one in summary["classes"]:
        row[f"class.{one['name']}.attainment"] = one["attainment"]
    counts = {k: v for k, v in summary["requests"].items() if k != "reject_reasons"}
    row |= {f"requests.{name}": count for name, count in counts.items()}
    row |= {f"e2e_account.{name}": s for name, s in summary["e2e_accounts_s"].items()}
    row |= {
        "evidence": next((f["evidence"] for f in summary["figures"] if f["evidence"]), None),
        "warnings": ", ".join(warning["code"] for warning in summary["warnings"]) or None,
        "calibration_sha256": summary["conditions"]["calibration_sha256"],
    }
    return row


def _targets(summary: dict[str, Any]) -> dict[str, float | None]:
    found: dict[str, float | None] = summary["slo"].get("by_target") or {}
    return found
