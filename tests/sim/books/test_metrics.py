"""Latencies, percentiles and verdicts, checked against the times of the tokens."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from sim.books.metrics import Slo, chunked_statistics, itl_statistics, request_metrics, statistics
from sim.books.saturation import saturation
from sim.books.token_times import token_times_ns
from sim.books.window import measured_window, time_weighted
from sim.engine.config import EngineConfig
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run
from tests.properties.tables import table_of
from tests.properties.token_gaps import decode_gaps

STEP = AffineCost(base_s=10e-3, per_token_s=0, per_context_s=0)


def test_percentiles_are_values_that_occurred() -> None:
    values = np.array([4.0, 1.0, np.nan, 3.0, 2.0])
    assert statistics(values) == {
        "mean": 2.5,
        "p50": 2.0,
        "p90": 4.0,
        "p95": 4.0,
        "p99": 4.0,
        "max": 4.0,
    }


def test_weights_repeat_values() -> None:
    values, weights = np.array([1.0, 5.0, 2.0]), np.array([7, 1, 92])
    assert statistics(values, weights) == statistics(np.repeat(values, weights))


@settings(deadline=None, max_examples=50)
@given(
    values=st.lists(st.integers(0, 10**13), min_size=1, max_size=60),
    weights=st.lists(st.integers(1, 50), min_size=60, max_size=60),
    size=st.integers(1, 60),
)
def test_statistics_in_chunks_are_exact(values: list[int], weights: list[int], size: int) -> None:
    whole, weight = np.array(values), np.array(weights[: len(values)])
    chunks = [(whole[i : i + size], weight[i : i + size]) for i in range(0, len(values), size)]
    result, total = chunked_statistics(lambda: chunks)
    assert total == weight.sum()
    assert result == pytest.approx(statistics(whole.astype(float), weight))


def test_no_values_have_no_statistics() -> None:
    assert set(statistics(np.array([np.nan])).values()) == {None}


def test_ttft_tpot_and_verdicts() -> None:
    # Planned at 0: tokens at 10, 20, 30 ms; the second request has one token and no TPOT.
    log = small_run(table_of((0, 10, 3), (0, 10, 1)), engine=EngineConfig(), cost=STEP)
    metrics = request_metrics(log, Slo(ttft_s=0.010, tpot_s=0.009))
    assert metrics.ttft_s.tolist() == [0.010, 0.010]
    assert metrics.tpot_s[0] == pytest.approx(0.010)
    assert np.isnan(metrics.tpot_s[1])
    assert metrics.good.tolist() == [False, True]
    assert metrics.window.length_s == log.end_ns / 1e9


def test_a_rejected_request_is_not_good() -> None:
    engine = EngineConfig(max_model_len=50)
    log = small_run(table_of((0, 100, 3), (0, 10, 1)), engine=engine, cost=STEP)
    metrics = request_metrics(log, Slo())
    assert metrics.good.tolist() == [False, True]
    assert np.isnan(metrics.e2e_s[0])


@pytest.mark.parametrize("blocks", [4000, 60])
def test_gaps_from_steps_equal_gaps_from_tokens(blocks: int) -> None:
    """The quick way, a weighted gap a step, against every request's own tokens."""
    rng = np.random.default_rng(3)
    rows = zip(
        np.cumsum(rng.exponential(0.05, 120)),
        rng.integers(1, 90, 120),
        rng.integers(1, 40, 120),
        strict=True,
    )
    engine = EngineConfig(replica_blocks=blocks, block_size=4, max_model_len=200)
    log = small_run(table_of(*rows), engine=engine)
    assert (blocks == 4000) == (not log.requests.recomputes)
    gaps, weights = decode_gaps(log)
    own = np.concatenate([np.diff(token_times_ns(log, i)) for i in range(120)])
    assert np.array_equal(np.sort(np.repeat(gaps, weights)), np.sort(own))
    itl, count = itl_statistics(log, request_metrics(log, Slo()))
    assert count == len(own)
    assert itl == pytest.approx(statistics(own / 1e9))


def test_state_is_weighted_by_time() -> None:
    log = small_run(
        table_of((0, 10, 4), (0.015, 10, 1)), engine=EngineConfig(async_scheduling=False), cost=STEP
    )
    mean, _, highest = time_weighted(log, "running", measured_window(log))
    assert mean == pytest.approx(5 / 4)
    assert highest == 2


def test_saturation_is_where_the_simulated_throughput_ends() -> None:
    """Far past saturation the run serves what the fluid estimate says, within 10%."""
    rows = [(i * 1e-3, 400, 50) for i in range(4000)]
    log = small_run(
        table_of(*rows), engine=EngineConfig(replica_blocks=4000, running_seq_limit=256)
    )
    limit = saturation(log)
    assert limit is not None
    assert limit.load is not None
    assert limit.load > 5
    assert 4000 / measured_window(log).length_s == pytest.approx(limit.saturation_per_s, rel=0.1)


def test_closed_loops_have_no_offered_rate() -> None:
    log = small_run(table_of(*[(0, 10, 3)] * 9, max_concurrency=3), engine=EngineConfig())
    limit = saturation(log)
    assert limit is not None
    assert limit.load is None
