"""Kill runs at random instants and look at what they leave: ``python -m tests.attack.kills N``.

A result folder that is accepted must be of one run and whole; a sweep that is started again must
end with the table of an undisturbed one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import yaml

from reports.folder import read_requests, read_scenario, read_summary
from scenarios.experiments.sweep.run import run_sweep
from sim.errors import ScenarioError

_SCENARIO = {
    "model": "Qwen/Qwen3-0.6B",
    "workload": {
        "rate_per_s": 5,
        "num_requests": 30,
        "generator": {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 5}},
    },
    "bands": False,
}
_SWEEP = {"scenario": "s.yaml", "axes": {"workload.rate_per_s": [1, 2, 3, 4, 5, 6]}}
_CODE = "from scenarios.commands import main; main()"


def kill_simulate(folder: Path, after_s: float, rate: float) -> str | None:
    """Kill a run that writes into a folder with an older result; return what is wrong there."""
    out = folder / "out"
    rates = ["--set", f"workload.rate_per_s={rate}"]
    _killed(["simulate", str(folder / "s.yaml"), *rates, "--out", str(out)], after_s)
    try:
        summary, rows = read_summary(out), read_requests(out)
        read_scenario(out)
    except ScenarioError:
        return None  # refused, in words
    if len(rows) != summary["requests"]["arrived"]:
        return f"{len(rows)} rows, {summary['requests']['arrived']} arrived"
    return None


def kill_sweep(folder: Path, after_s: float, whole: pd.DataFrame) -> str | None:
    """Kill a sweep, go on with it, and return how its table differs from an undisturbed one."""
    out = folder / f"sweep-{after_s:.6f}"
    _killed(["sweep", str(folder / "w.yaml"), "--jobs", "1", "--out", str(out)], after_s)
    run_sweep(folder / "w.yaml", out=out, jobs=1)
    again = pd.read_parquet(out / "sweep.parquet")
    return None if again.equals(whole) else "the table is not that of an undisturbed sweep"


def _killed(arguments: list[str], after_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(after_s)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """Kill the asked number of runs, three of four while they write a result, and count faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.kills")
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    rng, faults = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "s.yaml").write_text(yaml.safe_dump(_SCENARIO))
        (folder / "w.yaml").write_text(yaml.safe_dump(_SWEEP))
        run_sweep(folder / "w.yaml", out=folder / "whole", jobs=1)
        whole = pd.read_parquet(folder / "whole" / "sweep.parquet")
        for number in range(options.number):
            after_s = rng.uniform(0.3, 3.0)
            if number % 4:
                fault = kill_simulate(folder, after_s, rng.choice([2, 5, 9]))
            else:
                fault = kill_sweep(folder, after_s, whole)
            if fault is not None:
                faults += 1
                print(f"killed after {after_s:.3f} s: {fault}", flush=True)
    print(f"seed {options.seed}: {options.number} kills, {faults} damaged, mixed or stale results")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
