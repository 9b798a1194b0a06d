"""One measuring session: warm up, the grid of steps, serving runs, all into a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrate.engines.driver import CoreDriver
from calibrate.engines.grid import grid_points
from calibrate.engines.host import probe_host
from calibrate.engines.recording import RecordingFiles
from calibrate.engines.serving import poisson_arrivals, saturation_per_s, serve
from calibrate.engines.steps import measure_point, warm_up

LOADS = (0.3, 0.7)
"""Serving runs, as shares of the saturation rate that the measured steps tell."""
_DRAIN_S = 20.0


def measure_engine(
    driver: CoreDriver,
    info: dict[str, Any],
    folder: Path,
    *,
    key: str,
    grid: str,
    window_s: float,
    budget_s: float,
    say: Callable[[str], None],
) -> None:
    """Measure the grid, then serve each load for ``window_s`` seconds; 0: no serving runs.

    Nothing is begun that would not end within ``budget_s`` seconds.
    """
    start_s = time.perf_counter()

    def left_s() -> float:
        return budget_s - (time.perf_counter() - start_s)

    files = RecordingFiles(folder, key, info)
    files.info["host"].append(probe_host("start"))
    say("warming up")
    warm_up(driver)
    driver.restart_clock()
    points = grid_points(grid)
    runs_s = len(LOADS) * (window_s + _DRAIN_S) if window_s else 0.0
    for number, point in enumerate(points, 1):
        if left_s() < runs_s:
            say(f"time is up after {number - 1} of {len(points)} points")
            break
        with driver.given_contexts():
            rows = measure_point(driver, point)
        files.add_point(rows, driver.take_steps())
        found = ", ".join(f"{row['ms_median']:.2f} ms" for row in rows) or "does not fit"
        say(f"{number}/{len(points)} {point.name}: {found}")
    rate_per_s = saturation_per_s(files.info["e1"])
    files.info["saturation_estimate_req_per_s"] = rate_per_s
    longest = int(info["max_model_len"])
    for share in LOADS if window_s and rate_per_s else ():
        if left_s() < window_s:
            say("time is up")
            break
        rate = max(1, round(share * (rate_per_s or 0.0)))
        run = f"p{rate}"
        say(f"serving {rate} requests/s for {window_s:g} s")
        requests = serve(driver, run, poisson_arrivals(rate, window_s, longest, seed=rate))
        files.add_run(run, requests, driver.take_steps())
    files.info["host"].append(probe_host("end"))
    files.save_info()
