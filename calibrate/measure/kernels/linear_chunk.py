"""Prompts through the gated delta rule: families kda_chunk and gdn_chunk.

What an engine calls for a linear-attention layer after its projections, convolutions and gates,
with the state before and after in float32. ``heads`` are value heads; GDN has half as many key
heads (Qwen3-Next). ``tokens`` are one sequence's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.kernels.linear_inputs import (
    HEAD_DIM,
    HEADS,
    STATE_BYTES,
    Inputs,
    delta_rule,
    make_inputs,
)

TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-4}
CHUNK = 64
_TOKENS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_LONG_TOKENS = (12288, 16384, 24576, 32768, 49152, 65536)
_SEQS = (1, 2, 4, 8, 16)
_MOST_ROWS = 65536
_MOST_CHECKED_TOKENS = 256


def cases(quick: bool, device: str) -> Iterator[Case]:
    """The grid; nothing on a CPU, where the kernels do not run."""
    if device == "cpu":
        return
    for kind, all_heads in HEADS.items():
        heads = all_heads[:1] if quick else all_heads
        # Odd lengths too: a tail chunk costs as much as a whole one.
        seqs_tokens = [
            (seqs, tokens) for seqs in _SEQS for tokens in _lengths(seqs) if not quick or seqs <= 2
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


def _lengths(seqs: int) -> Iterator[int]:
    lengths = (*_TOKENS, *_LONG_TOKENS)
    # Twice as dense for one sequence, the axis that is interpolated most.
    for tokens in lengths[:: 1 if seqs == 1 else 2]:
        if seqs * tokens <= _MOST_ROWS:
            yield tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What the kernels hand on to each other; rows and chunks as in `linear_chunk_triton`."""

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
    """Buffers for inputs of this size, uninitialised."""
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
    """Columns of a state that one program carries: few where that is needed to fill a GPU."""
    return min(dv, 64 if seqs * heads * dv // 64 >= 128 else 32)


def launch(inputs: Inputs, states: Any, work: Workspace) -> None:
    """All kernels of one layer: ``work.out`` and ``work.final`` from ``states``."""
    from calibrate.measure.kernels import linear_chunk_triton as first
    from calibrate.measure.kernels import linear_state_triton as second

    _, heads, dv = inputs.values.shape
    key_heads, dk = inputs.keys.shape[1:]
    chunks = -(-inputs.tokens // CHUNK)
    place = (inputs.tokens, chunks, heads)
    grid = (inputs.seqs * chunks, heads)
    q, k, v, scale = inputs.query, inputs.keys, inputs.values, inputs.scale
    channels = inputs.per_channel
    first.sum_decays[grid](inputs.log_decay, work.sums, *place, CHUNK, dk, channels, num_warps=4)
    scored = (q, k, work.sums, inputs.beta, work.system, work.scores, scale, *place, key_heads)
    if channels:
        parts = (*grid, CHUNK // 16)
        first.scores_by_channel[parts](*scored, CHUNK, 16, dk, 32, num_warps=4)
    else:
        first.scores_by_head[grid](*scored, CHUNK, dk, num_warps=4)
    second.solve_systems[grid](work.system, work.inverse, *place, num_warps=1)
    second.prepare_chunks[grid](
        *(k, v, work.sums, inputs.beta, work.inverse, work.w, work.u, work.tail),
        *(*place, key_heads, CHUNK, dk, dv, min(dk, dv, 64), channels),
        num_warps=4,
    )
    width = block_v(inputs.seqs, heads, dv)
    second.carry_states[(dv // width, heads, inputs.seqs)](
        *(work.w, work.u, work.tail, work.sums, states),
        *(work.before, work.corrections, work.final),
        *(*place, CHUNK, dk, dv, width, channels),
        num_warps=4,
        num_stages=3,
    )
    second.read_states[grid](
        *(q, work.sums, work.scores, work.before, work.corrections, work.out, scale),
        *(*place, key_heads, CHUNK, dk, dv, channels),
        num_warps=4,
    )


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Random prompts and states; buffers between the kernels are shared by all copies."""
    import torch

    kind = case.family.removesuffix("_chunk")
    dtype = getattr(torch, case.formats["activations"])
    inputs = make_inputs(kind, case.shape, dtype, device, seed)
    rows, heads, dv = inputs.values.shape
    dk = inputs.keys.shape[-1]
    num_bytes, flops = _work(inputs)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
    copies = [inputs] + [
        make_inputs(kind, case.shape, dtype, device, seed + number)
        for number in range(1, num_copies(num_bytes, l2_bytes))
    ]
    states = 0.1 * torch.randn((inputs.seqs, heads, dk, dv), device=device)
    work = make_workspace(inputs)

    def call(copy: Inputs) -> None:
        launch(copy, states, work)

    def error() -> float:
        call(inputs)
        out, final = delta_rule(inputs, states)
        return max(relative_error(work.out, out), relative_error(work.final, final))

    return Prepared(
        calls=[lambda copy=copy: call(copy) for copy in copies],  # type: ignore[misc]
        error=error if inputs.tokens <= _MOST_CHECKED_TOKENS else None,
        flops=flops,
        num_bytes=num_bytes,
    )


def _work(inputs: Inputs) -> tuple[float, float]:
    """Bytes of inputs, outputs and states; FLOPs of the chunked form."""
    rows, heads, dv = inputs.values.shape
    dk = inputs.keys.shape[-1]
    tensors = (inputs.query, inputs.keys, inputs.values, inputs.log_decay, inputs.beta)
    states = 2 * STATE_BYTES * inputs.seqs * heads * dk * dv
    read = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    out = inputs.values.numel() * inputs.values.element_size()
    flops = rows * heads * (6 * dk * dv + CHUNK * (3 * dk + 2 * dv))
    return float(read + out + states), float(flops)
