"""Steps of replicas of several data-parallel ranks, stages and overlapped halves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.dealing import Limits, deal, deal_columns
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.memory.device import DevicePlan
from costmodels.models.catalog import load_model
from costmodels.operators.operators import group_operators, token_operators
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.work import EXCHANGES
from scenarios.files.load import parse_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from sim.accounts import COMMUNICATION
from sim.shape import SUMS, ClippedSums, StepShape, causal_pairs

EP = Layout(enable_expert_parallel=True)
DEEPEP = replace(EP, all2all_backend="deepep_low_latency")
LAYOUTS = {
    "dp2": Layout(data_parallel_size=2),
    "dp4-ep": replace(EP, data_parallel_size=4),
    "tp2-dp4-ep": replace(EP, tensor_parallel_size=2, data_parallel_size=4),
    "dp16-deepep": replace(DEEPEP, data_parallel_size=16, gpus_per_node=8),
    "dp8-dbo": replace(DEEPEP, data_parallel_size=8, enable_dbo=True, dbo_decode_token_threshold=4),
    "pp2": Layout(pipeline_parallel_size=2),
    "pp5": Layout(pipeline_parallel_size=5),
    "tp2-pp4-sp": Layout(tensor_parallel_size=2, pipeline_parallel_size=4, enable_sp=True),
    "dp2-pp2-ep": replace(EP, data_parallel_size=2, pipeline_parallel_size=2),
}


def compiled(model: str, gpu: str, layout: Layout) -> StepCost:
    return compile_step_cost(
        load_model(model),
        load_gpu(gpu),
        StepOptions(layout=layout, max_num_batched_tokens=2048, max_num_seqs=256),
    )


COSTS = {name: compiled("qwen3-30b-a3b", "h200", layout) for name, layout in LAYOUTS.items()}


@st.composite
def steps(draw: st.DrawFn) -> StepShape:
    """A step that the smallest of the layouts can take."""
    decodes = draw(st.integers(0, 250))
    prompts = draw(st.integers(0, 6))
    tokens = draw(st.integers(prompts, 1700)) if prompts else 0
    context = draw(st.integers(0, 20_000)) if prompts else 0
    sampling = draw(st.integers(0, prompts))
    return StepShape(
        decodes,
        draw(st.integers(decodes, 3000 * decodes)) if decodes else 0,
        prompts,
        tokens,
        context,
        causal_pairs(context, tokens),
        decodes + sampling,
    )


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(shape=steps(), more=st.integers(1, 200))
def test_longer_with_more_tokens(name: str, shape: StepShape, more: int) -> None:
    cost = COSTS[name]
    price = cost.price(shape)
    assert 0 <= price.compute_ns <= price.gpu_ns
    assert (price.gpu_ns > 0) == (shape.num_tokens > 0)
    if shape.prefill_seqs:
        longer = shape._replace(
            prefill_tokens=shape.prefill_tokens + more,
            prefill_pairs=shape.prefill_pairs + causal_pairs(0, more),
        )
    else:
        context = shape.decode_context_tokens + more * shape.decode_seqs
        longer = shape._replace(decode_context_tokens=context)
    # Rows of the tables round tokens to graphs and tiles: a thousandth.
    assert cost.price(longer).gpu_ns >= 0.999 * price.gpu_ns


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=15, deadline=None)
@given(seqs=st.integers(1, 250), context=st.integers(0, 2000), spare=st.integers(0, 50))
def test_a_run_is_its_steps(name: str, seqs: int, context: int, spare: int) -> None:
    cost, total = COSTS[name], seqs * context + spare
    run = cost.price_decodes(StepShape(seqs, total, logits=seqs), 20)
    steps_ns = [after - before for before, after in pairwise((0, *run.gpu_cumulative_ns))]
    assert steps_ns == [
        cost.price(StepShape(seqs, total + i * seqs, logits=seqs)).gpu_ns for i in range(20)
    ]
    assert run.shortest_ns == min(steps_ns)


@pytest.mark.parametrize("layout", [replace(EP, data_parallel_size=3), LAYOUTS["pp2"]])
def test_runs_of_windowed_models_are_their_steps(layout: Layout) -> None:
    """17 of 50 sequences still grow into the window, which does not divide evenly over the
    ranks."""
    cost = compiled("gpt-oss-20b", "h200", layout)

    def step(number: int) -> StepShape:
        window = ClippedSums(5000 + 17 * number, 17)
        return StepShape(50, 40_000 + 50 * number, logits=50, clipped=tuple(window))

    run = cost.price_decodes(step(0), 20)
    steps_ns = [after - before for before, after in pairwise((0, *run.gpu_cumulative_ns))]
    assert steps_ns == [cost.price(step(number)).gpu_ns for number in range(20)]


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(shape=steps())
def test_accounts_add_up_to_the_step(name: str, shape: StepShape) -> None:
    cost = COSTS[name]
    columns = {key: np.array([float(getattr(shape, key))]) for key in SUMS}
    split = cost.split(columns)
    assert all(float(values[0]) >= -1e-9 for values in split.values())
    total_ns = 1e9 * sum(float(values[0]) for values in split.values())
    assert total_ns == pytest.approx(cost.price(shape).gpu_ns, rel=1e-3, abs=1000)


@settings(max_examples=100, deadline=None)
@given(
    shapes=st.lists(steps(), min_size=1, max_size=5),
    ranks=st.integers(1, 20),
    stages=st.integers(1, 4),
    halves=st.booleans(),
)
def test_columns_are_dealt_as_steps_are(
    shapes: list[StepShape], ranks: int, stages: int, halves: bool
) -> None:
    layout = Layout(
        data_parallel_size=ranks,
        pipeline_parallel_size=1 if halves else stages,
        enable_dbo=halves,
        dbo_decode_token_threshold=3,
    )
    limits = Limits(2048, 256, 512)
    columns = {name: np.array([float(getattr(shape, name)) for shape in shapes]) for name in SUMS}
    many = deal_columns(columns, layout, limits)
    for place, shape in enumerate(shapes):
        one = deal(shape, layout, limits)
        assert one.mean_tokens == many.mean_tokens[place]
        assert (one.logits, one.drain) == (many.logits[place], many.drain[place])
        assert one.halves == many.halves[place]
        for name, value in zip(SUMS, one.shape, strict=False):
            assert value == pytest.approx(float(many.shape[name][place]), abs=1.0)
        assert one.shape.num_tokens == many.tokens[place]


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "mixtral-8x7b", "llama-3.1-70b", "deepseek-v3"])
def test_more_ranks_never_hold_more(name: str) -> None:
    model = load_model(name)
    base = EP if model.num_experts else Layout()
    sizes = (1, 2, 4, 8)
    grown = [
        [replace(base, tensor_parallel_size=size) for size in sizes],
        [replace(base, pipeline_parallel_size=size) for size in sizes],
        [replace(base, data_parallel_size=size) for size in sizes if model.num_experts],
    ]
    for layouts in grown:
        held = [shard(model, layout) for layout in layouts]
        weights = [rank.weight_bytes for rank in held]
        assert weights == sorted(weights, reverse=True)
        state = [rank.kv_bytes_per_token for rank in held]
        assert state == sorted(state, reverse=True)


def test_one_rank_is_what_it_was() -> None:
    alone = compiled("qwen3-30b-a3b", "h200", Layout())
    placed = compiled("qwen3-30b-a3b", "h200", EP)
    shape = StepShape(33, 33_000, 2, 700, 100, 300_000, 35)
    assert alone.price(shape) == placed.price(shape)
    for layout in (Layout(), EP, Layout(enable_sp=True)):
        rank = shard(load_model("qwen3-30b-a3b"), layout)
        operators = token_operators(rank, np.array([64.0])) + group_operators(
            rank, np.array([64.0])
        )
        assert not [op for op in operators if op.kind in EXCHANGES]


def test_two_halves_of_an_all_reduce() -> None:
    model = load_model("llama-3.1-8b")
    tokens = np.array([1000.0])

    def sent(layout: Layout) -> float:
        operators = token_operators(shard(model, layout), tokens)
        return float(sum(op.calls * op.comm_bytes[0] for op in operators))

    plain, halved = Layout(tensor_parallel_size=4), Layout(tensor_parallel_size=4, enable_sp=True)
    assert sent(halved) == pytest.approx(sent(plain))
    # 2 a layer, each 2 (n - 1) / n of the hidden states in 16 bits
    assert sent(plain) == pytest.approx(2 * 32 * 2 * 3 / 4 * 4096 * 2 * 1000)


def test_a_lone_prompt_is_not_split_over_ranks() -> None:
    """Its rank computes it all; two prompts go to two ranks and take hardly longer."""
    cost = COSTS["dp4-ep"]
    one = StepShape(0, 0, 1, 1500, 0, causal_pairs(0, 1500), 1)
    two = StepShape(0, 0, 2, 3000, 0, 2 * causal_pairs(0, 1500), 2)
    assert cost.busiest(one).shape == one._replace(logits=0)
    assert cost.busiest(two).shape == one._replace(logits=0)
    assert cost.price(one).gpu_ns < cost.price(two).gpu_ns < 1.5 * cost.price(one).gpu_ns


def test_a_pipeline_fills_and_drains() -> None:
    """A prompt of m chunks over p stages: (m + p - 1) stage times, the bubble's formula."""
    model, gpu, stages = load_model("llama-3.1-8b"), load_gpu("h200"), 4
    layout = Layout(pipeline_parallel_size=stages)
    cost = compile_step_cost(
        model, gpu, StepOptions(layout=layout, max_num_batched_tokens=1024, max_num_seqs=64)
    )

    def chunk_ns(chunks: int, samples: int) -> int:
        tokens = 1024 * chunks
        shape = StepShape(0, 0, 1, tokens, 0, chunks * causal_pairs(0, 1024), samples)
        return cost.price(shape).gpu_ns

    stage_ns, last_ns = chunk_ns(1, 0) / stages, chunk_ns(1, 1) - chunk_ns(1, 0)
    for chunks in range(1, stages + 1):
        assert chunk_ns(chunks, 0) == pytest.approx(stages * stage_ns, rel=1e-3)
        whole_ns = chunk_ns(chunks, 1) - last_ns
        assert whole_ns == pytest.approx((chunks + stages - 1) * stage_ns, rel=0.02)


def test_a_pipeline_serves_more_not_sooner() -> None:
    """One sequence gains nothing; a full pipeline reads the weights once for all micro-batches."""
    whole = compiled("llama-3.1-70b", "h200", Layout(tensor_parallel_size=8))
    layout = Layout(tensor_parallel_size=8, pipeline_parallel_size=4)
    staged = compiled("llama-3.1-70b", "h200", layout)
    lone = StepShape(1, 1000, logits=1)
    assert whole.price(lone).gpu_ns < staged.price(lone).gpu_ns < 1.5 * whole.price(lone).gpu_ns
    full = StepShape(256, 1_000_000, logits=256)
    assert staged.price(full).gpu_ns < whole.price(full).gpu_ns


def test_overlap_hides_the_shorter_of_two() -> None:
    layout = replace(DEEPEP, data_parallel_size=16, gpus_per_node=8)
    plain = compiled("qwen3-30b-a3b", "h100", layout)
    overlapped = compiled("qwen3-30b-a3b", "h100", replace(layout, enable_dbo=True))
    shape = StepShape(4000, 8_000_000, logits=4000)
    columns = {key: np.array([float(getattr(shape, key))]) for key in SUMS}
    shown, exposed = (cost.split(columns)[COMMUNICATION][0] for cost in (plain, overlapped))
    assert exposed < 0.8 * shown
    assert overlapped.price(shape).gpu_ns < plain.price(shape).gpu_ns
    few = StepShape(100, 200_000, logits=100)  # below the threshold of 32 a rank
    assert overlapped.price(few) == plain.price(few)


def test_deepseeks_decode_unit() -> None:
    """144 H800, 2 x 44 sequences a rank with contexts of 4,989 tokens.

    DeepSeek states 20 to 22 tokens/s a user (open-infra-index, day 6): nothing was fitted to it.
    """
    layout = replace(
        DEEPEP,
        data_parallel_size=144,
        enable_eplb=True,
        num_redundant_experts=32,
        enable_dbo=True,
        gpus_per_node=8,
    )
    blocks = DevicePlan(
        load_model("deepseek-v3"),
        load_gpu("h800"),
        layout=layout,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
    ).blocks
    longest = blocks.layout.most_tokens(blocks.num_gpu_blocks, blocks.block_size)
    assert longest > 88 * 4989  # they fit
    cost = compiled("deepseek-v3", "h800", layout)
    rates = {}
    for seqs in (32, 44, 88):
        shape = StepShape(144 * seqs, 144 * seqs * 4989, logits=144 * seqs)
        rates[seqs] = 1e9 / cost.price(shape).gpu_ns
        print(f"{seqs} sequences a rank: {rates[seqs]:.1f} tokens/s a user")
    assert 10 < rates[88] < rates[44] < rates[32] < 67  # the bound of communication alone


def run(**engine: object) -> RunResult:
    return simulate(
        parse_scenario(
            {
                "model": "qwen3-30b-a3b",
                "engine": engine,
                "workload": {"preset": "chat-short", "rate_per_s": 20.0, "num_requests": 150},
                "bands": False,
            }
        )
    )


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_a_replica_of_several_ranks(async_scheduling: bool) -> None:
    result = run(
        data_parallel_size=2,
        pipeline_parallel_size=2,
        enable_expert_parallel=True,
        async_scheduling=async_scheduling,
    )
    conditions = result.summary["conditions"]
    assert conditions["gpus"] == 4
    assert (conditions["data_parallel_size"], conditions["pipeline_parallel_size"]) == (2, 2)
    assert any("data-parallel ranks" in note for note in conditions["notes"])
    assert any("popular by a Zipf exponent" in note for note in conditions["notes"])
    rank_blocks = result.build.replica.memory.blocks.num_gpu_blocks
    assert conditions["num_gpu_blocks"] == 2 * (rank_blocks - 1) + 1
    assert result.summary["requests"]["finished"] == 150
    assert result.summary["e2e_accounts_s"]["communication"] > 0
    assert "fitted" not in result.summary["evidence"]


def test_a_prompt_takes_no_more_than_its_rank_can() -> None:
    scenario = {
        "model": "qwen3-30b-a3b",
        "engine": {"data_parallel_size": 4, "max_num_batched_tokens": 1024, "max_num_seqs": 64},
        "workload": {
            "generator": {"input_tokens": {"fixed": 6000}, "output_tokens": {"fixed": 2}},
            "rate_per_s": 0.1,
            "num_requests": 3,
        },
        "bands": False,
    }
    result = simulate(parse_scenario(scenario))
    assert result.steps.prefill_tokens.max() == 1024
