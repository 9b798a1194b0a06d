"""Measure speed and size of the simulator: ``make bench`` or ``python -m tests.bench [--quick]``.

With ``--cpu-calibration`` alone, measure how well a calibration of this processor predicts a
transformer's decoding loop on it (two minutes; needs torch); ``make bench`` ends with this. With
``--fleet`` alone, run a million requests on 256 engines (ten minutes; `tests.bench.fleet`).

Rates are requests per second of one core's CPU time. Machines are noisy, so compare figures of one
run, and read medians. Every measurement is a process of its own, so that its memory is its own too.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench import fleet, sweep, waiting
from tests.properties.checkout import SHARED

AZURE = SHARED / "data" / "traces" / "azure_conv_2023.csv.gz"
TRACE_REQUESTS = 19_366
REPEATS = 3
SPECULATING: dict[str, Any] = {
    "simulation": None,
    "speculation": {"method": "eagle"},
    "less under load": {"method": "eagle", "drafts_by_seqs": {1: 5, 16: 2, 48: 0}},
}
"""What a simulation speculates with, by kind of measurement."""


def main() -> None:
    """Run and print all benchmarks."""
    source = "trace" if AZURE.exists() else "preset"
    print(f"One replica, Llama-3.1-8B on H200, Azure conversation {source}; work is a request")
    _row("requests/s", "simulated per core-s", "events", "plans", "steps")
    for rate_per_s in (2.0, 6.0, 10.0):
        runs = [_measure(TRACE_REQUESTS, rate_per_s, "simulation") for _ in range(REPEATS)]
        speed = statistics.median(run["requests_per_core_s"] for run in runs)
        work = [f"{runs[0][name]:.2f}" for name in ("events", "plans", "steps")]
        _row(f"{rate_per_s:g}", f"{speed:,.0f}", *work)

    _print_speculation()
    waiting.print_all()
    fleet.print_all(quick="--quick" in sys.argv)
    sweep.print_all(quick="--quick" in sys.argv)

    print("\nThe whole command (reading, simulation, books, summary), the trace repeated")
    _row("requests", "core-s", "us a request", "peak MiB", "bytes a request more")
    sizes = (20_000, 100_000) if "--quick" in sys.argv else (20_000, 100_000, 300_000, 1_000_000)
    first_peak = None
    for size in sizes:
        run = _measure(size, None, "command")
        first_peak = first_peak or run["peak_bytes"]
        more = (run["peak_bytes"] - first_peak) / max(size - sizes[0], 1)
        us = run["core_s"] / size * 1e6
        peak_mib = run["peak_bytes"] / 2**20
        _row(f"{size:,}", f"{run['core_s']:.1f}", f"{us:.1f}", f"{peak_mib:.0f}", f"{more:.0f}")

    print("\nFrom the shell, median of 5")
    small = "simulate --model llama-3.1-8b --preset azure-conv --num-requests 100"
    for command in ("--help", small):
        seconds = statistics.median(_shell_s(command) for _ in range(5))
        print(f"{seconds:8.2f} s  fleetcast {command}")
    print()
    print_cpu_calibration()


def _print_speculation() -> None:
    """Requests a second with drafts over those without: turn by turn, so that noise is shared."""
    print("\nThe same with 5 drafts of EAGLE, and with less under load, over without")
    _row("requests/s", "without", "eagle", "share", "less under load", "share")
    repeats = 1 if "--quick" in sys.argv else REPEATS
    for rate_per_s in (2.0, 6.0, 10.0):
        found: dict[str, list[float]] = {what: [] for what in SPECULATING}
        for _ in range(repeats):
            for what, speeds in found.items():
                run = _measure(TRACE_REQUESTS, rate_per_s, what)
                speeds.append(run["requests_per_core_s"])
        plain, eagle, less = (statistics.median(speeds) for speeds in found.values())
        shares = [f"{speed / plain:.0%}" for speed in (eagle, less)]
        cells = (f"{plain:,.0f}", f"{eagle:,.0f}", shares[0], f"{less:,.0f}", shares[1])
        _row(f"{rate_per_s:g}", *cells)


def print_cpu_calibration() -> None:
    """The decoding loop beside its prediction, or why it is left out."""
    print("A decoding loop on this processor, predicted from a calibration made in turns with it")
    if find_spec("torch") is None:
        print("left out: it needs torch (pip install 'fleetcast[calibrate]')")
        return
    from tests.bench.cpu_loop.run import compare
    from tests.bench.cpu_loop.text import comparison_lines

    quick = "--quick" in sys.argv
    with TemporaryDirectory() as folder:
        print("\n".join(comparison_lines(compare(Path(folder), quick=quick))))


def _row(*cells: str) -> None:
    print("".join(f"{cell:>22}" for cell in cells))


def _measure(num_requests: int, rate_per_s: float | None, what: str) -> dict[str, Any]:
    """Run this module in a fresh process and read what it measured."""
    arguments = [str(num_requests), str(rate_per_s), what]
    command = [sys.executable, "-m", "tests.bench", "--measure", *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def _child(num_requests: int, rate_per_s: float | None, what: str) -> None:
    from scenarios.build.builder import build
    from scenarios.build.workload.table import build_table
    from scenarios.files.load import parse_scenario
    from scenarios.run.simulate import simulate
    from sim.fleet.cluster import run_cluster

    workload: dict[str, Any] = {"num_requests": num_requests, "rate_per_s": rate_per_s}
    if AZURE.exists():
        workload["trace"] = {"path": str(AZURE)}
        workload["repeat"] = -(-num_requests // TRACE_REQUESTS)
    else:
        workload["preset"] = "azure-conv"
    engine = {"speculative": SPECULATING.get(what)}
    scenario = parse_scenario(
        {"model": "llama-3.1-8b", "engine": engine, "workload": workload, "bands": False}
    )
    started = time.process_time()
    if what in SPECULATING:
        built, table = build(scenario), build_table(scenario)
        started = time.process_time()
        log = run_cluster(table, built.pool)
    else:
        log = simulate(scenario).log
    core_s = time.process_time() - started
    work = {
        "events": log.num_events,
        "plans": sum(steps.plans for steps in log.steps),
        "steps": sum(steps.num_visible for steps in log.steps),
    }
    measured = {
        "core_s": core_s,
        "requests_per_core_s": num_requests / core_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **{name: count / num_requests for name, count in work.items()},
    }
    print(json.dumps(measured))


def _shell_s(arguments: str) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "scenarios.commands", *arguments.split()]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    if "--measure" in sys.argv:
        count, rate, kind = sys.argv[2:]
        _child(int(count), None if rate == "None" else float(rate), kind)
    elif "--cpu-calibration" in sys.argv:
        print_cpu_calibration()
    elif "--fleet" in sys.argv:
        fleet.print_all(quick="--quick" in sys.argv)
    else:
        main()
