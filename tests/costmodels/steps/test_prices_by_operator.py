"""A compiled price is the sum of its operators on the batch's totals, for any mixture of layers."""

from __future__ import annotations

import timeit
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.engines.profile import load_profile, padded_sizes
from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard
from costmodels.models.catalog import load_model
from costmodels.models.layers.block_sparse import BlockSparse
from costmodels.models.layers.bounded import Evicting, PromptBudget, SlidingWindow
from costmodels.models.layers.dense import Dense
from costmodels.models.layers.parts import Mixer
from costmodels.models.layers.shared_kv import SharedKv, YocoMemory
from costmodels.models.spec import LayerGroup, ModelSpec, quantized
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.operators import (
    DecodeSums,
    PrefillSums,
    decode_operators,
    logit_operators,
    prefill_operators,
    token_operators,
)
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.work import Operator
from sim.shape import (
    Clip,
    StepShape,
    causal_pairs_clipped,
    chunk_shape,
    clip_layers,
    clipped,
    decode_shape,
    joined,
)
from tests.properties.layers import CSA, DSA, GQA, HCA, LINEAR, MLA, V4
from tests.properties.priced_steps import columns_of

MIXERS: list[Mixer] = [
    GQA,
    SlidingWindow(gqa=GQA, window=128),
    SlidingWindow(gqa=GQA, window=1020, sink_tokens=4),
    Evicting(gqa=GQA, budget_tokens=512),
    PromptBudget(gqa=GQA, budgets=(512,)),
    PromptBudget(gqa=GQA, budgets=(40, 900, 300), observation_tokens=16),
    SharedKv(gqa=GQA),
    SharedKv(gqa=GQA, window=1024),
    YocoMemory(kv_heads=8, head_dim=128),
    BlockSparse(gqa=GQA, block_tokens=16, topk_blocks=128),
    BlockSparse(gqa=GQA, block_tokens=128, topk_blocks=16, index_heads=4, index_dim=128),
    MLA,
    DSA,
    replace(DSA, index_heads=0),
    V4,
    CSA,
    HCA,
    *LINEAR,
]
SMALL: dict[str, Any] = {"max_num_batched_tokens": 512, "max_num_seqs": 16}
H200 = load_gpu("h200")


@cache
def compiled(groups: tuple[tuple[int, int], ...], kv: str) -> StepCost:
    """A model of so many layers (by place in `MIXERS`) with dense FFNs."""
    ffn = Dense(width=1024)
    layers = tuple(LayerGroup(count=count, mixer=MIXERS[place], ffn=ffn) for place, count in groups)
    model = ModelSpec(
        name="mixture",
        model_type="layers",
        layers=layers,
        hidden_size=512,
        vocab_size=1000,
        max_position_embeddings=1 << 20,
    )
    model = quantized(model, kv_cache=kv)
    # Rates of chosen kernels are tested apart: here the constants price everything.
    profile = replace(load_profile(), engine="another", kernel_rules="")
    return compile_step_cost(model, H200, StepOptions(profile=profile, **SMALL))


mixtures = st.dictionaries(
    st.integers(0, len(MIXERS) - 1), st.integers(1, 20), min_size=1, max_size=4
).map(lambda found: tuple(found.items()))
contexts_ = st.lists(st.integers(1, 200_000) | st.integers(1, 3000), max_size=12)
chunks_ = st.lists(st.tuples(st.integers(0, 100_000) | st.just(0), st.integers(1, 120)), max_size=4)


def shape_of(
    contexts: list[int],
    chunks: list[tuple[int, int]],
    clip_tokens: tuple[Clip, ...],
    generated: int = 0,
) -> StepShape:
    decodes = [decode_shape(1, n, clip_tokens, n - min(n, generated)) for n in contexts]
    return joined([*decodes, *(chunk_shape(*chunk, clip_tokens) for chunk in chunks)])


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


def by_operators_s(
    kernels: KernelTimes,
    graph_sizes: tuple[int, ...],
    contexts: list[int],
    chunks: list[tuple[int, int]],
) -> float:
    """Seconds of a step from its sequences: every operator priced once on their sums."""
    rank, efficiency = kernels.shard, kernels.efficiency
    caps = (None, *rank.model.clips)

    def total_s(operators: list[Operator]) -> float:
        return sum(float(kernels.price(operator).total_s[0]) for operator in operators)

    tokens = len(contexts) + sum(new for _, new in chunks)
    logits = one(len(contexts) + len(chunks))
    padded = padded_sizes(np.array([tokens]), graph_sizes)
    seconds = total_s(token_operators(rank, padded))
    seconds += total_s(logit_operators(rank, logits, efficiency.sampling_bytes_per_logit))

    beyond = efficiency.decode_seq_tokens
    reach: dict[Clip | None, np.ndarray] = {}
    for clip in caps:
        layers = 1 if clip is None else clip_layers(clip)
        reach[clip] = one(
            sum((n if clip is None else clipped(clip, n, n)) + beyond * layers for n in contexts)
        )
    for group in rank.local.layers:
        assert group.mixer is not None
        alone = RankShard(
            model=rank.model,
            layout=rank.layout,
            local=replace(rank.local, layers=(group,)),
        )
        last_sm = kernels.decode_imbalance(group.mixer.kv_heads, len(contexts), False)[-1]
        for operator in decode_operators(alone, DecodeSums(one(len(contexts)), reach)):
            stretch = 1.0 if operator.name == "state" else float(last_sm)
            seconds += stretch * total_s([operator])

    lengths: tuple[int | None, ...] = (None, *rank.model.clip_tokens)
    prefix = {cap: sum(min(start, cap or start) for start, _ in chunks) for cap in lengths}
    new = sum(new for _, new in chunks)
    tile = efficiency.attention_query_tile_tokens / 2
    pairs = {
        cap: sum(causal_pairs_clipped(*chunk, cap) for chunk in chunks) + tile * (prefix[cap] + new)
        for cap in lengths
    }
    sums = PrefillSums(
        seqs=one(len(chunks)),
        tokens=one(new),
        prefix={cap: one(value) for cap, value in prefix.items()},
        pairs={cap: one(value) for cap, value in pairs.items()},
    )
    nothing = np.zeros(1)
    operators = prefill_operators(rank, sums)
    # Chunks of linear attention take their own slower side; of all other layers the sums count.
    seconds += total_s([operator for operator in operators if operator.name == "chunks"])
    others = [operator for operator in operators if operator.name != "chunks"]
    compute_s = total_s([replace(operator, state_bytes=nothing) for operator in others])
    memory_s = total_s([replace(operator, flops=nothing) for operator in others])
    return seconds + max(compute_s, memory_s)


@settings(max_examples=80, deadline=None)
@given(mixture=mixtures, contexts=contexts_, chunks=chunks_, kv=st.sampled_from(["auto", "fp8"]))
def test_a_price_is_its_operators(
    mixture: tuple[tuple[int, int], ...],
    contexts: list[int],
    chunks: list[tuple[int, int]],
    kv: str,
) -> None:
    if not contexts and not chunks:
        return
    cost = compiled(mixture, kv)
    clips = cost.shard.model.clips
    shape = shape_of(contexts, chunks, clips)
    expected_s = by_operators_s(cost.kernels, cost.graph_sizes, contexts, chunks)
    assert cost.price(shape).gpu_ns == pytest.approx(expected_s * 1e9, abs=1.0)
    split_s = sum(float(part[0]) for part in cost.split(columns_of(shape, clips)).values())
    assert split_s == pytest.approx(expected_s, rel=1e-9)
    described_s = sum(row.seconds for row in cost.describe(shape))
    assert described_s == pytest.approx(expected_s, rel=1e-9)
    assert ("unfitted" in str(cost.sources())) == any(place for place, _ in mixture)


@settings(max_examples=80, deadline=None)
@given(
    mixture=mixtures,
    contexts=st.lists(st.integers(1, 3000), min_size=1, max_size=12),
    steps=st.integers(1, 400),
)
def test_a_run_of_decodes_equals_its_steps(
    mixture: tuple[tuple[int, int], ...], contexts: list[int], steps: int
) -> None:
    """Up to the first context that reaches a clip length: the engine jumps no further."""
    cost = compiled(mixture, "auto")
    clips, lengths = cost.shard.model.clips, cost.shard.model.clip_tokens
    to_go = [cap - context for cap in lengths for context in contexts if context < cap]
    steps = min([steps, *to_go])
    run = cost.price_decodes(shape_of(contexts, [], clips), steps)
    one_by_one = [
        cost.price(shape_of([context + step for context in contexts], [], clips, step)).gpu_ns
        for step in range(steps)
    ]
    assert np.diff(run.gpu_cumulative_ns, prepend=0).tolist() == one_by_one
    assert run.first.gpu_ns == one_by_one[0] == run.shortest_ns
    slower = cost.slower(gpu=2.0)
    assert slower.price(shape_of(contexts, [], clips)).gpu_ns == pytest.approx(
        2 * one_by_one[0], abs=2
    )


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "deepseek-v3",
        "gpt-oss-20b",
        "qwen3-next-80b-a3b",
        "deepseek-v3.2",
        "kimi-k3",
        "deepseek-v4-flash",
    ],
)
def test_speed_of_a_price(name: str) -> None:
    """Printed; bars: 0.75 us for full attention alone, 10 us for any architecture."""
    model = load_model(name)
    limits: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    cost = compile_step_cost(
        model, load_gpu("b300"), StepOptions(layout=Layout(tensor_parallel_size=8), **limits)
    )
    clips = model.clip_tokens
    decodes = decode_shape(64, 2000, clips)
    figures = {}
    for what, shape in (
        ("decode", decodes),
        ("mixed", joined([decodes, chunk_shape(0, 512, clips)])),
    ):
        runs = timeit.repeat(partial(cost.price, shape), number=2000, repeat=7)
        figures[what] = min(runs) / 2000 * 1e6
    print(f"\n{name}: " + ", ".join(f"{what} {us:.2f} us" for what, us in figures.items()))
    assert max(figures.values()) < 10
