"""Real traces, whole, on real models: everything is served and the books balance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scenarios.load import parse_scenario
from scenarios.simulate import simulate
from sim.request import Status
from tests.helpers import SHARED

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
