"""B3: Kimi Linear against its twin with latent attention in every layer (arXiv 2510.26692).

The report names neither its GPU nor its kernels nor the batch of Fig. 1b, so what is compared are
ratios of priced steps. Decoding one sequence: as priced, and with one constant a step fixed at 1M
tokens (2.2x). Prefill: as priced, and with one constant a token fixed at 1M (2.9x).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from costmodels.gpu_spec import load_gpu
from costmodels.layers.mla import Mla
from costmodels.memory import plan_memory
from costmodels.model_spec import ModelSpec
from costmodels.models import load_model
from costmodels.sequence_work import decode_token
from costmodels.step_cost import RooflineStepCost, compile_step_cost
from sim.shape import chunk_shape, decode_shape
from tests.published.rows import Row, Section

K, M = 1024, 1024 * 1024
GPU, FILLED = "h200", "b200"
LIMITS: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}


@cache
def models() -> tuple[ModelSpec, ModelSpec]:
    """Kimi Linear, and the twin: its own latent attention in the KDA layers' place."""
    kimi = load_model("kimi-linear-48b-a3b")
    (latent,) = {group.mixer for group in kimi.layers if isinstance(group.mixer, Mla)}
    layers = tuple(replace(group, mixer=latent) for group in kimi.layers)
    return kimi, replace(kimi, name="MLA twin", layers=layers)


@cache
def costs(gpu: str) -> tuple[RooflineStepCost, RooflineStepCost]:
    """Of both, on one device."""
    kimi, twin = (compile_step_cost(model, load_gpu(gpu), **LIMITS) for model in models())
    return kimi, twin


def decode_s(cost: RooflineStepCost, context: int, seqs: int = 1) -> float:
    """GPU seconds of a step."""
    return cost.price(decode_shape(seqs, context)).gpu_ns / 1e9


def prefill_s(cost: RooflineStepCost, tokens: int) -> float:
    """GPU seconds of a prompt, in chunks of 8,192."""
    chunks = (chunk_shape(start, 8192) for start in range(0, tokens, 8192))
    return sum(cost.price(chunk).gpu_ns for chunk in chunks) / 1e9


def decode_constant_s() -> float:
    """What a step of both must take longer for 2.2 at 1M tokens."""
    kimi_s, twin_s = (decode_s(cost, M) for cost in costs(GPU))
    return (twin_s - 2.2 * kimi_s) / (2.2 - 1)


def decode_ratio(context: int, constant_s: float = 0.0) -> float:
    """The twin's step time over Kimi Linear's at batch 1."""
    kimi_s, twin_s = (decode_s(cost, context) + constant_s for cost in costs(GPU))
    return twin_s / kimi_s


def prefill_constant_s() -> float:
    """What a token of both must take longer for 2.9 at 1M tokens."""
    kimi_s, twin_s = (prefill_s(cost, M) / M for cost in costs(GPU))
    return (twin_s - 2.9 * kimi_s) / (2.9 - 1)


def prefill_ratio(tokens: int, constant_s: float = 0.0) -> float:
    """The twin's prefill time over Kimi Linear's."""
    kimi_s, twin_s = (prefill_s(cost, tokens) + constant_s * tokens for cost in costs(GPU))
    return twin_s / kimi_s


def filled() -> list[tuple[int, float]]:
    """At 1M tokens, with as many sequences as fit one device: (sequences, seconds a token)."""
    found = []
    for model, cost in zip(models(), costs(FILLED), strict=True):
        memory = plan_memory(model, load_gpu(FILLED), **LIMITS)
        seqs = (memory.num_gpu_blocks - 1) // memory.layout.pages(M, memory.block_size)
        found.append((seqs, decode_s(cost, M, seqs) / seqs))
    return found


def filled_ratio() -> float:
    """The twin's time a token over Kimi Linear's, each with its own batch."""
    (_, kimi_s), (_, twin_s) = filled()
    return twin_s / kimi_s


def sections() -> list[Section]:
    """Decode, prefill, and decode with memory filled."""
    constant_s, token_s = decode_constant_s(), prefill_constant_s()
    decode = [
        Row(f"decode {name}", decode_ratio(context, constant_s), published, "x", 0.10)
        for name, context, published in (
            ("4K", 4 * K, 1.0),
            ("16K", 16 * K, 1.0),
            ("512K", 512 * K, 1.8),
        )
    ]
    decode.append(Row("decode 1M (sets the constant)", decode_ratio(M, constant_s), 2.2, "x"))
    decode.append(Row("decode 1M without a constant", decode_ratio(M), 2.2, "x", 0.10))
    prefill = [
        Row("prefill 512K", prefill_ratio(512 * K, token_s), 2.3, "x", 0.15),
        Row("prefill 1M (sets the constant)", prefill_ratio(M, token_s), 2.9, "x"),
        Row("prefill 512K without a constant", prefill_ratio(512 * K), 2.3, "x", 0.15),
        Row("prefill 1M without a constant", prefill_ratio(M), 2.9, "x", 0.15),
    ]
    (seqs, kimi_s), (others, twin_s) = filled()
    state = [decode_token(model, M).state_bytes / 1e9 for model in models()]
    return [
        Section(
            "B3 Kimi Linear against its MLA twin",
            f"bf16, one {load_gpu(GPU).name}; memory filled: one {load_gpu(FILLED).name}; the "
            "report's GPU is not stated, so ratios alone",
            [*decode, *prefill, Row("decode 1M, memory filled", filled_ratio(), 6.3, "x", 0.25)],
            (
                f"a step's constant: {constant_s * 1e3:.2f} ms; state read at 1M: {state[0]:.1f} "
                f"and {state[1]:.1f} GB; a prefill token's constant: {token_s * 1e6:.1f} us",
                f"memory filled: {seqs} sequences at {kimi_s * 1e3:.2f} ms a token against "
                f"{others} at {twin_s * 1e3:.2f} ms; published 1.84 against 11.48 ms",
            ),
        )
    ]
