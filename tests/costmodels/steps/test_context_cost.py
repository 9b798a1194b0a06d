"""Context parallelism: limits, exchanges, memory, and refused layouts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.hardware.links import load_links
from costmodels.layouts.dealing import prompt_share
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.memory.device import DevicePlan
from costmodels.models.catalog import load_model
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from scenarios.build.builder import build
from scenarios.build.layout import replica_gpus
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError
from sim.shape import StepShape, chunk_shape, decode_shape, grown
from tests.properties.priced_steps import columns_of, longer, mixed_steps

H200 = load_gpu("h200")
LIMITS: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 512}


class ContextParallel(NamedTuple):
    """One layer's attention of one chunk."""

    seconds: float
    exposed_s: float
    """The part of ``seconds`` that exchanging keys and values adds to computing."""
    sent_bytes: float
    """By each rank."""


def context_parallel(
    *,
    attention_s: float,
    kv_bytes: float,
    ranks: int,
    bytes_per_s: float,
    latency_s: float = 0.0,
    mode: Literal["ring", "all_gather"] = "ring",
) -> ContextParallel:
    """Attention that takes one rank ``attention_s``, over ``ranks`` with equal parts of the work.

    ``kv_bytes`` are the keys and values of the whole prompt, cached prefix included. In a ring
    every rank passes its part on ranks - 1 times and attends to the part it holds meanwhile (causal
    prompts are cut so that all have as much to do). An all-gather comes before attention. Either
    way each rank sends (ranks - 1) / ranks of ``kv_bytes``.
    """
    if ranks < 1 or bytes_per_s <= 0:
        raise ValueError("ranks must be at least 1 and bytes_per_s above 0")
    each_s = attention_s / ranks
    passes = ranks - 1
    sent = passes / ranks * kv_bytes
    if not passes:
        return ContextParallel(each_s, 0.0, 0.0)
    if mode == "all_gather":
        gather_s = passes * latency_s + sent / bytes_per_s
        return ContextParallel(each_s + gather_s, gather_s, sent)
    pass_s = latency_s + kv_bytes / ranks / bytes_per_s
    block_s = each_s / ranks
    exposed_s = passes * max(0.0, pass_s - block_s)
    return ContextParallel(each_s + exposed_s, exposed_s, sent)


def compiled(model: str, **layout: Any) -> StepCost:
    return compile_step_cost(
        load_model(model), H200, StepOptions(layout=Layout(**layout), **LIMITS)
    )


def planned(model: str, **layout: Any) -> DevicePlan:
    return DevicePlan(load_model(model), H200, layout=Layout(**layout), **LIMITS)


ALONE = compiled("llama-3.1-8b")
COSTS = {
    "pcp2": compiled("llama-3.1-8b", prefill_context_parallel_size=2),
    "pcp4-ring": compiled(
        "llama-3.1-8b", prefill_context_parallel_size=4, prefill_context_parallel_mode="ring"
    ),
    "tp16-dcp2": compiled("llama-3.1-8b", tensor_parallel_size=16, decode_context_parallel_size=2),
    "mla-dcp8-pcp2": compiled(
        "deepseek-v3",
        tensor_parallel_size=8,
        decode_context_parallel_size=8,
        prefill_context_parallel_size=2,
    ),
    "pcp2-pp2": compiled("llama-3.1-8b", prefill_context_parallel_size=2, pipeline_parallel_size=2),
}


STEPS = mixed_steps(decodes=300, context=30_000, tokens=5000, start=50_000)


def seconds(cost: StepCost, shape: StepShape) -> float:
    return cost.price(shape).gpu_ns * 1e-9


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=20, deadline=None)
@given(shape=STEPS, more=st.integers(1, 200))
def test_longer_with_more_tokens_and_the_accounts_are_the_step(
    name: str, shape: StepShape, more: int
) -> None:
    cost = COSTS[name]
    gpu_ns = cost.price(shape).gpu_ns
    assert (gpu_ns > 0) == (shape.num_tokens > 0)
    assert cost.price(longer(shape, more)).gpu_ns >= 0.999 * gpu_ns
    split = {account: float(s[0]) for account, s in cost.split(columns_of(shape)).items()}
    assert min(split.values()) >= 0
    if cost.replica is None:
        assert sum(split.values()) * 1e9 == pytest.approx(gpu_ns, abs=20)
        described = cost.describe(shape)
        assert sum(row.seconds for row in described) * 1e9 == pytest.approx(gpu_ns, abs=2000)


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=10, deadline=None)
@given(seqs=st.integers(1, 300), context=st.integers(0, 3000))
def test_a_run_is_its_steps(name: str, seqs: int, context: int) -> None:
    cost, first = COSTS[name], decode_shape(seqs, context)
    run = cost.price_decodes(first, 12)
    found = [after - before for before, after in pairwise((0, *run.gpu_cumulative_ns))]
    assert found == [cost.price(grown(first, i)).gpu_ns for i in range(12)]


def test_one_rank_is_todays_cost() -> None:
    same = compiled("llama-3.1-8b", prefill_context_parallel_size=1, decode_context_parallel_size=1)
    assert same.price(decode_shape(64, 900)) == ALONE.price(decode_shape(64, 900))


@pytest.mark.parametrize("mode", ["all_gather", "ring"])
@pytest.mark.parametrize("tokens", [512, 8192])
def test_what_a_prompt_exchanges(mode: str, tokens: int) -> None:
    """A layer is the published cost function with the layer's bytes, link and attention."""
    ranks, start = 4, 60_000
    cost = compiled(
        "llama-3.1-8b", prefill_context_parallel_size=ranks, prefill_context_parallel_mode=mode
    )
    shape = chunk_shape(start, tokens)
    own = prompt_share(shape, ranks)
    model, links = load_model("llama-3.1-8b"), load_links(H200.name).fabric
    kernel = cost.compiled
    attention_ns = own.prefill_pairs * kernel.prefill_pair_fixed_ns
    kv_tokens = own.prefill_context_tokens + own.prefill_tokens
    assert kv_tokens == start + tokens
    attention_ns += kv_tokens * kernel.prefill_tile_fixed_ns
    kind = "send" if mode == "ring" else "gather"
    latency_s = links[f"{kind}_fixed_s"]
    if mode == "all_gather":
        latency_s = latency_s / (ranks - 1) + links["gather_hop_s"]
    assert H200.fabric_bytes_per_s is not None
    by_layer = context_parallel(
        attention_s=ranks * attention_ns / 2**32 * 1e-9 / 32,
        kv_bytes=kv_tokens * model.kv_bytes_per_token / 32,
        ranks=ranks,
        bytes_per_s=H200.fabric_bytes_per_s * links[f"{kind}_share"],
        latency_s=latency_s,
        mode=mode,  # type: ignore[arg-type]
    )
    added_s = seconds(cost, shape) - kernel.price(own).gpu_ns * 1e-9
    assert added_s == pytest.approx(32 * by_layer.exposed_s, rel=1e-3, abs=1e-8)
    row = next(row for row in cost.describe(shape) if row.name == "context_kv_exchange")
    assert row.comm_bytes == pytest.approx(32 * by_layer.sent_bytes)


def test_more_ranks_make_a_long_prompt_faster_and_a_ring_hides_its_keys() -> None:
    shape = chunk_shape(100_000, 8192)
    by_ranks = [
        seconds(compiled("llama-3.1-8b", prefill_context_parallel_size=n), shape)
        for n in (1, 2, 4, 8)
    ]
    assert by_ranks == sorted(by_ranks, reverse=True)
    assert 3 < by_ranks[0] / by_ranks[2] < 4
    ring, gather = (
        compiled(
            "llama-3.1-8b", prefill_context_parallel_size=4, prefill_context_parallel_mode=mode
        )
        for mode in ("ring", "all_gather")
    )
    assert seconds(ring, shape) < seconds(gather, shape)
    # Decodes are computed by all: what they save is reading, what they pay is merging.
    for context, is_faster in ((200, False), (100_000, True)):
        step = decode_shape(8, context)
        assert (seconds(COSTS["pcp2"], step) < seconds(ALONE, step)) == is_faster


def test_a_split_cache_is_read_in_parts() -> None:
    """DeepSeek's latents are whole on every tensor-parallel rank; split by context they are not."""
    whole = compiled("deepseek-v3", tensor_parallel_size=8)
    parts = {
        n: compiled("deepseek-v3", tensor_parallel_size=8, decode_context_parallel_size=n)
        for n in (2, 4, 8)
    }
    long = decode_shape(64, 60_000)
    reads = [
        float(cost.split(columns_of(long))["decode_state_reads"][0]) for cost in parts.values()
    ]
    assert reads == sorted(reads, reverse=True)
    assert seconds(parts[8], long) < seconds(whole, long)
    short = decode_shape(64, 200)
    assert seconds(parts[8], short) > seconds(whole, short)


def test_the_cache_of_a_rank_holds_as_many_more_tokens() -> None:
    def tokens(memory: DevicePlan) -> int:
        return memory.blocks.num_gpu_blocks * memory.blocks.block_size

    whole = planned("deepseek-v3", tensor_parallel_size=8)
    for ranks in (2, 4, 8):
        split = planned("deepseek-v3", tensor_parallel_size=8, decode_context_parallel_size=ranks)
        # Less the buffers of one more group that exchanges.
        more = split.communication_bytes - whole.communication_bytes
        lost = more // whole.blocks.block_bytes
        blocks, unsplit = split.blocks, whole.blocks.num_gpu_blocks
        assert unsplit - lost - 1 <= blocks.num_gpu_blocks <= unsplit - lost
        assert blocks.block_size == 16 * ranks
        assert split.weight_bytes == whole.weight_bytes
        parts = split.weight_bytes + split.workspace_bytes + blocks.num_bytes
        assert parts + blocks.free_bytes == H200.hbm_bytes
    shared = planned("llama-3.1-8b", prefill_context_parallel_size=4)
    alone = planned("llama-3.1-8b")
    assert tokens(shared) == pytest.approx(4 * tokens(alone), rel=3e-3)
    assert shared.weight_bytes == alone.weight_bytes
    rank = shard(load_model("llama-3.1-8b"), Layout(prefill_context_parallel_size=4))
    assert rank.kv_bytes_per_token == 131_072 // 4


@pytest.mark.parametrize(
    ("model", "layout", "reason"),
    [
        ("deepseek-v3", {"tensor_parallel_size": 8, "decode_context_parallel_size": 3}, "divide"),
        (
            "llama-3.1-8b",
            {"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
            "has 1 for each of its 8 KV heads",
        ),
        (
            "llama-3.1-8b",
            {"tensor_parallel_size": 32, "decode_context_parallel_size": 4},
            "",
        ),
        ("gpt-oss-20b", {"prefill_context_parallel_size": 2}, "whole contexts in every layer"),
        ("kimi-linear-48b-a3b", {"prefill_context_parallel_size": 2}, "it has kda"),
        (
            "qwen3-30b-a3b",
            {"prefill_context_parallel_size": 2, "enable_expert_parallel": True},
            "not priced with",
        ),
        ("llama-3.1-8b", {"prefill_context_parallel_size": 0}, "at least 1"),
    ],
)
def test_layouts_a_model_cannot_have(model: str, layout: dict[str, Any], reason: str) -> None:
    """The rules of vLLM's ``verify_with_parallel_config``, and what is not priced."""
    if not reason:
        compiled(model, **layout)
        return
    with pytest.raises(ScenarioError, match=reason):
        compiled(model, **layout)


def test_ranks_of_two_nodes_exchange_over_the_network() -> None:
    near = Layout(tensor_parallel_size=8, prefill_context_parallel_size=2)
    far = replace(near, gpus_per_node=8)
    shape = chunk_shape(10_000, 4000)
    inside, across = (
        compile_step_cost(load_model("llama-3.1-70b"), H200, StepOptions(layout=layout, **LIMITS))
        for layout in (near, far)
    )
    assert seconds(across, shape) > seconds(inside, shape)
    assert any("network" in str(source["what"]) for source in across.sources())
    assert across.evidence()["communication"] == "assumed"


def test_a_scenario_says_what_it_assumes() -> None:
    values: dict[str, Any] = {
        "model": "deepseek-v3",
        "hardware": {"gpu": "H200"},
        "engine": {
            "tensor_parallel_size": 8,
            "decode_context_parallel_size": 4,
            "prefill_context_parallel_size": 2,
        },
        "workload": {
            "generator": {"input_tokens": {"fixed": 20_000}, "output_tokens": {"fixed": 30}},
            "rate_per_s": 0.5,
            "num_requests": 30,
        },
        "bands": False,
    }
    scenario = parse_scenario(values)
    assert replica_gpus(scenario) == 16
    found = build(scenario)
    assert found.replica.memory.blocks.block_size == 128
    text = " ".join(found.notes)
    for part in ("split over 2 ranks", "4 ranks of a tensor-parallel", "16 on each of the 8 ranks"):
        assert part in text
    result = simulate(scenario)
    assert result.figure("ttft", "p50") is not None
    assert result.summary["conditions"]["decode_context_parallel_size"] == 4
    with pytest.raises(ScenarioError, match="context parallelism"):
        build(parse_scenario(values | {"engine": values["engine"] | {"cpu_offload_gb": 4}}))
