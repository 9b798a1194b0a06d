"""Several pools in a scenario: inherited values, refusals, and the results of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scenarios.build.builder import build
from scenarios.files.load import load_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import FleetcastError

PREFILL = {"name": "p", "role": "prefill", "replicas": 2}
DECODE = {"name": "d", "role": "decode", "engine": {"max_num_seqs": 64}}
WORKLOAD = {
    "rate_per_s": 20,
    "num_requests": 60,
    "generator": {"input_tokens": {"fixed": 700}, "output_tokens": {"fixed": 20}},
}


def scenario(pools: list[dict[str, Any]], **sections: Any) -> Scenario:
    content = {"model": "llama-3.1-8b", "hardware": {"gpu": "H100"}, "workload": WORKLOAD}
    return Scenario.model_validate({**content, "pools": pools, **sections})


def test_a_pool_overrides_what_it_says_and_inherits_the_rest() -> None:
    built = build(
        scenario(
            [PREFILL, {**DECODE, "hardware": {"gpu": "H200"}}],
            engine={"max_num_batched_tokens": 4096, "tensor_parallel_size": 2},
        )
    )
    prefill, decode = (part.pool for part in built.parts)
    assert [part.replica.gpu.name for part in built.parts] == ["H100-SXM", "H200-SXM"]
    assert [part.replica.layout.tensor_parallel_size for part in built.parts] == [2, 2]
    assert prefill.engine.step_token_limit == decode.engine.step_token_limit == 4096
    assert (prefill.engine.running_seq_limit, decode.engine.running_seq_limit) == (1024, 64)
    assert (prefill.replicas, decode.replicas) == (2, 1)
    assert built.transfer is not None
    assert built.transfer.bytes_per_token == 131_072
    assert built.transfer.prefill_nic_bytes_per_s == 2 * 50e9


@pytest.mark.parametrize(
    ("pools", "sections", "message"),
    [
        ([PREFILL], {}, "prefill pools need a decode pool"),
        ([PREFILL, {**DECODE, "name": "p"}], {}, "two are called p"),
        ([PREFILL, {"name": "m"}], {}, "prefill pools need a decode pool"),
        ([PREFILL, DECODE, {"name": "m"}], {}, "a fleet is of mixed pools"),
        ([PREFILL, {**DECODE, "kv": {"cache_dtype": "fp8"}}], {}, "KV of different sizes"),
        ([PREFILL, DECODE], {"hardware": {"gpu": "MI300X"}}, "network of MI300X"),
    ],
)
def test_pools_that_cannot_be_are_refused(
    pools: list[dict[str, Any]], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(FleetcastError, match=message):
        build(scenario(pools, **sections))


def test_a_run_says_what_its_pools_are_and_can_be_repeated(tmp_path: Path) -> None:
    result = simulate(scenario([PREFILL, DECODE]))
    conditions = result.summary["conditions"]
    assert (conditions["gpus"], conditions["replicas"]) == (3, 3)
    assert [pool["role"] for pool in conditions["pools"]] == ["prefill", "decode"]
    assert result.figure("ttft", "p50") is not None
    assert result.summary["e2e_accounts_s"]["kv_transfer"] > 0
    folder = result.write(tmp_path / "run")
    again = simulate(load_scenario(str(folder / "scenario.yaml"), []))
    assert again.summary["figures"] == result.summary["figures"]


def test_mixed_pools_share_the_arrivals() -> None:
    result = simulate(scenario([{"name": "a"}, {"name": "b", "hardware": {"gpu": "a100"}}]))
    replicas = result.requests.replica.value_counts()
    assert dict(replicas) == {0: 30, 1: 30}
    by_gpu = result.requests.groupby("replica").e2e_s.median()
    assert by_gpu[1] > 1.2 * by_gpu[0]


def test_one_pool_spelt_as_several_is_the_same_run() -> None:
    alone = simulate(scenario([], pool={"replicas": 2}))
    listed = simulate(scenario([{"name": "a", "replicas": 2}]))
    assert listed.summary["figures"] == alone.summary["figures"]
