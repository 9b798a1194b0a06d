"""Warnings of a variant's runs, each once, with how many of the runs gave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scenarios.whatif.runs import Run


def run_notes(runs: Sequence[Run]) -> dict[str, Any]:
    """``warnings`` ({code, text, runs}) and ``notes`` of the runs.

    Texts are of the first run that has them, so that a number in one is of that run. That a
    percentile rests on few samples of one run is left out where there are several: intervals say
    how sure their mean is.
    """
    warnings: dict[str, dict[str, Any]] = {}
    for run in runs:
        for warning in run.summary["warnings"]:
            if warning["code"] == "few_samples" and len(runs) > 1:
                continue
            known = warnings.setdefault(warning["code"], {**warning, "runs": 0})
            known["runs"] += 1
    return {
        "warnings": list(warnings.values()),
        "notes": list(runs[0].summary["conditions"]["notes"]),
    }
