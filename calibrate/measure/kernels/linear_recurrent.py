"""Measure one decode step of the gated delta rule: families kda_recurrent and gdn_recurrent.

The states of a batch lie anywhere in a pool, as in an engine, and are found by slot; each is read
and written once, in float32. ``heads`` are value heads; GDN has half as many key heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.kernels.linear_inputs import (
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
_SEQS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_CPU_SEQS = (1, 2, 4, 8, 16, 32)
_MOST_CHECKED_SEQS = 64


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield the grid, smallest batches first."""
    on_cpu = device == "cpu"
    all_seqs = _CPU_SEQS if on_cpu else _SEQS
    for kind, all_heads in HEADS.items():
        for seqs in all_seqs[:: 5 if quick else 1]:
            for heads in (4, 8) if on_cpu else all_heads[-1 if quick else 0 :]:
                yield Case(
                    family=f"{kind}_recurrent",
                    kernel="torch" if on_cpu else "triton",
                    formats={
                        "activations": "float32" if on_cpu else "bfloat16",
                        "state": "float32",
                    },
                    shape={
                        "heads": heads,
                        "head_k_dim": HEAD_DIM,
                        "head_v_dim": HEAD_DIM,
                        "seqs": seqs,
                        "tokens": 1,
                    },
                )


def block_v(seqs: int, heads: int, dv: int) -> int:
    """Return the columns of a state per program: few if that is needed to fill a GPU."""
    return min(dv, 32 if seqs * heads * dv // 32 >= 512 else 8)


def launch(inputs: Inputs, slots: Any, pool: Any, out: Any) -> None:
    """Run one step, which reads and updates the states of ``pool`` [slots, heads, dk, dv] and
    writes ``out``."""
    from calibrate.measure.kernels.linear_triton import delta_step

    _, heads, dv = inputs.values.shape
    key_heads, dk = inputs.keys.shape[1:]
    width = block_v(inputs.seqs, heads, dv)
    delta_step[(heads * dv // width, inputs.seqs)](
        *(inputs.query, inputs.keys, inputs.values, inputs.log_decay, inputs.beta),
        *(slots, pool, out, inputs.scale, heads, key_heads, dk, dv, width, inputs.per_channel),
        num_warps=4,
    )


def step_in_torch(inputs: Inputs, slots: Any, pool: Any, out: Any) -> None:
    """Run one step with torch's own operations, as batched products of all heads."""
    seqs, heads, dv = inputs.values.shape
    group, dk = heads // inputs.keys.shape[1], inputs.keys.shape[2]
    keys = inputs.keys.float().repeat_interleave(group, 1).reshape(-1, 1, dk)
    query = inputs.query.float().repeat_interleave(group, 1).reshape(-1, 1, dk)
    states = pool[slots].reshape(-1, dk, dv)
    states *= inputs.log_decay.reshape(seqs * heads, -1, 1).exp()
    correction = inputs.values.float().reshape(-1, 1, dv) - keys @ states
    states.baddbmm_(keys.transpose(1, 2), inputs.beta.reshape(-1, 1, 1) * correction)
    out.copy_((query @ states).reshape(out.shape) * inputs.scale)
    pool[slots] = states.reshape(seqs, heads, dk, dv)


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs and bytes of one step."""
    seqs, _, heads, dk, dv = sizes(case.shape)
    token_bytes, state_bytes = token_and_state_bytes(_kind(case), case)
    return float(seqs * heads * 7 * dk * dv), token_bytes + 2 * state_bytes


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare copies with tokens and slots of their own in one pool."""
    import torch

    dtype = getattr(torch, case.formats["activations"])
    step = step_in_torch if case.kernel == "torch" else launch
    flops, num_bytes = work(case)
    token_bytes, state_bytes = token_and_state_bytes(_kind(case), case)
    # The state that is written is the one that was read.
    count = num_copies(token_bytes + state_bytes, l2_bytes(device))
    copies = [
        make_inputs(_kind(case), case.shape, dtype, device, seed + number)
        for number in range(count)
    ]
    first = copies[0]
    seqs, _, heads, dk, dv = sizes(case.shape)
    generator = torch.Generator(device).manual_seed(seed)
    pool = torch.randn((count * seqs, heads, dk, dv), device=device, generator=generator)
    order = torch.randperm(count * seqs, device=device, generator=generator)
    slots = order.to(torch.int32).split(seqs)
    out = torch.empty_like(first.values)

    def call(number: int) -> None:
        step(copies[number], slots[number], pool, out)

    def error() -> float:
        expected, states = delta_rule(first, pool[slots[0]])
        call(0)
        return max(relative_error(out, expected), relative_error(pool[slots[0]], states))

    return Prepared(
        calls=[lambda number=number: call(number) for number in range(count)],  # type: ignore[misc]
        error=error if seqs <= _MOST_CHECKED_SEQS else None,
        flops=flops,
        num_bytes=num_bytes,
    )


def _kind(case: Case) -> str:
    return case.family.removesuffix("_recurrent")
