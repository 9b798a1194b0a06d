"""Properties that hold for every built-in model, whatever its layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.formats import format_names, load_format
from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gpus import load_gpu
from costmodels.hardware.roofline import operator_seconds
from costmodels.layouts.shard import shard, valid_sizes
from costmodels.models.catalog import load_model, model_names
from costmodels.models.spec import quantized
from costmodels.operators.context_rates import chunk_rates, decode_rates
from costmodels.operators.operators import (
    DecodeSums,
    PrefillSums,
    decode_operators,
    prefill_operators,
    token_operators,
)
from costmodels.work import Array, Operator
from sim.errors import ScenarioError
from sim.shape import Clip, causal_pairs_clipped
from tests.published.models.sequence_work import decode_token, prefill_attention_flops

NAMES = model_names()


@pytest.mark.parametrize("name", NAMES)
def test_ranks_never_hold_more_than_the_whole(name: str) -> None:
    model = load_model(name)
    sizes = valid_sizes(model, 8)
    assert sizes[0] == 1
    weights = [shard(model, ranks).weight_bytes for ranks in sizes]
    assert weights == sorted(weights, reverse=True)
    state = [shard(model, ranks).local.state_bytes(5000) for ranks in sizes]
    assert state == sorted(state, reverse=True)


def test_latents_are_whole_on_every_rank() -> None:
    for name in ("deepseek-v3", "deepseek-v3.2", "deepseek-v4-pro"):
        model = load_model(name)
        assert shard(model, 8).kv_bytes_per_token == model.kv_bytes_per_token
        assert shard(model, 8).weight_bytes < model.weight_bytes / 6


@pytest.mark.parametrize(
    ("name", "ranks", "reason"),
    [
        ("kimi-linear-48b-a3b", 3, "32 KDA heads are not a multiple of 3"),
        ("qwen3-next-80b-a3b", 3, "16 linear key heads are not a multiple of 3"),
        ("deepseek-v4-flash", 16, "8 output groups are not a multiple of 16"),
        ("kimi-k3", 5, "96 KDA heads"),
    ],
)
def test_kinds_say_why_they_do_not_divide(name: str, ranks: int, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        shard(load_model(name), ranks)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    context=st.integers(0, 200_000),
    more=st.integers(0, 200_000),
    kv=st.sampled_from(["bfloat16", "fp8", "kivi2"]),
)
def test_state_grows_with_the_context(name: str, context: int, more: int, kv: str) -> None:
    model = quantized(load_model(name), kv_cache=kv)
    assert 0 <= model.state_bytes(context) <= model.state_bytes(context + more)
    limit = model.growing_state_bytes_per_token * context + model.fixed_state_bytes_per_sequence
    assert model.state_bytes(context) <= limit + 1
    fewer, most = decode_token(model, context), decode_token(model, context + more)
    assert fewer.state_bytes <= most.state_bytes


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    one=st.sampled_from(format_names()),
    other=st.sampled_from(format_names()),
)
def test_fewer_bits_never_take_more_bytes(name: str, one: str, other: str) -> None:
    model = load_model(name)
    narrow, wide = sorted((one, other), key=lambda f: load_format(f).bits_per_element)
    narrow_bytes, wide_bytes = (quantized(model, linear=f).weight_bytes for f in (narrow, wide))
    assert narrow_bytes <= wide_bytes
    # FlashMLA's form keeps a part in 16 bits: its bits are not those of its name. Sparse kernels
    # read no other 8-bit latents.
    is_sparse = any(mixer.kind == "dsa" for mixer, _ in model.mixers)
    if not {"fp8_ds_mla", "fp8" if is_sparse else ""} & {one, other}:
        narrow_state, wide_state = (
            quantized(model, kv_cache=f).growing_state_bytes_per_token for f in (narrow, wide)
        )
        assert narrow_state <= wide_state


@pytest.mark.parametrize("name", NAMES)
def test_operators_touch_every_matrix_once(name: str) -> None:
    """Enough tokens to reach every expert read all layers' matrices, whatever their formats."""
    rank = shard(load_model(name), 1)
    operators = token_operators(rank, np.array([1e7]))
    read = sum(op.calls * float(op.weight_bytes[0]) for op in operators)
    model = rank.model
    matrices = model.precision.weight_bytes(replace(model.params(), embedding=0))
    assert read == pytest.approx(matrices, rel=4e-3)
    flops_per_token = sum(op.calls * float(op.flops[0]) for op in operators) / 1e7
    passed = model.params(active=True).matrices
    assert flops_per_token == pytest.approx(2 * passed, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_attention_operators_are_the_work_of_single_sequences(name: str) -> None:
    """Two sequences as one batch of clipped sums: the same FLOPs and bytes as one by one."""
    model = load_model(name)
    rank = shard(model, 1)
    contexts = (700, 90_000)
    caps: tuple[int | None, ...] = (None, *model.clip_tokens)
    clipped: dict[Clip | None, Array] = {
        cap: np.array([float(sum(min(c, cap or c) for c in contexts))]) for cap in caps
    }
    found = decode_operators(rank, DecodeSums(seqs=np.array([2.0]), clipped=clipped))
    works = [decode_token(model, context) for context in contexts]
    total = sum(op.calls * float(op.flops[0]) for op in found)
    assert total == pytest.approx(sum(sum(work.attention_flops.values()) for work in works))
    read = sum(op.calls * float(op.state_bytes[0]) for op in found)
    assert read == pytest.approx(sum(work.state_bytes for work in works))
    chunks = ((0, 3000), (50_000, 2000))  # longer than what sparse attention computes in full
    sums = PrefillSums(
        seqs=np.array([2.0]),
        tokens=np.array([5000.0]),
        prefix={cap: np.array([float(sum(min(s, cap or s) for s, _ in chunks))]) for cap in caps},
        pairs={
            cap: np.array([float(sum(causal_pairs_clipped(s, n, cap) for s, n in chunks))])
            for cap in caps
        },
    )
    found = prefill_operators(rank, sums)
    total = sum(op.calls * float(op.flops[0]) for op in found)
    assert total == pytest.approx(sum(prefill_attention_flops(model, n, s) for s, n in chunks))


@given(start=st.integers(0, 300), tokens=st.integers(1, 300), cap=st.none() | st.integers(1, 500))
def test_clipped_pairs(start: int, tokens: int, cap: int | None) -> None:
    by_hand = sum(min(start + token + 1, cap or 10_000) for token in range(tokens))
    assert causal_pairs_clipped(start, tokens, cap) == by_hand


@pytest.mark.parametrize("name", ["kimi-k3", "deepseek-v4-pro", "gpt-oss-20b", "glm-5"])
def test_rates_of_sums_make_up_the_operators(name: str) -> None:
    """Seconds a unit, times the sums of a batch, are what its operators take one by one."""
    model, gpu = load_model(name), load_gpu("b300")
    rank, efficiency = shard(model, 8), load_efficiency(gpu)

    def seconds(operator: Operator) -> float:
        return float(operator_seconds(operator, gpu, efficiency, 8).work_s[0])

    caps: tuple[int | None, ...] = (None, *model.clip_tokens)
    clipped: dict[Clip | None, Array] = {
        cap: np.array([float(min(cap or 1 << 30, 33_333) * 16)]) for cap in caps
    }
    rates = decode_rates(rank, seconds)
    by_rates = 16 * rates.seq_s
    by_rates += sum(rate * float(clipped[cap][0]) for cap, rate in rates.token_s.items())
    operators = decode_operators(rank, DecodeSums(seqs=np.array([16.0]), clipped=clipped))
    assert by_rates == pytest.approx(sum(seconds(operator) for operator in operators))

    start, tokens = 9000, 1000
    sums = PrefillSums(
        seqs=np.ones(1),
        tokens=np.array([float(tokens)]),
        prefix={cap: np.array([float(min(cap or start, start))]) for cap in caps},
        pairs={cap: np.array([float(causal_pairs_clipped(start, tokens, cap))]) for cap in caps},
    )
    chunk = chunk_rates(rank, seconds)
    compute_s = tokens * chunk.token_s + start * chunk.prefix_s
    compute_s += sum(rate * float(sums.pairs[cap][0]) for cap, rate in chunk.pair_s.items())
    memory_s = chunk.seq_s + sum(
        rate * (float(sums.prefix[cap][0]) + tokens) for cap, rate in chunk.read_s.items()
    )
    found = prefill_operators(rank, sums)
    nothing = np.zeros(1)
    # Chunks of linear attention take their own slower side, on both sides of the other layers.
    own_s = sum(seconds(op) for op in found if op.name == "chunks")
    others = [op for op in found if op.name != "chunks"]
    assert compute_s == pytest.approx(
        own_s + sum(seconds(replace(op, state_bytes=nothing)) for op in others)
    )
    memory_s += tokens * chunk.token_read_s
    assert memory_s == pytest.approx(
        own_s + sum(seconds(replace(op, flops=nothing)) for op in others)
    )
