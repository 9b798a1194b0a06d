"""Measure prompts through the gated delta rule: families kda_chunk and gdn_chunk.

This is what an engine calls for a linear-attention layer after its projections, convolutions and
gates, with the state before and after in float32. ``heads`` are value heads; GDN has half as many
key heads (Qwen3-Next). ``tokens`` are those of one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.kernels.linear_inputs import (
    CHUNK,
    HEAD_DIM,
    HEADS,
    Inputs,
    delta_rule,
    make_inputs,
    sizes,
    token_and_state_bytes,
)
from calibrate.measure.machine import l2_bytes

TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-4}
# Half octaves.
_TOKENS = (*(size << octave for octave in range(10) for size in (64, 96)), 65536)
_SEQS = (1, 2, 4, 8, 16)
_MOST_ROWS = 65536
_MOST_CHECKED_TOKENS = 256


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield the grid, or nothing on a CPU, where the kernels do not run."""
    if device == "cpu":
        return
    for kind, all_heads in HEADS.items():
        heads = all_heads[-1:] if quick else all_heads
        seqs_tokens = [
            (seqs, tokens)
            for seqs in (_SEQS[:2] if quick else _SEQS)
            for tokens in _TOKENS
            if seqs * tokens <= _MOST_ROWS
        ]
        for seqs, tokens in seqs_tokens[:: 4 if quick else 1]:
            for count in heads:
                yield Case(
                    family=f"{kind}_chunk",
                    kernel="triton",
                    formats={"activations": "bfloat16", "state": "float32"},
                    shape={
                        "heads": count,
                        "head_k_dim": HEAD_DIM,
                        "head_v_dim": HEAD_DIM,
                        "seqs": seqs,
                        "tokens": tokens,
                    },
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Buffers between the kernels; rows and chunks are as in `linear_chunk_triton`."""

    sums: Any
    system: Any
    inverse: Any
    scores: Any
    w: Any
    u: Any
    tail: Any
    before: Any
    corrections: Any
    final: Any
    out: Any


def make_workspace(inputs: Inputs) -> Workspace:
    """Allocate uninitialized buffers for inputs of this size."""
    import torch

    rows, heads, dv = inputs.values.shape
    dk = inputs.keys.shape[-1]
    chunks = inputs.seqs * -(-inputs.tokens // CHUNK)

    def like(tensor: Any, *size: int) -> Any:
        return torch.empty(size, device=tensor.device, dtype=tensor.dtype)

    return Workspace(
        sums=torch.empty_like(inputs.log_decay),
        system=like(inputs.beta, rows, heads, CHUNK),
        inverse=like(inputs.keys, rows, heads, CHUNK),
        scores=like(inputs.keys, rows, heads, CHUNK),
        w=like(inputs.keys, rows, heads, dk),
        u=like(inputs.values, rows, heads, dv),
        tail=like(inputs.keys, rows, heads, dk),
        before=like(inputs.keys, chunks, heads, dk, dv),
        corrections=like(inputs.values, rows, heads, dv),
        final=like(inputs.beta, inputs.seqs, heads, dk, dv),
        out=torch.empty_like(inputs.values),
    )


def block_v(seqs: int, heads: int, dv: int) -> int:
    """Return the columns of a state per program: few if that is needed to fill a GPU."""
    return min(dv, 64 if seqs * heads * dv // 64 >= 128 else 32)


def launch(inputs: Inputs, states: Any, space: Workspace) -> None:
    """Run all kernels of one layer, from ``states`` to ``space.out`` and ``space.final``."""
    from calibrate.measure.kernels import linear_chunk_triton as first
    from calibrate.measure.kernels import linear_state_triton as second

    _, heads, dv = inputs.values.shape
    key_heads, dk = inputs.keys.shape[1:]
    chunks = -(-inputs.tokens // CHUNK)
    place = (inputs.tokens, chunks, heads)
    grid = (inputs.seqs * chunks, heads)
    q, k, v, scale = inputs.query, inputs.keys, inputs.values, inputs.scale
    channels = inputs.per_channel
    first.sum_decays[grid](inputs.log_decay, space.sums, *place, CHUNK, dk, channels, num_warps=4)
    scored = (q, k, space.sums, inputs.beta, space.system, space.scores, scale, *place, key_heads)
    if channels:
        parts = (*grid, CHUNK // 16)
        first.scores_by_channel[parts](*scored, CHUNK, 16, dk, 32, num_warps=4)
    else:
        first.scores_by_head[grid](*scored, CHUNK, dk, num_warps=4)
    second.solve_systems[grid](space.system, space.inverse, *place, num_warps=1)
    second.prepare_chunks[grid](
        *(k, v, space.sums, inputs.beta, space.inverse, space.w, space.u, space.tail),
        *(*place, key_heads, CHUNK, dk, dv, min(dk, dv, 64), channels),
        num_warps=4,
    )
    width = block_v(inputs.seqs, heads, dv)
    second.carry_states[(dv // width, heads, inputs.seqs)](
        *(space.w, space.u, space.tail, space.sums, states),
        *(space.before, space.corrections, space.final),
        *(*place, CHUNK, dk, dv, width, channels),
        num_warps=4,
        num_stages=3,
    )
    second.read_states[grid](
        *(q, space.sums, space.scores, space.before, space.corrections, space.out, scale),
        *(*place, key_heads, CHUNK, dk, dv, channels),
        num_warps=4,
    )


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs of the chunked form, and bytes of inputs, outputs, and states before and
    after."""
    seqs, tokens, heads, dk, dv = sizes(case.shape)
    flops = seqs * tokens * heads * (6 * dk * dv + CHUNK * (3 * dk + 2 * dv))
    token_bytes, state_bytes = token_and_state_bytes(_kind(case), case)
    return float(flops), token_bytes + 2 * state_bytes


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare random prompts and states. All copies share the buffers between the kernels."""
    import torch

    dtype = getattr(torch, case.formats["activations"])
    flops, num_bytes = work(case)
    copies = [
        make_inputs(_kind(case), case.shape, dtype, device, seed + number)
        for number in range(num_copies(num_bytes, l2_bytes(device)))
    ]
    first = copies[0]
    seqs, tokens, heads, dk, dv = sizes(case.shape)
    generator = torch.Generator(device).manual_seed(seed)
    states = torch.randn((seqs, heads, dk, dv), device=device, generator=generator)
    space = make_workspace(first)

    def error() -> float:
        launch(first, states, space)
        out, final = delta_rule(first, states)
        return max(relative_error(space.out, out), relative_error(space.final, final))

    return Prepared(
        calls=[lambda copy=copy: launch(copy, states, space) for copy in copies],  # type: ignore[misc]
        error=error if tokens <= _MOST_CHECKED_TOKENS else None,
        flops=flops,
        num_bytes=num_bytes,
    )


def _kind(case: Case) -> str:
    return case.family.removesuffix("_chunk")
