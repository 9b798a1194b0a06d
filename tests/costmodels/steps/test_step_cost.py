"""The compiled step cost: exactness, monotonicity, the split by account, limits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.models.layers.moe import distinct_experts
from costmodels.operators.operators import token_operators
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.steps.prices import step_seconds
from sim import accounts
from sim.clock import to_ns
from sim.errors import ScenarioError
from sim.protocols import StepPrice
from sim.shape import SUMS, StepShape, causal_pairs

MAX_TOKENS, MAX_SEQS = 4096, 1024
CASES = [
    ("llama-3.1-8b", "h200", 1),
    ("qwen3-30b-a3b", "h200", 1),
    ("opt-13b", "a100", 1),
    ("llama-3.1-70b", "h100", 4),
]


@cache
def compiled(model: str, gpu: str, ranks: int) -> StepCost:
    return compile_step_cost(
        load_model(model),
        load_gpu(gpu),
        StepOptions(
            layout=Layout(tensor_parallel_size=ranks),
            max_num_batched_tokens=MAX_TOKENS,
            max_num_seqs=MAX_SEQS,
        ),
    )


def decode(seqs: int, context: int) -> StepShape:
    return StepShape(decode_seqs=seqs, decode_context_tokens=seqs * context, logits=seqs)


def prefill(tokens: int, start: int = 0, decodes: int = 0, context: int = 0) -> StepShape:
    return StepShape(
        decode_seqs=decodes,
        decode_context_tokens=decodes * context,
        prefill_seqs=1,
        prefill_tokens=tokens,
        prefill_context_tokens=start,
        prefill_pairs=causal_pairs(start, tokens),
        logits=decodes + 1,
    )


@st.composite
def shapes(draw: st.DrawFn) -> StepShape:
    """Any batch a step may hold, empty and prefill-only ones included."""
    decodes = draw(st.integers(0, 600))
    context = draw(st.integers(0, 40_000)) * decodes
    prefills = draw(st.integers(0, 8))
    tokens = draw(st.integers(prefills, 3000)) if prefills else 0
    start = draw(st.integers(0, 30_000)) if prefills else 0
    finishing = draw(st.integers(0, prefills))
    return StepShape(
        decode_seqs=decodes,
        decode_context_tokens=context,
        prefill_seqs=prefills,
        prefill_tokens=tokens,
        prefill_context_tokens=start,
        prefill_pairs=causal_pairs(start, tokens),
        logits=decodes + finishing,
    )


def columns(rows: list[StepShape]) -> dict[str, np.ndarray]:
    return {name: np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in SUMS}


def test_is_a_step_cost() -> None:
    cost: StepCost = compiled(*CASES[0])
    assert cost.price(StepShape()) == StepPrice(0)
    run = cost.price_decodes(StepShape(), 3)
    assert run.first == StepPrice(0)
    assert run.gpu_cumulative_ns == [0, 0, 0]


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=60, deadline=None)
@given(
    seqs=st.integers(1, MAX_SEQS),
    context=st.integers(0, 50_000_000),
    steps=st.integers(1, 300),
)
def test_a_run_of_decodes_equals_its_steps(
    case: tuple[str, str, int], seqs: int, context: int, steps: int
) -> None:
    cost = compiled(*case)
    shape = StepShape(decode_seqs=seqs, decode_context_tokens=context, logits=seqs)
    first, cumulative_ns, shortest_ns = cost.price_decodes(shape, steps)
    gpu_ns = np.diff(cumulative_ns, prepend=0)
    one_by_one = [
        cost.price(shape._replace(decode_context_tokens=context + step * seqs))
        for step in range(steps)
    ]
    assert shortest_ns == gpu_ns.min()
    assert gpu_ns.tolist() == [price.gpu_ns for price in one_by_one]
    assert {price[1:] for price in one_by_one} == {first[1:]}
    assert first == one_by_one[0]


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(shapes(), min_size=1, max_size=20))
def test_split_adds_up_to_the_price(case: tuple[str, str, int], rows: list[StepShape]) -> None:
    cost = compiled(*case)
    split = cost.split(columns(rows))
    assert tuple(split) == accounts.GPU_ACCOUNTS
    total_s = np.sum(list(split.values()), axis=0)
    priced_ns = np.array([cost.price(row).gpu_ns for row in rows])
    assert np.abs(total_s * 1e9 - priced_ns).max() <= 1.0
    assert all((seconds >= -1e-12).all() for seconds in split.values())


def test_split_of_a_decode_step_has_no_prefill() -> None:
    split = compiled("llama-3.1-8b", "h200", 1).split(columns([decode(64, 1000)]))
    seconds = {account: float(values[0]) for account, values in split.items()}
    assert seconds[accounts.PREFILL_COMPUTE] == seconds[accounts.PREFILL_MEMORY] == 0
    assert seconds[accounts.COMMUNICATION] == 0
    # 15 GB of weights and 8.4 GB of keys and values at 4.8 TB/s, neither at full efficiency.
    assert 15.0e9 / 4.8e12 < seconds[accounts.DECODE_WEIGHT_READS] < 1.4 * 15.0e9 / 4.8e12
    assert 8.4e9 / 4.8e12 < seconds[accounts.DECODE_STATE_READS] < 1.4 * 8.4e9 / 4.8e12


def test_split_gives_prefills_what_they_add() -> None:
    cost = compiled("llama-3.1-8b", "h200", 1)
    mixed, alone = prefill(2000, decodes=32, context=1000), decode(32, 1000)
    split = cost.split(columns([mixed, alone]))
    decode_accounts = set(accounts.GPU_ACCOUNTS) - {
        accounts.PREFILL_COMPUTE,
        accounts.PREFILL_MEMORY,
    }
    for account in decode_accounts:
        assert split[account][0] == pytest.approx(split[account][1], rel=1e-12)
    assert split[accounts.PREFILL_COMPUTE][0] > 3 * split[accounts.PREFILL_MEMORY][0] > 0


def test_ranks_communicate() -> None:
    split = compiled("llama-3.1-70b", "h100", 4).split(columns([decode(64, 100), prefill(2000)]))
    assert (split[accounts.COMMUNICATION] > 0).all()


@pytest.mark.parametrize("case", CASES)
def test_more_work_never_costs_less(case: tuple[str, str, int]) -> None:
    cost = compiled(*case)
    by_seqs = [cost.price(decode(n, 1000)).gpu_ns for n in range(MAX_SEQS + 1)]
    by_context = [cost.price(decode(16, n)).gpu_ns for n in range(0, 30_000, 500)]
    by_tokens = [cost.price(prefill(n)).gpu_ns for n in range(1, MAX_TOKENS + 1, 7)]
    by_start = [cost.price(prefill(64, start=n)).gpu_ns for n in range(0, 30_000, 500)]
    for prices in (by_seqs, by_context, by_tokens, by_start):
        assert all(a <= b for a, b in pairwise(prices))


def test_host_terms_follow_the_launch_mode() -> None:
    dense, moe = compiled("llama-3.1-8b", "h200", 1), compiled("qwen3-30b-a3b", "h200", 1)
    p = dense.profile
    graph_ns, other_ns, tail_ns = (
        to_ns(term) for term in (p.full_graph_delay_s, p.other_delay_s, p.prefill_tail_s)
    )
    # Between graphs: the cache write and two kernels of attention. Of the rest: two norms, three
    # kernels of attention's projections and three of the FFN.
    piecewise_s = p.full_graph_launch_s + 32 * (p.graph_replay_s + 3 * p.called_launch_s)
    eager_s = p.full_graph_launch_s + 32 * (8 * p.launch_s + 3 * p.called_launch_s)
    piecewise_ns, eager_ns = to_ns(piecewise_s), to_ns(eager_s)
    assert dense.price(decode(8, 100))[1:4] == (graph_ns, to_ns(p.full_graph_launch_s), 0)
    assert dense.price(prefill(500))[1:4] == (other_ns, piecewise_ns, tail_ns)
    assert dense.price(prefill(513))[1:4] == (other_ns, eager_ns, tail_ns)
    assert dense.price(decode(513, 100))[1:4] == (other_ns, eager_ns, 0)
    moe_s = 48 * (13 * p.launch_s + 3 * p.called_launch_s + p.experts_call_s)
    assert moe.price(prefill(513)).launch_ns == to_ns(p.full_graph_launch_s + moe_s)
    assert dense.schedule_ns(100) == to_ns(p.schedule_base_s + 100 * p.schedule_per_running_s)
    spent_s = p.driver_s + p.update_base_s + 100 * p.update_per_seq_s
    assert dense.update_ns(100) == to_ns(spent_s)


def test_launches_scatter_around_their_mean() -> None:
    dense, moe = compiled("llama-3.1-8b", "h200", 1), compiled("qwen3-30b-a3b", "h200", 1)
    for cost in (dense, moe):
        for shape in (prefill(300), prefill(900)):
            drawn = [cost.price(shape, (i + 0.5) / 1000).launch_ns for i in range(1000)]
            assert drawn == sorted(drawn)
            assert np.mean(drawn) == pytest.approx(cost.price(shape).launch_ns, rel=0.01)
            assert cost.price(shape, 0.3).gpu_ns == cost.price(shape).gpu_ns
    assert dense.price(decode(8, 100), 0.9) == dense.price(decode(8, 100))


def test_only_steps_with_prefill_heat_the_device() -> None:
    cost = compiled("llama-3.1-8b", "h200", 1)
    assert cost.throttle is not None
    assert cost.price(decode(512, 1000)).compute_ns == 0
    price = cost.price(prefill(4000))
    assert 0.7 * price.gpu_ns < price.compute_ns < price.gpu_ns
    assert compiled("opt-13b", "a100", 1).throttle is None


def test_many_prices_at_once_are_the_prices_one_by_one() -> None:
    for case in CASES:
        cost = compiled(*case)
        shapes = [decode(1, 10), decode(37, 900), prefill(700), prefill(64, 3000, 20, 500)]
        columns = {
            name: np.array([float(getattr(shape, name)) for shape in shapes]) for name in SUMS
        }
        found = step_seconds(cost.kernels, cost.graph_sizes, columns)
        for index, shape in enumerate(shapes):
            price = cost.price(shape)
            assert found.gpu_s[index] * 1e9 == pytest.approx(price.gpu_ns, abs=2)
            assert found.compute_s[index] * 1e9 == pytest.approx(price.compute_ns, abs=2)


def test_decodes_are_padded_to_the_graph() -> None:
    cost = compiled("llama-3.1-8b", "h200", 1)
    # The same graph, so the same time but for attention and logits.
    assert (
        cost.compiled.token_fixed_ns[9]
        == cost.compiled.token_fixed_ns[16]
        < cost.compiled.token_fixed_ns[17]
    )
    assert cost.compiled.token_fixed_ns[513] < cost.compiled.token_fixed_ns[600]


def test_description_adds_up_and_shows_the_work() -> None:
    cost = compiled("llama-3.1-8b", "h200", 1)
    shape = prefill(1000, start=200, decodes=20, context=500)
    rows = {row.name: row for row in cost.describe(shape)}
    assert sum(row.seconds for row in rows.values()) * 1e9 == pytest.approx(
        cost.price(shape).gpu_ns, abs=1
    )
    assert rows["gate_up"].weight_bytes == 32 * 2 * 4096 * 14336 * 2
    assert rows["gate_up"].flops == 2 * 1020 * 32 * 2 * 4096 * 14336
    assert rows["prefill_attention"].flops == 4 * 32 * 128 * 32 * shape.prefill_pairs
    assert rows["prefill_attention"].state_bytes == 1200 * 131_072
    assert rows["gate_up"].bound == "compute"
    assert cost.describe(StepShape()) == []


def test_evidence_covers_every_account() -> None:
    absent = (accounts.ADAPTERS, accounts.SPECULATION_DRAFT, accounts.SPECULATION_WASTE)
    known = tuple(account for account in accounts.GPU_ACCOUNTS if account not in absent)
    for case in CASES:
        assert tuple(compiled(*case).evidence()) == known
    h200 = compiled("llama-3.1-8b", "h200", 1)
    assert h200.evidence()[accounts.DECODE_WEIGHT_READS] == "fitted"
    assert compiled("opt-13b", "a100", 1).evidence()[accounts.DECODE_STATE_READS] == "datasheet"
    several = compiled("llama-3.1-70b", "h100", 4).evidence()
    assert several[accounts.DECODE_WEIGHT_READS] == "extrapolated"
    assert several[accounts.COMMUNICATION] == "reported"
    assert {source["what"] for source in h200.sources()} >= {
        "H200-SXM hbm_bytes_per_s",
        "h200-vllm-0.25 gemm_memory",
        "vllm-0.25 schedule_base_s",
    }


def test_distinct_experts() -> None:
    tokens = np.array([0.0, 1, 4, 16, 64, 128])
    reached = distinct_experts(256, 8, tokens)
    assert np.round(reached, 1).tolist() == [0.0, 8.0, 30.5, 102.0, 222.4, 251.6]
    assert distinct_experts(8, 8, tokens).tolist() == [0, 8, 8, 8, 8, 8]


def test_operators_touch_every_weight_once() -> None:
    for name in ("llama-3.1-8b", "qwen2.5-7b", "opt-13b", "mixtral-8x7b", "qwen3-30b-a3b"):
        rank = shard(load_model(name), 1)
        # Enough tokens to reach every expert.
        operators = token_operators(rank, np.array([1e6]))
        weight_bytes = sum(op.calls * float(op.weight_bytes[0]) for op in operators)
        model = rank.model
        tables = (1 if model.tie_word_embeddings else 2) * model.embedding_params
        matrices = rank.weight_bytes - 2 * tables
        assert weight_bytes == pytest.approx(matrices, rel=2e-3)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_sharding_conserves_weights(ranks: int) -> None:
    model = load_model("llama-3.1-70b")
    assert shard(model, 1).weight_bytes == 2 * model.total_params
    replicated = 2 * (2 * model.num_layers + 1) * model.hidden_size
    whole = ranks * (shard(model, ranks).weight_bytes - replicated) + replicated
    assert whole == 2 * model.total_params


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    model = load_model("llama-3.1-70b")
    assert shard(model, 8).kv_bytes_per_token * 8 == model.kv_bytes_per_token
    assert shard(model, 16).kv_bytes_per_token == shard(model, 8).kv_bytes_per_token
    assert [mixer.kv_heads for mixer, _ in shard(model, 16).local.mixers] == [1]


@pytest.mark.parametrize(
    ("model", "ranks", "reason"),
    [
        ("llama-3.1-8b", 0, "must be at least 1"),
        ("llama-3.1-8b", 3, "32 attention heads are not a multiple of 3"),
        ("llama-3.1-8b", 64, "32 attention heads are not a multiple of 64"),
        ("qwen2.5-7b", 28, "not a multiple of 28; sizes that do: 1, 2, 4$"),
        ("qwen2.5-7b", 7, "4 KV heads neither divide into nor replicate over 7"),
        ("qwen2.5-14b", 5, "8 KV heads neither"),
    ],
)
def test_ranks_that_do_not_divide(model: str, ranks: int, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        shard(load_model(model), ranks)


def test_limits_are_checked() -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h200")
    with pytest.raises(ScenarioError, match="max_num_seqs 10 must be"):
        compile_step_cost(model, gpu, StepOptions(max_num_batched_tokens=5, max_num_seqs=10))
    with pytest.raises(ScenarioError, match=f"{MAX_TOKENS + 1} tokens"):
        compiled("llama-3.1-8b", "h200", 1).price(prefill(MAX_TOKENS + 1))
    with pytest.raises(ScenarioError, match="TPU-v5e has no known device-to-device link"):
        compile_step_cost(
            model,
            replace(load_gpu("tpu-v5e"), fabric_bytes_per_s=None),
            StepOptions(
                layout=Layout(tensor_parallel_size=2),
                max_num_batched_tokens=64,
                max_num_seqs=8,
            ),
        )


def test_unfitted_gpu_is_near_a_published_fit() -> None:
    """DistServe's profile of its own engine: OPT-13B, one A100-80G (simdistserve, 2024)."""
    cost = compiled("opt-13b", "a100", 1)
    for seqs, context in ((16, 512), (32, 512), (64, 256), (90, 256)):
        published_s = (19.93 + 6.27e-4 * seqs * context + 0.0385 * seqs) / 1e3
        assert cost.price(decode(seqs, context)).gpu_ns / 1e9 == pytest.approx(published_s, rel=0.2)
    for tokens in (512, 1024, 2048):
        published_s = (18.10 + 0.1019 * tokens + 7.12e-6 * tokens**2) / 1e3
        assert cost.price(prefill(tokens)).gpu_ns / 1e9 == pytest.approx(published_s, rel=0.1)
