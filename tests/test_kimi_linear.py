"""Kimi Linear against its twin with latent attention in every layer (arXiv 2510.26692, Fig. 1, 7).

The GPU, the kernels and the batch of Fig. 1b are not stated, so what is compared are ratios, on an
H200: decoding one sequence, with one constant a step fixed at 1M tokens (2.2x); prefill as it is,
and with one constant a token fixed at 1M (2.9x).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from costmodels.gpu_spec import load_gpu
from costmodels.memory import plan_memory
from costmodels.model_spec import ModelSpec
from costmodels.models import load_model
from costmodels.step_cost import RooflineStepCost, compile_step_cost
from sim.shape import chunk_shape, decode_shape

K, M = 1 << 10, 1 << 20
DECODE = {512 * K: 1.8, M: 2.2}
PREFILL = {512 * K: 2.3, M: 2.9}
LIMITS: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}


def models() -> tuple[ModelSpec, ModelSpec]:
    """Kimi Linear, and the same with 27 MLA layers."""
    linear = load_model("kimi-linear-48b-a3b")
    (mla,) = (mixer for mixer, _ in linear.mixers if mixer.kind == "mla")
    layers = tuple(replace(group, mixer=mla) for group in linear.layers)
    return linear, replace(linear, name="its MLA twin", layers=layers)


@cache
def costs(gpu: str) -> tuple[RooflineStepCost, RooflineStepCost]:
    """Of both, on one device."""
    linear, twin = (compile_step_cost(model, load_gpu(gpu), **LIMITS) for model in models())
    return linear, twin


def decode_s(cost: RooflineStepCost, context: int, seqs: int = 1) -> float:
    return cost.price(decode_shape(seqs, context)).gpu_ns / 1e9


def prefill_s(cost: RooflineStepCost, tokens: int) -> float:
    chunks = (chunk_shape(start, 8192) for start in range(0, tokens, 8192))
    return sum(cost.price(chunk).gpu_ns for chunk in chunks) / 1e9


def constant_s(linear_s: float, twin_s: float, ratio: float) -> float:
    """What both must take longer for the twin to take ``ratio`` times as long."""
    return (twin_s - ratio * linear_s) / (ratio - 1)


def test_decode_ratios() -> None:
    linear, twin = costs("h200")
    constant = constant_s(decode_s(linear, M), decode_s(twin, M), DECODE[M])
    print(f"\nDecode, one sequence, one constant of {constant * 1e3:.2f} ms a step")
    for context in (4 * K, 16 * K, 128 * K, 512 * K, M):
        plain = decode_s(twin, context) / decode_s(linear, context)
        ratio = (decode_s(twin, context) + constant) / (decode_s(linear, context) + constant)
        published = DECODE.get(context, 1.0 if context <= 16 * K else None)
        print(f"{context // K:6} K: {ratio:.2f} (without it {plain:.2f}); published {published}")
        if published is not None:
            assert ratio == pytest.approx(published, rel=0.1)


def test_prefill_ratios() -> None:
    """Without a constant the ratio is that of the FLOPs, above what was measured."""
    linear, twin = costs("h200")
    constant = constant_s(prefill_s(linear, M), prefill_s(twin, M), PREFILL[M]) / M
    print(f"\nPrefill, one constant of {constant * 1e6:.1f} us a token")
    for tokens, published in PREFILL.items():
        plain = prefill_s(twin, tokens) / prefill_s(linear, tokens)
        more = constant * tokens
        ratio = (prefill_s(twin, tokens) + more) / (prefill_s(linear, tokens) + more)
        print(f"{tokens // K:6} K: {ratio:.2f} (without it {plain:.2f}); published {published}")
        assert ratio == pytest.approx(published, rel=0.15)
        assert published < plain < 27 / 7


def test_freed_memory_is_a_larger_batch() -> None:
    """At 1M tokens, each with as many sequences as fit a B200: time a token of the batch."""
    times = []
    for model, cost in zip(models(), costs("b200"), strict=True):
        memory = plan_memory(model, load_gpu("b200"), **LIMITS)
        pages = memory.layout.pages(M, memory.block_size)
        seqs = (memory.num_gpu_blocks - 1) // pages
        times.append(decode_s(cost, M, seqs) / seqs)
        print(f"\n{model.name}: {seqs} sequences, {times[-1] * 1e3:.2f} ms a token")
    ratio = times[1] / times[0]
    print(f"{ratio:.2f}; published 6.3 (1.84 against 11.48 ms)")
    assert ratio == pytest.approx(6.3, rel=0.25)
