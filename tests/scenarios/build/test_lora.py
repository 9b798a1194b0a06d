"""LoRA adapters of a scenario: memory, workload, engine, and what cannot be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.accounts import ADAPTERS, TIME_ACCOUNTS
from sim.books.ledger import time_books
from sim.books.run_accounts import gpu_time_ns
from sim.engine.adapters import BASE_MODEL, COLUMN
from sim.errors import ScenarioError
from sim.fleet.cluster import run_cluster
from tests.equivalence.runs import check_audited_jumps
from tests.properties.checkout import CHECKOUT


def scenario(lora: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    values = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "H100"},
        "workload": {"preset": "azure-conv", "num_requests": 200, "rate_per_s": 6.0},
        "bands": False,
    }
    return parse_scenario(values | sections | ({} if lora is None else {"lora": lora}))


def test_slots_take_memory_from_the_pool() -> None:
    plain, with_slots = build(scenario()), build(scenario({"max_loras": 8, "max_lora_rank": 64}))
    memory = with_slots.replica.memory
    slots = memory.workspace_bytes - plain.replica.memory.workspace_bytes
    assert slots == 8 * 4 * 2 * 41_943_040
    fewer = plain.replica.memory.blocks.num_gpu_blocks - memory.blocks.num_gpu_blocks
    assert fewer == pytest.approx(slots / memory.blocks.block_bytes, abs=1)


def test_who_uses_which_adapter() -> None:
    table = build_table(scenario({"adapters": 4, "zipf": 1.0, "share": 0.5, "max_loras": 4}))
    counts = Counter(table.extras[COLUMN].tolist())
    assert 70 < counts[BASE_MODEL] < 130
    assert counts[0] > counts[1] > counts[3] > 0
    longer = build_table(
        scenario(
            {"adapters": 4, "zipf": 1.0, "share": 0.5, "max_loras": 4},
            workload={"preset": "azure-conv", "num_requests": 400, "rate_per_s": 6.0},
        )
    )
    assert (longer.extras[COLUMN][:200] == table.extras[COLUMN]).all()


def test_adapters_share_no_prefixes() -> None:
    workload = {"preset": "chat-short", "num_requests": 300, "rate_per_s": 6.0}
    table = build_table(scenario({"adapters": 3}, workload=workload))
    assert table.chains is not None
    owners: dict[int, set[int]] = {}
    for row, adapter in enumerate(table.extras[COLUMN].tolist()):
        start, stop = table.chains.offsets[row : row + 2]
        for one in table.chains.ids[start:stop].tolist():
            owners.setdefault(one, set()).add(adapter)
    assert len(owners) > 10
    assert all(len(adapters) == 1 for adapters in owners.values())
    hits = [
        simulate(scenario({"adapters": n, "max_loras": 8}, workload=workload))
        .requests["cached_tokens"]
        .sum()
        for n in (1, 8)
    ]
    assert hits[1] < hits[0]


def test_sessions_keep_their_adapter() -> None:
    workload = {"preset": "agentic-coding", "num_requests": 300, "rate_per_s": 0.2}
    table = build_table(scenario({"adapters": 5}, workload=workload))
    assert table.session is not None
    pairs = set(zip(table.session.tolist(), table.extras[COLUMN].tolist(), strict=True))
    assert len(pairs) == len(np.unique(table.session))


def test_few_slots_keep_requests_waiting() -> None:
    few, many = (
        simulate(scenario({"adapters": 12, "max_loras": slots, "max_cpu_loras": 12}))
        for slots in (1, 12)
    )
    assert few.requests["ttft_s"].median() > 3 * many.requests["ttft_s"].median()
    facts = {f["name"]: f["value"] for f in few.summary["features"][0]["facts"]}
    assert facts["adapters per step, most"] == "1"
    assert int(facts["loads into slots"].replace(",", "")) > 10
    assert few.summary["saturation"] is None  # the estimate knows no slots
    assert few.summary["device_bytes"]["lora"] > 0


@pytest.mark.parametrize("slots", [1, 3])
def test_jumped_equals_stepped_and_the_books_balance(slots: int) -> None:
    lora = {"adapters": 6, "max_loras": slots, "max_cpu_loras": 4, "share": 0.8}
    workload = {"preset": "azure-conv", "num_requests": 60, "rate_per_s": 4.0}
    asked = scenario(lora, workload=workload)
    table, pool = build_table(asked), build(asked).pool
    check_audited_jumps(table, pool)
    log = run_cluster(table, pool)
    column = TIME_ACCOUNTS.index(ADAPTERS)
    kernels_ns = int(gpu_time_ns(log)[column])
    loads_ns = sum(ns for _, _, ns in log.steps[0].waits[ADAPTERS])
    assert 0 < kernels_ns < 0.5 * gpu_time_ns(log).sum()
    e2e_ns = time_books(log).e2e_ns
    finished = np.frombuffer(log.requests.finished_ns, np.int64)
    arrived = np.frombuffer(log.requests.arrival_ns, np.int64)
    assert (e2e_ns.sum(axis=1) == finished - arrived).all()
    assert e2e_ns[:, column].sum() > loads_ns > 0


@pytest.mark.parametrize(
    ("lora", "sections", "message"),
    [
        ({"max_loras": 4, "max_cpu_loras": 2}, {}, "max_cpu_loras 2 must be at least max_loras 4"),
        ({"max_lora_rank": 24}, {}, "lora.max_lora_rank"),
        ({"rank": 64}, {}, "at most max_lora_rank 16"),
        ({"zipf": -1}, {}, "lora.zipf"),
        ({}, {}, None),
        ({"adapters": 2}, {"engine": {"pipeline_parallel_size": 2}}, "tensor parallelism only"),
        (
            {"adapters": 2},
            {"pools": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]},
            "lora is not modelled with pools that only prefill",
        ),
    ],
)
def test_what_cannot_be(
    lora: dict[str, Any], sections: dict[str, Any], message: str | None
) -> None:
    if message is None:  # an empty section asks for nothing
        build(scenario(lora, **sections))
        return
    with pytest.raises(ScenarioError, match=message):
        build(scenario(lora, **sections))


def test_off_is_off() -> None:
    off = build(scenario({"enabled": False, "max_loras": 4}))
    assert not off.replica.added
    assert COLUMN not in build_table(scenario({"enabled": False, "max_loras": 4})).extras


def test_affinity_keeps_what_turns_lose() -> None:
    """`scenarios/adapters.yaml`, shortened."""
    path = CHECKOUT / "scenarios" / "adapters.yaml"
    short = ["workload.num_requests=2000", "bands=false"]
    attained = {
        router: simulate(load_scenario(path, [*short, *more])).summary["slo"]["attainment"]
        for router, more in {"affinity": [], "turns": ["pool.router=round_robin"]}.items()
    }
    assert attained["affinity"] > 0.95
    assert attained["turns"] < attained["affinity"] - 0.1
