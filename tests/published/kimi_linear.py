"""B3: Kimi Linear against its twin with latent attention in every layer (arXiv 2510.26692).

The report does not name its GPU, so only ratios are predicted. Decode: a step takes a constant and
the bytes of state it reads; the constant is set by the 2.2 of 1M tokens, whatever the bandwidth.
Prefill: FLOPs a token at one rate, and a constant set by the 2.3 of 512K.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from costmodels.layers.mla import Mla
from costmodels.model_spec import ModelSpec
from costmodels.models import load_model
from costmodels.sequence_work import decode_token, prefill_attention_flops
from tests.published.rows import Row, Section

K, M = 1024, 1024 * 1024


@cache
def models() -> tuple[ModelSpec, ModelSpec]:
    """Kimi Linear, and the twin: its own latent attention in the KDA layers' place."""
    kimi = load_model("kimi-linear-48b-a3b")
    (latent,) = {group.mixer for group in kimi.layers if isinstance(group.mixer, Mla)}
    layers = tuple(replace(group, mixer=latent) for group in kimi.layers)
    return kimi, replace(kimi, name="MLA twin", layers=layers)


def decode_bytes(model: ModelSpec, context: int) -> float:
    """State a decoded token reads, and writes where it is recurrent."""
    return decode_token(model, context).state_bytes


def decode_constant_bytes() -> float:
    """The constant part of a step, as bytes at the same bandwidth: from 2.2 at 1M tokens."""
    kimi, twin = (decode_bytes(model, M) for model in models())
    return (twin - 2.2 * kimi) / (2.2 - 1)


def decode_ratio(context: int) -> float:
    """The twin's step time over Kimi Linear's at batch 1."""
    constant = decode_constant_bytes()
    kimi, twin = (decode_bytes(model, context) for model in models())
    return (constant + twin) / (constant + kimi)


def filled_ratio(context: int, memory_bytes: float) -> float:
    """Step time a sequence, twin over Kimi Linear, with as many sequences as memory holds."""
    constant = decode_constant_bytes()
    a_token = []
    for model in models():
        state = model.state_bytes(context)
        batch = max(1, int(memory_bytes // state))
        a_token.append(constant / batch + decode_bytes(model, context))
    kimi, twin = a_token
    return twin / kimi


def prefill_flops(model: ModelSpec, tokens: int) -> float:
    """Of attention, or what stands in its place, a token."""
    return prefill_attention_flops(model, tokens) / tokens


def prefill_constant_flops() -> float:
    """What a token costs besides attention, as FLOPs at attention's rate: from 2.3 at 512K."""
    kimi, twin = (prefill_flops(model, 512 * K) for model in models())
    return (twin - 2.3 * kimi) / (2.3 - 1)


def prefill_ratio(tokens: int, constant: float) -> float:
    """The twin's prefill time over Kimi Linear's."""
    kimi, twin = (prefill_flops(model, tokens) for model in models())
    return (constant + twin) / (constant + kimi)


def sections() -> list[Section]:
    """Decode, prefill, and decode with memory filled."""
    kimi, _ = models()
    counted = 2.0 * (kimi.active_params - kimi.embedding_params)
    constant = prefill_constant_flops()
    # One node of eight devices of 80 GB less the weights, in 16 bits.
    memory = 8 * 80e9 * 0.9 - kimi.weight_bytes
    decode = [
        Row("decode 16K", decode_ratio(16 * K), 1.0, "x", 0.10),
        Row("decode 512K", decode_ratio(512 * K), 1.8, "x", 0.10),
        Row("decode 1M (sets the constant)", decode_ratio(M), 2.2, "x"),
        Row("decode 1M, memory filled", filled_ratio(M, memory), 6.3, "x", 0.25),
    ]
    prefill = [
        Row("prefill 1M", prefill_ratio(M, constant), 2.9, "x", 0.15),
        Row("prefill 512K (sets the constant)", prefill_ratio(512 * K, constant), 2.3, "x"),
        Row("prefill 512K, counted FLOPs alone", prefill_ratio(512 * K, counted), 2.3, "x", 0.15),
        Row("prefill 1M, counted FLOPs alone", prefill_ratio(M, counted), 2.9, "x", 0.15),
    ]
    state = [decode_bytes(model, M) / 1e9 for model in models()]
    return [
        Section(
            "B3 Kimi Linear against its MLA twin",
            "batch 1, bf16; the GPU is not stated, so ratios alone",
            decode + prefill,
            (
                f"a step's constant: {decode_constant_bytes() / 1e9:.1f} GB at the same bandwidth; "
                f"state read at 1M: {state[0]:.1f} and {state[1]:.1f} GB",
                f"a prefill token's constant: {constant / 1e9:.0f} GFLOP at attention's rate; "
                f"counted beside attention: {counted / 1e9:.1f} GFLOP, so the other kernels run at "
                f"{counted / constant:.0%} of attention's rate",
                "6.3x with memory filled is out of reach of any constant: state bytes differ by "
                f"{state[1] / state[0]:.2f}x, so a filled batch tends to that. The published times "
                "of 11.48 and 1.84 ms a token, of 32.8 and 8.7 GB, would be 2.9 and 4.7 TB/s: the "
                "batches, or the twin's kernels, differ in what is not stated",
            ),
        )
    ]
