"""Small sweeps for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from scenarios.sweep.command import run_sweep

SCENARIO: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": {"preset": "azure-conv", "rate_per_s": 8, "num_requests": 60},
    "slo": {"ttft_s": 0.5, "tpot_s": 0.02},
}
RATES: dict[str, Any] = {"scenario": SCENARIO, "axes": {"workload.rate_per_s": [4, 8, 16]}}


def write_sweep_file(folder: Path, values: dict[str, Any], name: str = "rates") -> Path:
    """A sweep file."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def run(file: Path, out: Path, **options: Any) -> pd.DataFrame:
    """Run a sweep here (or as ``options`` say) and read its table."""
    defaults: dict[str, Any] = {
        "jobs": 1,
        "cluster": None,
        "keep": False,
        "retry_failed": False,
        "as_json": False,
    }
    run_sweep(file, out=out, **(defaults | options))
    return pd.read_parquet(out / "sweep.parquet")
