"""Weights and state off the device: limits, monotonicity, memory, and how scenarios configure
it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.hardware.links import host_link, stage_link
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.memory.device import DevicePlan
from costmodels.memory.streaming import Offload, rank_offload
from costmodels.models.catalog import load_model
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from scenarios.build.builder import build
from scenarios.build.pools import Build
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError
from sim.shape import StepShape, chunk_shape, decode_shape, grown
from tests.properties.priced_steps import columns_of, longer, mixed_steps
from tests.published.models.offload import wide_area_step_s

GIB = 1 << 30
H100 = load_gpu("h100")
LINK = host_link(H100)
LLAMA = load_model("llama-3.1-8b")
LOAD: dict[str, Any] = {
    "generator": {"input_tokens": {"fixed": 300}, "output_tokens": {"fixed": 20}}
}
LOAD |= {"rate_per_s": 5.0, "num_requests": 40}


def compiled(offload: Offload | None, layout: Layout | None = None) -> StepCost:
    return compile_step_cost(
        LLAMA,
        H100,
        StepOptions(
            layout=layout or Layout(),
            max_num_batched_tokens=4096,
            max_num_seqs=512,
            offload=offload,
        ),
    )


def on_host(percent: float, **more: Any) -> Offload:
    return Offload(link=LINK, weights_host=Fraction(percent) / 100, **more)


PLAIN = compiled(None)
COSTS = {
    "half": compiled(on_host(50)),
    "all": compiled(on_host(100)),
    "disk": compiled(Offload(link=LINK, weights_disk=Fraction(1, 4))),
    "in place": compiled(Offload(link=LINK, cpu_offload_bytes=8 * GIB)),
    "kv": compiled(Offload(link=LINK, kv_host=Fraction(1, 2), host_bytes=64 * GIB)),
    "pp2": compiled(on_host(50), Layout(pipeline_parallel_size=2)),
}
SHARES = {
    percent: compiled(on_host(percent)) if percent != 100 else COSTS["all"]
    for percent in (0, 5, 10, 25, 50, 100)
}
DECODES = decode_shape(8, 1000)
CHUNK = chunk_shape(100, 2000)


STEPS = mixed_steps(decodes=300, context=4000, tokens=1800, start=9_000)


# Prices


@settings(max_examples=40, deadline=None)
@given(shape=STEPS, percent=st.sampled_from([10, 50, 100]))
def test_nothing_streamed_is_todays_price_and_more_is_never_faster(
    shape: StepShape, percent: int
) -> None:
    price = PLAIN.price(shape)
    assert SHARES[0].price(shape) == price
    if shape.num_tokens:
        fewer, more = (SHARES[share].price(shape) for share in (percent // 2, percent))
        assert price.gpu_ns <= fewer.gpu_ns <= more.gpu_ns
        assert more[1:] == price[1:]


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=20, deadline=None)
@given(shape=STEPS, more=st.integers(1, 200))
def test_longer_with_more_tokens_and_the_accounts_are_the_step(
    name: str, shape: StepShape, more: int
) -> None:
    cost = COSTS[name]
    gpu_ns = cost.price(shape).gpu_ns
    assert cost.price(longer(shape, more)).gpu_ns >= 0.999 * gpu_ns
    split = {account: float(s[0]) for account, s in cost.split(columns_of(shape)).items()}
    assert min(split.values()) >= 0
    # A pipeline's micro-batches deal whole sequences: a column's mean differs by less than one.
    if name != "pp2":
        assert sum(split.values()) * 1e9 == pytest.approx(gpu_ns, abs=20)


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=10, deadline=None)
@given(seqs=st.integers(1, 300), context=st.integers(0, 3000))
def test_a_run_is_its_steps(name: str, seqs: int, context: int) -> None:
    cost, first = COSTS[name], decode_shape(seqs, context)
    run = cost.price_decodes(first, 12)
    found = [after - before for before, after in pairwise((0, *run.gpu_cumulative_ns))]
    assert found == [cost.price(grown(first, i)).gpu_ns for i in range(12)]
    assert run.shortest_ns == min(found)


def test_a_layer_takes_the_longer_of_its_transfer_and_its_computing() -> None:
    layer_bytes = shard(LLAMA, 1).layer_weight_bytes
    transfer_s = layer_bytes / LINK.to_device_bytes_per_s
    with_head, without = (PLAIN.price(StepShape(8, 0, logits=n)).gpu_ns for n in (8, 0))
    head_s = (with_head - without) * 1e-9
    # Few tokens: the transfer alone counts. (LM head and sampling come after the layers.)
    small = COSTS["all"].price(DECODES).gpu_ns * 1e-9
    assert small == pytest.approx(transfer_s + head_s, rel=1e-4)
    # Many tokens hide it: ZeRO-Inference's point.
    large = chunk_shape(0, 4096)
    assert SHARES[25].price(large) == PLAIN.price(large)
    assert SHARES[25].price(DECODES).gpu_ns > 5 * PLAIN.price(DECODES).gpu_ns


def test_layers_read_in_place_are_not_hidden_by_those_that_stay() -> None:
    offload = Offload(link=LINK, cpu_offload_bytes=4 * GIB)
    whole = shard(LLAMA, 1).layer_weight_bytes
    ahead = on_host(float(100 * Fraction(4 * GIB, whole)))
    for shape in (DECODES, CHUNK):
        assert compiled(offload).price(shape).gpu_ns >= compiled(ahead).price(shape).gpu_ns
    kernels_s = PLAIN.price(DECODES).gpu_ns * 1e-9
    in_place_s = compiled(offload).price(DECODES).gpu_ns * 1e-9
    streamed_s = 4 * GIB / LINK.to_device_bytes_per_s
    assert streamed_s < in_place_s < kernels_s + streamed_s


def test_disks_are_slower_than_hosts_and_state_is_read_in_every_step() -> None:
    share = Fraction(1, 4)
    disk = compiled(Offload(link=LINK, weights_disk=share)).price(DECODES).gpu_ns
    host = SHARES[25].price(DECODES).gpu_ns
    assert disk > 10 * host
    step = decode_shape(64, 4000)
    state = LLAMA.kv_bytes_per_token * step.decode_context_tokens / 2
    seconds = COSTS["kv"].price(step).gpu_ns * 1e-9
    assert seconds >= state / LINK.to_device_bytes_per_s
    posted = COSTS["kv"].split(columns_of(step))
    assert posted["decode_state_reads"][0] > 0.9 * seconds


# Memory


@settings(max_examples=30, deadline=None)
@given(percent=st.integers(0, 100), ranks=st.sampled_from([1, 2, 4]))
def test_streamed_weights_leave_the_device_but_for_two_layers(percent: int, ranks: int) -> None:
    rank = shard(LLAMA, ranks)
    away = rank_offload(rank, on_host(percent))
    if not percent:
        assert away.freed_bytes == 0
        return
    layers = rank.layer_weight_bytes
    assert away.host_weight_bytes == layers * percent // 100
    assert away.buffer_bytes == pytest.approx(layers * percent / 100 * 2 / 32, abs=1)
    memory = DevicePlan(
        LLAMA,
        H100,
        layout=Layout(tensor_parallel_size=ranks),
        offload=on_host(percent),
        max_num_batched_tokens=4096,
        max_num_seqs=256,
    )
    parts = memory.weight_bytes + memory.workspace_bytes + memory.blocks.num_bytes
    assert parts + memory.blocks.free_bytes == H100.hbm_bytes
    assert memory.weight_bytes == rank.weight_bytes - away.freed_bytes


def test_tensor_parallel_ranks_never_hold_more() -> None:
    resident = [
        shard(LLAMA, n).weight_bytes - rank_offload(shard(LLAMA, n), on_host(60)).freed_bytes
        for n in (1, 2, 4, 8)
    ]
    assert resident == sorted(resident, reverse=True)


# Scenarios


def built(model: str, gpu: str, hardware: dict[str, Any] | None = None, **sections: Any) -> Build:
    values = {"model": model, "hardware": {"gpu": gpu, **(hardware or {})}, "workload": LOAD}
    return build(parse_scenario(values | sections))


def test_a_70b_model_runs_on_one_h100() -> None:
    with pytest.raises(ScenarioError, match="does not fit"):
        built("llama-3.1-70b", "H100")
    found = built("llama-3.1-70b", "H100", engine={"cpu_offload_gb": 80})
    assert found.replica.memory.away.host_weight_bytes == 80 * GIB
    assert found.replica.memory.blocks.num_gpu_blocks > 1000
    step_s = found.replica.cost.price(decode_shape(1, 500)).gpu_ns * 1e-9
    assert step_s > 80 * GIB / 64e9
    assert found.replica.cost.evidence()["decode_weight_reads"] == "datasheet"
    assert any("80.00 GiB of weights" in note for note in found.notes)
    scenario = parse_scenario(
        {
            "model": "llama-3.1-70b",
            "hardware": {"gpu": "H100"},
            "engine": {"cpu_offload_gb": 80},
            "workload": LOAD | {"num_requests": 4, "rate_per_s": 0.05},
            "bands": False,
        }
    )
    result = simulate(scenario)
    tpot_s = result.figure("tpot", "p50")
    assert tpot_s is not None
    assert tpot_s > 1


def test_flexgen_beats_zero_inference_by_its_batch() -> None:
    """OPT-30B on a T4, 208 GB of DRAM, 512 in and 32 out: 7.32 against 0.60 tokens a second."""
    hardware = {"host_memory_gb": 193}
    weights = {"weights_gpu_percent": 10, "weights_host_percent": 90}
    kv = {"kv_gpu_percent": 0, "kv_host_percent": 100}
    flexgen = built("opt-30b", "T4", hardware, offload=weights | kv)
    all_on_host = {"weights_gpu_percent": 0, "weights_host_percent": 100}
    zero = built("opt-30b", "T4", hardware, offload=all_on_host)

    def sequences(found: Build) -> int:
        blocks = found.replica.memory.blocks
        return (blocks.num_gpu_blocks - 1) // -(-544 // blocks.block_size)

    def tokens_per_s(found: Build, batch: int) -> float:
        return batch / (found.replica.cost.price(decode_shape(batch, 528)).gpu_ns * 1e-9)

    assert sequences(flexgen) >= 144  # the batches of the authors' scripts: 144, and 4
    assert 4 <= sequences(zero) < 16
    rates = tokens_per_s(flexgen, 144), tokens_per_s(zero, 4)
    assert 8 < rates[0] / rates[1] < 18  # 12 as published
    assert rates[1] == pytest.approx(0.60, rel=0.5)
    # State on the host is bounded by the host: half its memory, half the blocks.
    less = built("opt-30b", "T4", {"host_memory_gb": 100}, offload=weights | kv)
    blocks, fewer = flexgen.replica.memory.blocks, less.replica.memory.blocks
    assert fewer.num_gpu_blocks < 0.6 * blocks.num_gpu_blocks


@pytest.mark.parametrize(
    ("hardware", "sections", "reason"),
    [
        ({}, {"offload": {"weights_host_percent": 60}}, "must add up to 100: .* = 160"),
        ({}, {"offload": {"kv_gpu_percent": 0}}, "must add up to 100"),
        (
            {"host_memory_gb": 4},
            {"engine": {"cpu_offload_gb": 8}},
            "8.0 GiB of weights .* has 4 .hardware.host_memory_gb",
        ),
        (
            {},
            {"offload": {"kv_gpu_percent": 50, "kv_host_percent": 50}},
            "set hardware.host_memory_gb",
        ),
        (
            {},
            {
                "engine": {"cpu_offload_gb": 8},
                "offload": {"weights_gpu_percent": 50, "weights_host_percent": 50},
            },
            "give one",
        ),
        ({"stage_link": "wan-100mbit-100ms"}, {}, "set engine.pipeline_parallel_size"),
        (
            {"stage_link": "wan-9"},
            {"engine": {"pipeline_parallel_size": 2}},
            "unknown stage link",
        ),
        (
            {"stage_link_latency_s": 0.1},
            {"engine": {"pipeline_parallel_size": 2}},
            "needs both",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    hardware: dict[str, Any], sections: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ScenarioError, match=reason):
        built("llama-3.1-8b", "H100", hardware, **sections)


def test_windows_and_shared_experts_are_not_priced_with_it() -> None:
    kv = {"kv_gpu_percent": 50, "kv_host_percent": 50}
    with pytest.raises(ScenarioError, match="whole contexts; it has sliding"):
        built("gpt-oss-20b", "H100", {"host_memory_gb": 64}, offload=kv)
    engine = {"data_parallel_size": 2, "enable_expert_parallel": True, "cpu_offload_gb": 4}
    with pytest.raises(ScenarioError, match="data_parallel_size above 1"):
        built("qwen3-30b-a3b", "H100", engine=engine)


def test_more_than_the_layers_is_all_of_them_and_says_so() -> None:
    found = built("llama-3.1-8b", "H100", engine={"cpu_offload_gb": 500})
    assert found.replica.memory.away.host_weight_bytes == shard(LLAMA, 1).layer_weight_bytes
    assert any("all of them are in host memory" in note for note in found.notes)


# Stages far apart


def test_stages_far_apart_add_their_hops() -> None:
    """Petals: a token passes all stages, and its hidden state two hops more."""
    near = compiled(None, Layout(pipeline_parallel_size=4))
    link = stage_link("wan-100mbit-100ms")
    assert link is not None
    far = compiled(None, Layout(pipeline_parallel_size=4, stage_link=link))
    shape = decode_shape(1, 500)
    added_s = (far.price(shape).gpu_ns - near.price(shape).gpu_ns) * 1e-9
    by_hand = wide_area_step_s([0.0] * 4, 2 * link.latency_s, 2 * 4096 * 2, link.bytes_per_s)
    assert added_s == pytest.approx(by_hand, rel=1e-3)
    split = far.split(columns_of(shape))
    assert split["communication"][0] == pytest.approx(by_hand, rel=1e-3)
    assert far.evidence()["communication"] == "reported"
    quick = replace(link, latency_s=0.0)
    nearer = compiled(None, Layout(pipeline_parallel_size=4, stage_link=quick))
    assert nearer.price(shape).gpu_ns < far.price(shape).gpu_ns
    ours = stage_link(None, latency_s=0.0, bytes_per_s=12.5e6)
    assert ours is not None
    assert ours.client_hops == 0


def test_petals_beats_offloading_a_model_of_176b() -> None:
    """BLOOM-176B: three A100s apart make about a step a second, one that offloads a tenth."""
    hardware = {"stage_link": "wan-100mbit-100ms"}
    engine = {"pipeline_parallel_size": 6}
    petals = built("bloom-176b", "A100", hardware, engine=engine)
    whole = {"weights_gpu_percent": 0, "weights_host_percent": 100}
    streamed = built("bloom-176b", "A100", offload=whole)
    step = decode_shape(1, 500)
    petals_s, streamed_s = (
        found.replica.cost.price(step).gpu_ns * 1e-9 for found in (petals, streamed)
    )
    assert 0.3 < petals_s < 1.5
    assert streamed_s > 8 * petals_s
    assert any("5 hops between them, and 2 to and from" in note for note in petals.notes)
