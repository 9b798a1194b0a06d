"""Free simulations of recorded serving runs, from arrivals alone: what the README says of them."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.engine_log import RequestRow, read_info, read_request_runs
from scenarios.build import build
from scenarios.load import parse_scenario
from sim.cluster import run_cluster
from sim.metrics import Slo, request_metrics
from sim.percentiles import statistics
from sim.request_table import request_table
from tests.helpers import SHARED

GROUNDTRUTH = SHARED / "data" / "groundtruth"
COMPILING_S = 8.0  # m2's p10 stalls on kernel compilation until then, by its README


@pytest.mark.parametrize(
    ("key", "model", "run", "from_s", "largest_error"),
    [
        ("m1", "llama-3.1-8b", "p10", 0.0, 0.035),
        ("m2", "qwen3-30b-a3b", "p10", COMPILING_S, 0.20),
        ("m2", "qwen3-30b-a3b", "p26", 0.0, 0.20),
    ],
)
def test_latencies_below_saturation(
    key: str, model: str, run: str, from_s: float, largest_error: float
) -> None:
    if not GROUNDTRUTH.exists():
        pytest.skip("the measured runs (shared/data/groundtruth) are not here")
    rows = read_request_runs(GROUNDTRUTH / f"{key}_requests.jsonl.gz")[run]
    rows.sort(key=lambda row: row.arrival)
    blocks = read_info(GROUNDTRUTH / f"{key}_info.json")["num_gpu_blocks"]
    table = request_table(
        np.array([row.arrival for row in rows]),
        np.array([row.prompt for row in rows]),
        np.array([row.out for row in rows]),
    )
    scenario = {
        "model": model,
        "kv": {"num_gpu_blocks": blocks},
        "workload": {"preset": "azure-conv"},
    }
    log = run_cluster(table, build(parse_scenario(scenario)).pool)

    metrics = request_metrics(log, Slo())
    scored = metrics.arrival_s >= from_s
    for name, measured in _measured(rows).items():
        ours = statistics(getattr(metrics, f"{name}_s")[scored])
        theirs = statistics(measured[scored])
        for statistic in ("p50", "p90", "p99"):
            expected = theirs[statistic]
            assert ours[statistic] == pytest.approx(expected, rel=largest_error), (name, statistic)
    last_s = max(row.finish for row in rows)
    assert log.end_ns / 1e9 == pytest.approx(last_s, rel=0.01)


def _measured(rows: list[RequestRow]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return {
        "ttft": np.array([row.first - row.arrival for row in rows]),
        "tpot": np.array([(row.finish - row.first) / max(row.out - 1, 1) for row in rows]),
        "e2e": np.array([row.finish - row.arrival for row in rows]),
    }
