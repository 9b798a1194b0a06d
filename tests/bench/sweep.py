"""Measure how long a sweep of many short runs takes, and how much of two cores it uses."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

POINTS = 1000
QUICK_POINTS = 60
REQUESTS = 2000
TARGET_S = 300.0
TARGET_EFFICIENCY = 0.85


class Measured(NamedTuple):
    """Measured times of one sweep."""

    wall_s: float
    cpu_s: float
    """Processor seconds of all its processes together."""
    simulation_s: float
    """CPU time inside simulations alone."""


def print_all(*, quick: bool) -> None:
    """Print the sweep's time on one and on two processes."""
    points = QUICK_POINTS if quick else POINTS
    print(f"\nA sweep of {points:,} points of {REQUESTS:,} requests ({os.cpu_count()} cores)")
    print(f"{'processes':>12}{'wall s':>10}{'CPU s':>10}{'in simulations':>16}{'points/s':>10}")
    runs = {}
    for jobs in (1, 2):
        # One process is only for the efficiency: a part of the points tells it.
        share = points if jobs == 2 else max(points // 10, QUICK_POINTS)
        run = runs[jobs] = measure(share, jobs)
        print(
            f"{jobs:>12}{run.wall_s:>10.1f}{run.cpu_s:>10.1f}"
            f"{run.simulation_s / run.cpu_s:>16.1%}{share / run.wall_s:>10.2f}"
        )
        runs[jobs] = Measured(*(value / share for value in run))
    all_s = runs[2].wall_s * POINTS
    print(f"{POINTS:,} points on two cores: {all_s:,.0f} s (bar: {TARGET_S:,.0f} s)")
    wall = runs[1].wall_s / (2 * runs[2].wall_s)
    # Of a machine that does other things, wall time says little; CPU time says what it would be.
    cpu = runs[1].cpu_s / runs[2].cpu_s * runs[2].simulation_s / runs[1].simulation_s
    print(
        f"efficiency on two cores: {wall:.0%} by wall time, {cpu:.0%} by CPU time a point against "
        f"one process (bar: {TARGET_EFFICIENCY:.0%}); load average {os.getloadavg()[0]:.1f}"
    )


def measure(points: int, jobs: int) -> Measured:
    """Run a sweep of that many points in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "bench.yaml", Path(folder) / "out"
        file.write_text(yaml.safe_dump(_sweep(points)), encoding="utf-8")
        command = [sys.executable, "-m", "scenarios.commands", "sweep", str(file)]
        before, started = _children_s(), time.perf_counter()
        subprocess.run(
            [*command, "--out", str(out), "--jobs", str(jobs)], check=True, capture_output=True
        )
        wall_s, cpu_s = time.perf_counter() - started, _children_s() - before
        content = json.loads((out / "sweep.json").read_text())
        assert content["run"]["simulated"] == points
        return Measured(wall_s, cpu_s, content["run"]["core_s"])


def _sweep(points: int) -> dict[str, Any]:
    """Rates and batch sizes around those of one H200."""
    return {
        "scenario": {
            "model": "llama-3.1-8b",
            "workload": {"preset": "azure-conv", "num_requests": REQUESTS},
            "slo": {"ttft_s": 0.5, "tpot_s": 0.02},
        },
        "axes": {
            "workload.rate_per_s": {"from": 2, "to": 12, "steps": max(points // 20, 2)},
            "engine.max_num_seqs": {"from": 32, "to": 1024, "steps": 20, "whole": True},
        },
    }


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
