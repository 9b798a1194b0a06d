"""Prices and bytes of LoRA adapters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import GpuSpec, load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.operators.adapters import adapter_bytes
from costmodels.steps.adapters import AdapterKernels, adapter_kernels
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from sim.accounts import ADAPTERS
from sim.shape import AdapterSums, StepShape, chunk_shape, decode_shape, joined, shape_columns

LLAMA, H100 = load_model("llama-3.1-8b"), load_gpu("h100")


def kernels(rank: int, ranks: int = 1, gpu: GpuSpec = H100) -> AdapterKernels:
    own = shard(LLAMA, Layout(tensor_parallel_size=ranks))
    return adapter_kernels(own, gpu, rank)


def cost_of(rank: int) -> StepCost:
    options = StepOptions(max_num_batched_tokens=2048, max_num_seqs=256, terms=(kernels(rank),))
    return compile_step_cost(LLAMA, H100, options)


def with_adapters(shape: StepShape, *sums: int) -> StepShape:
    return shape._replace(adapters=AdapterSums(*sums))


def test_bytes_are_those_of_published_adapters() -> None:
    """Rank 16 on all linear layers of Llama-3.1-8B: 41,943,040 parameters, as peft counts them."""
    assert adapter_bytes(shard(LLAMA, Layout()), 16) == 2 * 41_943_040
    # Of each pair one matrix is split.
    halves = adapter_bytes(shard(LLAMA, Layout(tensor_parallel_size=2)), 16)
    assert 0.5 < halves / adapter_bytes(shard(LLAMA, Layout()), 16) < 0.75


def test_experts_have_none() -> None:
    model = load_model("qwen3-30b-a3b")
    dense = adapter_bytes(shard(model, Layout()), 8)
    hidden, layers = model.hidden_size, model.num_layers
    assert dense == 2 * layers * 8 * (3 * hidden + 5120 + 4096 + hidden)


def test_a_step_without_adapters_costs_what_it_did() -> None:
    plain = compile_step_cost(
        LLAMA, H100, StepOptions(max_num_batched_tokens=2048, max_num_seqs=256)
    )
    shape = decode_shape(16, 900)
    for same in (shape, with_adapters(shape, 0, 0, 0, 0)):
        assert cost_of(16).price(same) == plain.price(same)
    assert cost_of(16).price_decodes(shape, 9) == plain.price_decodes(shape, 9)


def test_cost_grows_with_rank_adapters_and_tokens() -> None:
    shape = decode_shape(64, 900)
    price = {
        (rank, adapters): cost_of(rank).price(with_adapters(shape, adapters, 64, 0, 0)).gpu_ns
        for rank in (8, 64)
        for adapters in (1, 8)
    }
    plain = cost_of(8).price(shape).gpu_ns
    assert plain < price[8, 1] < price[8, 8] < price[64, 8]
    assert price[64, 1] < price[64, 8]


SHAPES = st.builds(
    lambda seqs, context, chunk, adapters, with_one, more, prefill: with_adapters(
        joined([decode_shape(seqs, context), *([chunk_shape(0, chunk)] if chunk else [])]),
        *((min(adapters, seqs), min(with_one, seqs)) if min(adapters, with_one, seqs) else (0, 0)),
        *((1, chunk) if more and chunk and prefill else (0, 0)),
    ),
    seqs=st.integers(1, 200),
    context=st.integers(1, 5000),
    chunk=st.sampled_from([0, 1, 77, 1500]),
    adapters=st.integers(0, 8),
    with_one=st.integers(0, 200),
    more=st.booleans(),
    prefill=st.booleans(),
)
COSTS = {rank: cost_of(rank) for rank in (8, 128)}


@settings(deadline=None)
@given(shape=SHAPES, rank=st.sampled_from(list(COSTS)))
def test_prices_rows_and_accounts_agree(shape: StepShape, rank: int) -> None:
    cost = COSTS[rank]
    gpu_ns = cost.price(shape).gpu_ns
    names = shape_columns(adapters=True)
    values = (*shape[:7], *shape.adapters)
    columns = {name: np.array([float(v)]) for name, v in zip(names, values, strict=True)}
    split = cost.split(columns)
    assert sum(float(s[0]) for s in split.values()) * 1e9 == pytest.approx(gpu_ns, abs=4)
    rows = cost.describe(shape)
    assert sum(row.seconds for row in rows) * 1e9 == pytest.approx(gpu_ns, abs=4)
    assert (split[ADAPTERS][0] > 0) == any(row.name == "lora" for row in rows)
    if not shape.prefill_tokens:
        each = [cost.price(step).gpu_ns for step in grown_steps(shape, 5)]
        assert np.diff([0, *cost.price_decodes(shape, 5).gpu_cumulative_ns]).tolist() == each


def grown_steps(shape: StepShape, steps: int) -> list[StepShape]:
    return [
        shape._replace(decode_context_tokens=shape.decode_context_tokens + step * shape.decode_seqs)
        for step in range(steps)
    ]


def test_slower_kernels_and_evidence() -> None:
    shape = with_adapters(decode_shape(64, 900), 4, 64, 0, 0)
    cost = COSTS[8]
    assert cost.slower(gpu=2.0).price(shape).gpu_ns == pytest.approx(
        2 * cost.price(shape).gpu_ns, rel=1e-6
    )
    assert cost.evidence()[ADAPTERS] == "extrapolated"
    assert kernels(8, gpu=load_gpu("h200")).evidence({})[ADAPTERS] == "fitted"
    assert any("LoRA" in str(source["what"]) for source in cost.sources())
    assert replace(kernels(8), rank=9) != kernels(8)


def test_kernels_take_what_was_measured() -> None:
    """The points that the constants were fitted to; one token alone is slower than eight."""
    measured = json.loads(Path(__file__).with_name("lora_kernels.json").read_text())
    gpu = load_gpu("h200")
    errors = []
    for rank, adapters, tokens, ms in measured["rows"]:
        if tokens > 1:
            shape = with_adapters(chunk_shape(0, tokens), 0, 0, adapters, tokens)
            errors.append(kernels(rank, gpu=gpu).beside_ns(shape, 0) / (ms * 1e6) - 1)
    assert len(errors) == 72
    assert np.median(np.abs(errors)) < 0.06
    assert np.max(np.abs(errors)) < 0.25
