"""The files of a validation: accuracy.json and, for its figures, every request's latencies."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from scenarios.validation.validate import Validation
from sim.errors import ScenarioError


def write_validation(found: Validation, folder: Path) -> None:
    """Write ``accuracy.json`` and ``latencies.parquet``. Raises ScenarioError if it cannot be."""
    frames = [
        pd.DataFrame({"run": name, "metric": metric, **sample})
        for name, scored in found.runs.items()
        for metric, sample in scored.samples_s.items()
    ]
    empty = pd.DataFrame({name: [] for name in ("run", "metric", "predicted", "measured")})
    try:
        latencies = pd.concat(frames, ignore_index=True) if frames else empty
        latencies.to_parquet(folder / "latencies.parquet", index=False)
        text = json.dumps(found.content, indent=1, allow_nan=False)
        (folder / "accuracy.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write {folder}: {error.strerror}") from error
