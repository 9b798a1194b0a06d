"""Fresh replicas of a scenario that compile kernels while they serve."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.build.builder import build
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.accounts import LAUNCH_AND_HOST
from sim.errors import ScenarioError


def scenario(kernel_cache: str | None = None, **sections: Any) -> Scenario:
    values: dict[str, Any] = {
        "model": "gpt-oss-20b",
        "hardware": {"gpu": "H200"},
        "workload": {"preset": "azure-conv", "num_requests": 150, "rate_per_s": 5.0},
        "bands": False,
    }
    startup = {} if kernel_cache is None else {"startup": {"kernel_cache": kernel_cache}}
    return parse_scenario(values | sections | startup)


def test_a_fresh_replica_is_slow_until_its_buckets_are_met() -> None:
    warm, fresh = simulate(scenario()), simulate(scenario("lost"))
    assert warm.log.steps[0].waits == {}
    stalls = fresh.log.steps[0].waits[LAUNCH_AND_HOST]
    steps = fresh.steps
    tokens = steps.decode_seqs + steps.prefill_tokens
    graph = build(scenario()).replica.cost.largest_graph()
    assert len(stalls) == len({-(-n // 32) for n in tokens if n > graph}) > 10
    assert all(ns == 864_000_000 for _, _, ns in stalls)
    slow, fast = fresh.figure("ttft", "p50"), warm.figure("ttft", "p50")
    assert slow is not None
    assert fast is not None
    assert slow > 5 * fast
    told = {fact["name"]: fact["value"] for fact in fresh.summary["features"][0]["facts"]}
    assert told["compiled"] == f"{len(stalls)}"


def test_what_stalls_is_the_hosts_time_and_scales_with_it() -> None:
    slow = simulate(scenario("lost", engine={"host_speed_factor": 2.0}))
    assert {ns for _, _, ns in slow.log.steps[0].waits[LAUNCH_AND_HOST]} == {1_728_000_000}


def test_other_models_compile_nothing_and_say_so() -> None:
    of_dense = scenario("kept", model="llama-3.1-8b")
    built = build(of_dense)
    assert built.pool.make_features == ()
    assert any("startup.kernel_cache" in note for note in built.notes)
    assert not any("kernel_cache" in note for note in build(scenario(model="llama-3.1-8b")).notes)


def test_notes_count_the_buckets() -> None:
    built = build(scenario("kept"))
    graph = built.replica.cost.largest_graph()
    (note,) = [note for note in built.notes if "compiles" in note]
    assert f"{(8192 - graph) // 32} times" in note
    assert "0.86 s (measured)" in note


def test_ranks_with_steps_of_their_own_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"startup\.kernel_cache"):
        build(scenario("lost", engine={"data_parallel_size": 2}))
    build(scenario("lost", engine={"tensor_parallel_size": 2}))


def test_a_crash_empties_the_cache_only_where_it_is_lost() -> None:
    def compiled_twice(kernel_cache: str) -> int:
        faults = {"schedule": [{"kind": "engine_crash", "replica": 0, "at_s": 15}]}
        startup = {"process_s": 1, "kernel_cache": kernel_cache}
        run = simulate(scenario(faults=faults, startup=startup, clients={"max_retries": 20}))
        assert (run.requests.status == "finished").all()
        tokens = (run.steps.decode_seqs + run.steps.prefill_tokens).tolist()
        rows = [row for row, _, _ in run.log.steps[0].waits[LAUNCH_AND_HOST]]
        return len(rows) - len({-(-tokens[row] // 32) for row in rows})

    assert compiled_twice("kept") == 0
    assert compiled_twice("lost") > 0
