"""Short prompts of sparse attention, prompts that leave early, and multi-stream residuals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.models.layers.dsa import Dsa
from costmodels.operators.operators import token_operators
from costmodels.steps.compile import StepOptions, compile_step_cost
from sim.shape import StepShape, chunk_shape, decode_shape, joined
from tests.properties.priced_steps import columns_of
from tests.published import yoco
from tests.published.models.sequence_work import decode_token, prefill_attention_flops

GPU = load_gpu("b300")
SPARSE = load_model("deepseek-v3.2")
DENSE = replace(
    SPARSE,
    layers=tuple(
        replace(group, mixer=group.mixer.mla) if isinstance(group.mixer, Dsa) else group
        for group in SPARSE.layers
    ),
)
LIMITS: dict[str, Any] = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 64,
    "layout": Layout(tensor_parallel_size=8),
}
COST = compile_step_cost(SPARSE, GPU, StepOptions(**LIMITS))
TOPK = 2048


def attention_flops(shape: StepShape) -> float:
    return sum(row.flops for row in COST.describe(shape) if row.name == "prefill_attention")


def test_prompts_up_to_the_choice_are_dense() -> None:
    """128 heads of 192 + 128 dimensions a pair, 61 layers; beyond it 576 + 512, and the indexer."""
    pairs = TOPK * (TOPK + 1) / 2
    short = prefill_attention_flops(SPARSE, TOPK)
    assert short == prefill_attention_flops(DENSE, TOPK) == 61 * 2 * 128 * (192 + 128) * pairs
    beyond = prefill_attention_flops(SPARSE, 1, TOPK)
    assert beyond == 61 * (2 * 128 * (576 + 512) * TOPK + 2 * 64 * 128 * (TOPK + 1))
    # A cached prefix is expanded again.
    assert prefill_attention_flops(SPARSE, 48, 2000) == prefill_attention_flops(DENSE, 48, 2000)


def test_a_decode_of_a_short_context_reads_all() -> None:
    for context in (1, 500, TOPK, 5000):
        latents = 61 * min(context, TOPK) * 576 * 2
        assert decode_token(SPARSE, context).state_bytes == latents + 61 * context * 128 * 2


@pytest.mark.parametrize("chunks", [[(0, 2048)], [(0, 900), (1000, 1048)], [(500, 1000)]])
def test_all_prompts_of_a_step_must_be_short(chunks: list[tuple[int, int]]) -> None:
    clips = SPARSE.clips
    parts = [chunk_shape(*chunk, clips) for chunk in chunks]
    short = joined(parts)
    alone = sum(prefill_attention_flops(SPARSE, n, start) for start, n in chunks)
    assert attention_flops(short) == pytest.approx(alone / 8, rel=1e-9)
    mixed = joined([*parts, chunk_shape(2048, 1, clips)])
    assert attention_flops(mixed) > 1.5 * attention_flops(short)
    assert COST.price(mixed).gpu_ns > COST.price(short).gpu_ns


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(
        st.tuples(st.sampled_from([0, 100, 1900, 2048, 9000]), st.integers(1, 900)),
        min_size=1,
        max_size=4,
    ),
    decodes=st.integers(0, 8),
)
def test_a_price_is_its_split(chunks: list[tuple[int, int]], decodes: int) -> None:
    clips = SPARSE.clips
    parts = [chunk_shape(*chunk, clips) for chunk in chunks]
    if decodes:
        parts.append(decode_shape(decodes, 3000, clips))
    shape = joined(parts)
    split_ns = sum(float(p[0]) for p in COST.split(columns_of(shape, clips)).values()) * 1e9
    assert COST.price(shape).gpu_ns == pytest.approx(split_ns, abs=2)
    assert sum(row.seconds for row in COST.describe(shape)) * 1e9 == pytest.approx(split_ns)
    assert COST.slower(gpu=2.0).price(shape).gpu_ns == pytest.approx(2 * split_ns, abs=8)


def test_residuals_of_several_streams() -> None:
    """DeepSeek-V4: 4 streams, 16 vectors a mixer and an FFN beyond a plain residual's.

    Kimi-K3: a part written and read, and the mean of 4.5 sources over the 24 of a block.
    """
    tokens = np.array([10.0])
    for name, what, layers, hidden, moved in (
        ("deepseek-v4-flash", "hyper_connections", 43, 4096, 16.0),
        ("deepseek-v4-pro", "hyper_connections", 61, 7168, 16.0),
        ("kimi-k3", "attention_residuals", 93, 7168, 2 + 4.5 / 24),
    ):
        operators = {op.name: op for op in token_operators(shard(load_model(name), 8), tokens)}
        found = operators[what]
        assert found.calls == 2 * layers
        assert float(found.activation_bytes[0]) == pytest.approx(10 * moved * hidden * 2)
        assert found.kind == "elementwise"
    assert load_model("deepseek-v3").residual is None
    assert load_model("kimi-linear-48b-a3b").residual is None


def test_yoco_prompts_leave_at_half() -> None:
    """Its prefill is linear in the prompt, the transformer's is not; published is 30x at 512K."""
    ours, plain = yoco.models()
    assert ours.prompt_mixers != ours.mixers
    seconds = {n: yoco.prefill_s(ours, n) for n in (128 * yoco.K, 256 * yoco.K)}
    assert seconds[256 * yoco.K] == pytest.approx(2 * seconds[128 * yoco.K], rel=0.02)
    ratios = [yoco.prefill_ratio(n * yoco.K) for n in (32, 128, 512, 1024)]
    assert ratios == sorted(ratios)
    assert ratios[0] > 2  # half of the layers at least
    assert 10 < ratios[2] < 100
    assert 5 < yoco.memory_ratio(512 * yoco.K) < 2 * 9.4
    assert plain.num_layers == 26
