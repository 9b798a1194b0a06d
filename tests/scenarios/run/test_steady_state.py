"""Warm-up, replications and their intervals: the measured requests, and the certainty."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.files.load import parse_scenario
from scenarios.run.replications import t_interval, with_seed
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from sim.books.metrics import Slo, request_metrics
from sim.books.window import Window, gpu_busy, measured_window, time_weighted
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run
from tests.properties.tables import table_of

CHAT: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": {"preset": "azure-conv", "rate_per_s": 10, "duration_s": 30},
    "slo": {"ttft_s": 0.1, "tpot_s": 0.02},
    "bands": False,
}


def chat(**changes: Any) -> RunResult:
    return simulate(parse_scenario(CHAT | changes))


def test_requests_before_the_warmup_are_simulated_and_not_counted() -> None:
    whole, warm = chat(), chat(warmup_s=10)
    requests = whole.requests
    later = requests[(requests.arrival_s >= 10) & (requests.arrival_s <= requests.arrival_s.max())]
    assert np.array_equal(whole.requests.ttft_s, warm.requests.ttft_s)
    assert warm.requests.measured.sum() == len(later) == warm.summary["requests"]["arrived"]
    assert warm.figure("ttft") == pytest.approx(later.ttft_s.mean())
    assert warm.summary["slo"]["attainment"] == pytest.approx(later.good.mean())
    length_s = requests.arrival_s.max() - 10
    end_s = requests.arrival_s + requests.e2e_s
    finished = ((end_s >= 10) & (end_s <= requests.arrival_s.max())).sum()
    assert warm.figure("request_throughput") == pytest.approx(finished / length_s)
    assert warm.figure("goodput") == pytest.approx(later.good.sum() / length_s)


def test_a_warmup_longer_than_the_arrivals_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"warmup_s 40 leaves no request.*arrives at"):
        chat(warmup_s=40)


@settings(deadline=None, max_examples=40)
@given(
    cuts=st.lists(st.floats(0, 1), max_size=5),
    gaps=st.lists(st.floats(0, 0.05), min_size=1, max_size=20),
)
def test_windows_laid_end_to_end_add_up(cuts: list[float], gaps: list[float]) -> None:
    table = table_of(*((t, 20, 8) for t in np.cumsum(gaps)))
    log = small_run(table, engine=EngineConfig(), cost=AffineCost(launch_ns=500_000))
    whole = measured_window(log)
    edges = np.unique([0.0, 1.0, *cuts])
    ns = (whole.start_ns + edges * (whole.end_ns - whole.start_ns)).astype(int).tolist()
    windows = [Window(a, b) for a, b in itertools.pairwise(ns)]
    busy_ns = sum(gpu_busy(log, w) * (w.end_ns - w.start_ns) for w in windows)
    assert busy_ns == pytest.approx(sum(int(s.column("gpu_ns").sum()) for s in log.steps), abs=2)
    highest = max(time_weighted(log, "running", w)[2] for w in windows)
    assert highest == time_weighted(log, "running", whole)[2]


def test_each_class_has_its_own_targets() -> None:
    log = small_run(table_of((0, 10, 3), (0, 10, 3)), engine=EngineConfig())
    object.__setattr__(log.table, "class_index", np.array([0, 1]))
    object.__setattr__(log.table, "class_names", ("fast", "slow"))
    metrics = request_metrics(log, [Slo(ttft_s=1e-6), Slo(e2e_s=10.0)])
    assert metrics.met["ttft"].tolist() == [False, True]
    assert metrics.met["e2e"].tolist() == [True, True]
    assert metrics.good.tolist() == [False, True]


def test_replications_are_the_runs_of_their_seeds() -> None:
    together = chat(replications=3)
    scenario = parse_scenario(CHAT)
    alone = [simulate(with_seed(scenario, seed)) for seed in range(3)]
    for figure in together.summary["figures"]:
        values = [run.figure(figure["name"], figure["statistic"]) for run in alone]
        known = [value for value in values if value is not None]
        assert figure["value"] == pytest.approx(np.mean(known))
        low, high = figure["interval"]
        assert low <= figure["value"] <= high
    arrived = [run.summary["requests"]["arrived"] for run in alone]
    assert together.summary["requests"]["arrived"] == sum(arrived)
    assert together.summary["replications"] == {"count": 3, "first_seed": 0, "confidence": 0.95}
    # A figure that no seed touches has an interval of no width.
    assert together.figure("preemptions") == 0


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        low, high = t_interval(rng.normal(5, 2, 6).tolist())
        covered += low <= 5 <= high
    assert 0.935 <= covered / 2000 <= 0.965
