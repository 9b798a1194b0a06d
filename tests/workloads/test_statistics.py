"""`describe`: closed cases, brute force, and the public traces against published statistics."""

from __future__ import annotations

import math
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import NS_PER_S
from sim.request_table import PrefixChains, RequestTable, request_table
from tests.properties.checkout import SHARED
from tests.properties.tables import chains_of
from workloads.readers.detect import read_recording, read_trace
from workloads.statistics.arrival_stats import arrival_statistics, rate_by_hour, window_counts
from workloads.statistics.describe import correlation, describe, session_statistics

TRACES = SHARED / "data" / "traces"
MOONCAKE = "mooncake_conversation.jsonl.gz"


@pytest.fixture
def traces() -> Path:
    if not TRACES.is_dir():
        pytest.skip(f"no public traces in {TRACES}; set FLEETCAST_SHARED to their folder")
    return TRACES


def arrivals(*times_s: float) -> RequestTable:
    ones = np.ones(len(times_s), np.int64)
    return request_table(np.array(times_s), ones, ones)


# Closed cases


def test_empty_and_single_request() -> None:
    empty = describe(request_table(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)))
    assert empty["num_requests"] == 0
    assert math.isnan(empty["prompt_tokens_mean"])
    one = describe(request_table(np.ones(1), np.array([5]), np.array([0])))
    assert (one["prompt_tokens_p99"], one["output_tokens_max"], one["span_s"]) == (5, 0, 0)
    assert math.isnan(one["requests_per_s"])
    assert set(one) == set(empty)


def test_dispersion_counts_empty_windows() -> None:
    # Whole seconds hold 4, 0, 0, 0 arrivals: mean 1, variance 3.
    statistics = describe(arrivals(0, 0.1, 0.2, 0.3, 4.0))
    assert statistics["idc_1s"] == pytest.approx(3.0)
    assert math.isnan(statistics["idc_10s"])
    assert statistics["requests_per_s"] == 1.0


def test_drift_is_told_from_burstiness() -> None:
    """Poisson arrivals whose rate triples: steady within 5 minutes, scattered over minutes."""
    rng = np.random.default_rng(1)
    gaps_s = rng.exponential(np.repeat([0.3, 0.1], [4000, 12_000]))
    drifting = arrival_statistics((np.cumsum(gaps_s) * NS_PER_S).astype(np.int64))
    assert drifting["interarrival_cv_300s_p50"] == pytest.approx(1.0, abs=0.05)
    assert drifting["interarrival_cv"] > 1.15
    assert drifting["idc_60s"] > 30
    assert drifting["peak_over_mean_600s"] > 1.4
    # Pairs, at a steady rate: bursts at every scale, and no drift.
    pairs_s = np.repeat(np.cumsum(rng.exponential(0.4, 8000)), 2)
    bursty = arrival_statistics((pairs_s * NS_PER_S).astype(np.int64))
    assert bursty["interarrival_cv_300s_p50"] == pytest.approx(math.sqrt(3), abs=0.1)
    assert bursty["idc_60s"] == pytest.approx(2, abs=0.6)


def test_peak_over_whole_windows() -> None:
    table = arrivals(*range(0, 600, 10), *range(600, 1200, 2), 1201)
    assert window_counts(table.arrival_ns, 600).tolist() == [60, 300]
    assert describe(table)["peak_over_mean_600s"] == pytest.approx(300 / 180)


def test_hours_of_parts_of_days_count_by_the_time_they_cover() -> None:
    every_minute_s = np.arange(0, 2.4 * 86_400, 60)
    rate = rate_by_hour((every_minute_s * NS_PER_S).astype(np.int64))
    assert rate == pytest.approx(np.full(24, 1 / 60), rel=0.02)
    assert len(rate_by_hour(np.arange(86_000) * NS_PER_S)) == 0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=3, max_size=40))
def test_spearman_is_pearson_of_mean_ranks(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs).T
    found = correlation(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert math.isnan(found["pearson"])
        assert math.isnan(found["spearman"])
        return
    assert found["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    ranks = np.array([[np.flatnonzero(np.sort(v) == value).mean() for value in v] for v in (x, y)])
    assert found["spearman"] == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-9)


def test_prefix_hits_stop_at_the_first_new_block() -> None:
    chains = PrefixChains(
        ids=np.array([0, 1, 2, 0, 1, 0, 5, 2, 0, 1, 2]),
        offsets=np.array([0, 3, 5, 8, 8, 11]),
        tokens=np.array([25, 20, 30, 9, 25]),
        block_tokens=10,
    )
    ones = np.ones(5, np.int64)
    table = request_table(np.arange(5.0), chains.tokens, ones, chains=chains)
    found = describe(table)
    # Hits of 0, 20, 10, 0 and 25 tokens: the last block is partial.
    assert found["prefix_hit_fraction"] == pytest.approx(55 / 109)
    assert found["requests_with_hit_fraction"] == pytest.approx(3 / 5)
    assert found["blocks_used_once_fraction"] == pytest.approx(1 / 4)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.lists(st.integers(0, 12), unique=True, max_size=5)),
        min_size=2,
        max_size=12,
    )
)
def test_reuse_by_brute_force(rows: list[tuple[int, list[int]]]) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    times_s, chains = [t for t, _ in rows], [chain for _, chain in rows]
    tokens = np.array([max(4 * len(chain), 1) for chain in chains])
    table = request_table(
        np.array(times_s, float), tokens, tokens, chains=chains_of(chains, tokens.tolist(), 4)
    )
    found = describe(table)
    last: dict[int, int] = {}
    reuse_times_s, matched = [], []
    for time_s, chain in rows:
        known = [block in last for block in chain]
        matched.append(known.index(False) if False in known else len(known))
        reuse_times_s += [time_s - last[block] for block in chain if block in last]
        last |= dict.fromkeys(chain, time_s)
    assert found["matched_blocks_p90"] == pytest.approx(np.percentile(matched, 90))
    span_s = times_s[-1] - times_s[0]
    if reuse_times_s and span_s:
        assert found["reuse_time_s_p75"] == pytest.approx(np.percentile(reuse_times_s, 75))
    if span_s:
        early = [c for t, c in rows if t - times_s[0] <= span_s / 2]
        assert found["working_set_blocks_50pct"] == len({b for chain in early for b in chain})
    windows = [
        {b for t, chain in rows if (t - times_s[0]) // 60 == w for b in chain}
        for w in range(span_s // 60)
    ]
    if windows:
        assert found["distinct_blocks_60s"] == pytest.approx(np.mean([len(w) for w in windows]))


def test_sessions_open_and_closed() -> None:
    ones = np.ones(5, np.int64)
    session = np.array([4, 9, 4, 4, 2])
    table = request_table(np.array([0, 1, 2, 7, 8.0]), ones, ones, session=session)
    found = session_statistics(table)
    assert (found["num_sessions"], found["turns_max"]) == (3, 3)
    assert found["turns_mean"] == pytest.approx(5 / 3)
    assert found["single_turn_fraction"] == pytest.approx(2 / 3)
    assert found["turn_gap_s_p50"] == pytest.approx(3.5)
    assert "think_time_s_p50" not in found
    closed = request_table(
        np.zeros(5),
        ones,
        ones,
        session=session,
        after=np.array([-1, -1, 0, 2, -1]),
        think_ns=np.array([0, 0, 2, 6, 0]) * NS_PER_S,
    )
    found = session_statistics(closed)
    assert found["think_time_s_p50"] == pytest.approx(4)
    assert "turn_gap_s_p50" not in found
    assert session_statistics(arrivals(1, 2)) == {}


# Public traces: value, and half of the last digit published.
PUBLISHED = {
    ("azure_conv_2023.csv.gz", True): {
        "num_requests": (19_366, 0),
        "span_s": (3502, 0.5),
        "requests_per_s": (5.53, 0.005),
        "interarrival_cv": (1.09, 0.005),
        "interarrival_cv_300s_min": (1.0, 0.05),
        "interarrival_cv_300s_max": (1.2, 0.05),
        "idc_1s": (1.4, 0.05),
        "idc_10s": (3.9, 0.05),
        "idc_60s": (16, 0.5),
        "prompt_tokens_mean": (1155, 0.5),
        "prompt_tokens_p50": (1020, 0.5),
        "prompt_tokens_p90": (2735, 0.5),
        "prompt_tokens_p99": (4142, 0.5),
        "prompt_tokens_max": (14_050, 0),
        "output_tokens_mean": (211, 0.5),
        "output_tokens_p50": (129, 0.5),
        "output_tokens_p90": (424, 0.5),
        "output_tokens_p99": (601, 0.5),
        "output_tokens_max": (1000, 0),
        "pearson": (-0.11, 0.005),
        "spearman": (0.07, 0.005),
    },
    (MOONCAKE, False): {
        "num_requests": (12_031, 0),
        "span_s": (3537, 0.5),
        "requests_per_s": (3.40, 0.005),
        "interarrival_cv": (3.03, 0.005),
        "idc_1s": (7.9, 0.05),
        "idc_10s": (2.1, 0.05),
        "idc_60s": (2.9, 0.05),
        "prompt_tokens_mean": (12_035, 0.5),
        "prompt_tokens_p50": (6909, 0.5),
        "prompt_tokens_p90": (27_367, 0.5),
        "prompt_tokens_p99": (85_400, 0.5),
        "prompt_tokens_max": (126_195, 0),
        "output_tokens_mean": (343, 0.5),
        "output_tokens_p50": (350, 0.5),
        "output_tokens_p90": (597, 0.5),
        "output_tokens_p99": (1119, 0.5),
        "output_tokens_max": (2000, 0),
        "pearson": (0.07, 0.005),
        "spearman": (0.07, 0.005),
        "prefix_blocks": (288_500, 0),
        "distinct_prefix_blocks": (182_790, 0),
        "prefix_hit_fraction": (0.3736, 0.00005),
        "blocks_used_once_fraction": (0.758, 0.0005),
        "top_1pct_blocks_access_fraction": (0.122, 0.0005),
        "reuse_time_s_p25": (54, 0.5),
        "reuse_time_s_p50": (114, 0.5),
        "reuse_time_s_p75": (267, 0.5),
        "reuse_time_s_p90": (519, 0.5),
        "reuse_time_s_p99": (1578, 0.5),
        "stack_distance_blocks_p25": (4_300, 50),
        "stack_distance_blocks_p50": (8_400, 50),
        "stack_distance_blocks_p75": (17_800, 50),
        "stack_distance_blocks_p90": (31_600, 50),
        "stack_distance_blocks_p99": (85_300, 50),
        "matched_blocks_p50": (1, 0),
        "matched_blocks_p75": (7, 0),
        "matched_blocks_p90": (25, 0),
        "matched_blocks_p99": (106, 0.5),
        "working_set_blocks_10pct": (23_000, 500),
        "working_set_blocks_25pct": (50_000, 500),
        "working_set_blocks_50pct": (95_000, 500),
        "working_set_blocks_75pct": (138_000, 500),
        "working_set_blocks_100pct": (183_000, 500),
        "distinct_blocks_60s": (4_600, 50),
        "distinct_blocks_300s": (19_700, 50),
        "distinct_blocks_600s": (35_800, 50),
    },
    ("sharegpt8k_lengths.csv.gz", True): {"pearson": (0.04, 0.005), "spearman": (0.05, 0.005)},
    ("arxiv_summarization_lengths.csv.gz", True): {
        "pearson": (-0.46, 0.005),
        "spearman": (-0.11, 0.005),
    },
}


@pytest.mark.parametrize(("name", "spread_ticks"), PUBLISHED)
def test_public_traces_have_their_published_statistics(
    traces: Path, name: str, spread_ticks: bool
) -> None:
    statistics = describe(read_trace(traces / name, spread_ticks=spread_ticks))
    for key, (value, half_digit) in PUBLISHED[name, spread_ticks].items():
        assert statistics[key] == pytest.approx(value, rel=0, abs=half_digit), key


def test_ragpulse_has_its_published_sessions_and_hours(traces: Path) -> None:
    recording = read_recording(traces / "ragpulse_requests.jsonl.gz")
    sessions = session_statistics(recording.table, has_times=True)
    published = {"num_sessions": 3990, "turns_p90": 3, "turns_p99": 8, "turns_max": 25}
    assert {name: sessions[name] for name in published} == published
    assert sessions["turns_mean"] == pytest.approx(1.78, abs=0.005)
    assert sessions["turn_gap_s_p50"] == 40
    assert sessions["turn_gap_s_p90"] == pytest.approx(300, abs=0.5)
    hours = arrival_statistics(recording.table.arrival_ns)
    assert hours["interarrival_cv"] == pytest.approx(3.06, abs=0.005)
    assert hours["hour_swing"] == pytest.approx(485 / 20, rel=0.01)


def test_spreading_ticks_changes_short_windows_only(traces: Path) -> None:
    spread, recorded = (
        describe(read_trace(traces / MOONCAKE, spread_ticks=on)) for on in (True, False)
    )
    assert spread["idc_1s"] < 1 < recorded["idc_1s"]
    assert spread["idc_60s"] == pytest.approx(recorded["idc_60s"], rel=0.05)
    assert spread["prefix_hit_fraction"] == recorded["prefix_hit_fraction"]


@pytest.mark.parametrize(
    ("name", "limit_s"),
    # Ten times what a quiet machine takes: a guard against a slower algorithm, not a benchmark.
    [("azure_conv_2023.csv.gz", 0.8), (MOONCAKE, 2.5)],
)
def test_traces_load_fast(traces: Path, name: str, limit_s: float) -> None:
    start_s = perf_counter()
    read_trace(traces / name)
    assert perf_counter() - start_s < limit_s
