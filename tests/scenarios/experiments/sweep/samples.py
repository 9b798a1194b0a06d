"""Small sweeps for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from scenarios.experiments.sweep.run import run_sweep

SCENARIO: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": {"preset": "azure-conv", "rate_per_s": 8, "num_requests": 60},
    "slo": {"ttft_s": 0.5, "tpot_s": 0.02},
}
DEADLY = """
import os, signal
from pathlib import Path
from policies.fcfs import fcfs

MARK = Path(__file__).with_name("killed")

def deadly(view):
    if view.now_s > 1 and not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return fcfs(view)
"""
RATES: dict[str, Any] = {"scenario": SCENARIO, "axes": {"workload.rate_per_s": [4, 8, 16]}}


def write_sweep_file(folder: Path, values: dict[str, Any], name: str = "rates") -> Path:
    """Write a sweep file and return its path."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def deadly_sweep(folder: Path) -> tuple[Path, Path]:
    """A sweep whose policy takes its process down once, in the middle; and the mark it leaves."""
    mark = folder / "killed"
    (folder / "deadly.py").write_text(DEADLY, encoding="utf-8")
    axes = {"workload.rate_per_s": [4, 8, 12, 16], "engine.scheduler": ["fcfs", "deadly.py:deadly"]}
    return write_sweep_file(folder, {"scenario": SCENARIO, "axes": axes}, "deadly"), mark


def run(file: Path, out: Path, **options: Any) -> pd.DataFrame:
    """Run a sweep here (or as ``options`` say) and read its table."""
    run_sweep(file, out=out, **({"jobs": 1} | options))
    return pd.read_parquet(out / "sweep.parquet")
