"""`describe`: closed cases, and the public traces against their published statistics."""

import math
import os
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from sim.errors import TraceError
from sim.request_table import PrefixChains, request_table
from workloads.detect import read_trace
from workloads.stats import describe

SHARED = Path(os.environ.get("FLEETCAST_SHARED", Path(__file__).resolve().parents[2] / "shared"))
TRACES = SHARED / "data" / "traces"


@pytest.fixture
def traces() -> Path:
    if not TRACES.is_dir():
        pytest.skip(f"no public traces in {TRACES}; set FLEETCAST_SHARED to their folder")
    return TRACES


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
    arrival_s = np.array([0, 0.1, 0.2, 0.3, 4.0])
    statistics = describe(request_table(arrival_s, np.ones(5, np.int64), np.ones(5, np.int64)))
    assert statistics["idc_1s"] == pytest.approx(3.0)
    assert math.isnan(statistics["idc_10s"])
    assert statistics["requests_per_s"] == 1.0


def test_prefix_hits_stop_at_the_first_new_block() -> None:
    chains = PrefixChains(
        ids=np.array([0, 1, 2, 0, 1, 0, 5, 2, 0, 1, 2]),
        offsets=np.array([0, 3, 5, 8, 8, 11]),
        tokens=np.array([25, 20, 30, 9, 25]),
        block_tokens=10,
    )
    ones = np.ones(5, np.int64)
    table = request_table(np.arange(5.0), chains.tokens, ones, chains=chains)
    # Hits of 0, 20, 10, 0 and 25 tokens: the last block is partial.
    assert describe(table)["prefix_hit_fraction"] == pytest.approx(55 / 109)


PUBLISHED = {
    "azure_conv_2023.csv.gz": (
        True,
        {
            "num_requests": (19_366, 0),
            "span_s": (3502, 0.5),
            "requests_per_s": (5.53, 0.005),
            "interarrival_cv": (1.09, 0.005),
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
        },
    ),
    "mooncake_conversation.jsonl.gz": (
        False,
        {
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
            "prefix_blocks": (288_500, 0),
            "distinct_prefix_blocks": (182_790, 0),
            "prefix_hit_fraction": (0.3736, 0.00005),
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_public_traces_have_their_published_statistics(traces: Path, name: str) -> None:
    spread_ticks, published = PUBLISHED[name]
    statistics = describe(read_trace(traces / name, spread_ticks=spread_ticks))
    for key, (value, half_digit) in published.items():
        assert statistics[key] == pytest.approx(value, rel=0, abs=half_digit), key


def test_spreading_ticks_changes_short_windows_only(traces: Path) -> None:
    path = traces / "mooncake_conversation.jsonl.gz"
    spread, recorded = (describe(read_trace(path, spread_ticks=on)) for on in (True, False))
    assert spread["idc_1s"] < 1 < recorded["idc_1s"]
    assert spread["idc_60s"] == pytest.approx(recorded["idc_60s"], rel=0.05)
    assert spread["prefix_hit_fraction"] == recorded["prefix_hit_fraction"]


@pytest.mark.parametrize(
    "name",
    [
        "arxiv_summarization_lengths.csv.gz",
        "ragpulse_requests.jsonl.gz",
        "servegen_rates.csv.gz",
        "weka_agentic_a.csv.gz",
    ],
)
def test_traces_of_other_formats_are_not_guessed(traces: Path, name: str) -> None:
    with pytest.raises(TraceError, match="format not recognised"):
        read_trace(traces / name)


@pytest.mark.parametrize(
    ("name", "limit_s"),
    # Ten times what a quiet machine takes: a guard against a slower algorithm, not a benchmark.
    [("azure_conv_2023.csv.gz", 0.8), ("mooncake_conversation.jsonl.gz", 2.5)],
)
def test_traces_load_fast(traces: Path, name: str, limit_s: float) -> None:
    start_s = perf_counter()
    read_trace(traces / name)
    assert perf_counter() - start_s < limit_s
