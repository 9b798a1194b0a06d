"""Real traces on real models: every request is served and the accounts balance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.request import Status
from tests.properties.checkout import SHARED

TRACES = SHARED / "data" / "traces"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "azure on 8B": ("azure_conv_2023.csv.gz", {"model": "llama-3.1-8b"}),
    "azure on 70B TP4": (
        "azure_conv_2023.csv.gz",
        {"model": "llama-3.1-70b", "engine": {"tensor_parallel_size": 4}},
    ),
    "mooncake on 8B": (
        "mooncake_conversation.jsonl.gz",
        {"model": "llama-3.1-8b", "pool": {"replicas": 4, "router": "least_loaded"}},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_whole_trace_is_served_and_the_books_balance(case: str) -> None:
    name, options = CASES[case]
    if not (TRACES / name).exists():
        pytest.skip(f"the trace {name} (shared/data/traces) is not here")
    workload = {"trace": {"path": str(TRACES / name)}}
    result = simulate(parse_scenario({**options, "workload": workload}))

    log, books = result.log, result.books
    status = np.frombuffer(log.requests.status, np.int8)
    assert set(status.tolist()) == {Status.FINISHED}
    arrival, first, finish = (
        np.frombuffer(getattr(log.requests, f"{name}_ns"), np.int64)
        for name in ("arrival", "first_token", "finished")
    )
    assert np.array_equal(books.e2e_ns.sum(axis=1), finish - arrival)
    assert np.array_equal(books.ttft_ns.sum(axis=1), first - arrival)
    assert (books.e2e_ns >= 0).all()
    memory = result.summary["device_bytes"]
    assert sum(memory.values()) == 2 * memory["total"]
    assert result.summary["requests"]["arrived"] == len(log.table)
    if log.table.chains is not None:
        hit = result.figure("cache_hit_fraction")
        assert hit is not None
        assert 0.04 < hit < 0.3736  # between the smallest LRU of the trace and an infinite one


PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "azure": ("azure_conv_2023.csv.gz", {"window_s": [600, 660]}),
    "mooncake": ("mooncake_conversation.jsonl.gz", {"window_s": [0, 30], "rate_per_s": 1}),
    "agentic, closed": ("weka_agentic_a.csv.gz", {"sessions_per_h": 120, "num_sessions": 2}),
    "agentic, open": (
        "weka_agentic_a.csv.gz",
        {"sessions_per_h": 120, "duration_s": 180, "trace": {"replay": "open"}},
    ),
    "ragpulse": ("ragpulse_requests.jsonl.gz", {"num_requests": 200, "rate_per_s": 2}),
    "sharegpt": ("sharegpt8k_lengths.csv.gz", {"num_requests": 200, "rate_per_s": 2}),
    "arxiv": ("arxiv_summarization_lengths.csv.gz", {"num_requests": 100, "max_concurrency": 8}),
    **{
        subset: (
            "servegen_rates.csv.gz",
            {"trace": {"subset": subset}, "window_s": [36_000, 36_060], "rate_per_s": 2},
        )
        for subset in ("deepseek-r1", "m-large", "m-mid", "m-small", "mm-image")
    },
}
"""A part of every trace that is small enough for a test: (file, what the workload says)."""


@pytest.mark.parametrize("case", PARTS)
def test_a_part_of_every_trace_is_simulated(case: str) -> None:
    name, options = PARTS[case]
    if not (TRACES / name).exists():
        pytest.skip(f"the trace {name} (shared/data/traces) is not here")
    trace = {"path": str(TRACES / name), **options.get("trace", {})}
    workload = {**options, "trace": trace}
    scenario = {"model": "llama-3.1-8b", "bands": False, "workload": workload}
    summary = simulate(parse_scenario(scenario)).summary
    requests = summary["requests"]
    assert requests["arrived"] > 10
    assert requests["finished"] > 0
    assert requests["finished"] + requests["rejected"] == requests["arrived"]
    # Agents' prompts may be longer than the model takes; nothing else is.
    assert not requests["rejected"] or name.startswith("weka")
    assert set(requests["reject_reasons"]) <= {"longer than max_model_len"}


def test_no_trace_is_left_out() -> None:
    if not TRACES.exists():
        pytest.skip("shared/data/traces is not here")
    companions = ("chunks", "sessions", "clients", "length_hist", "window_means", "README")
    traces = {f.name for f in TRACES.iterdir() if not any(word in f.name for word in companions)}
    assert traces == {name for name, _ in PARTS.values()}
