"""Run linear-attention kernels in Triton's interpreter: ``python -m
tests.calibrate.measure.interpret_linear``.

Prints a JSON object with the relative error of each check by its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import tests.calibrate.measure.measure_triton  # noqa: F401  (before any kernel)
from calibrate.measure.case import relative_error
from calibrate.measure.kernels import linear_chunk, linear_recurrent
from calibrate.measure.kernels.linear_inputs import Inputs, delta_rule, make_inputs

# Sequences, tokens, value heads, head sizes.
CHUNKED = ((1, 64, 2, 32, 32), (2, 130, 2, 32, 64), (1, 1, 4, 64, 32), (3, 17, 2, 32, 32))
STEPS = ((1, 2, 32, 32), (5, 4, 64, 128), (3, 2, 128, 64))


def extremes(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Gates at their ends, and keys that are all alike: no decay, state lost at once, both."""
    zero, one = torch.zeros_like(inputs.beta), torch.ones_like(inputs.beta)
    kept = torch.zeros_like(inputs.log_decay)
    lost = torch.full_like(inputs.log_decay, -200.0)
    mixed = torch.where(torch.rand_like(kept) < 0.1, lost, kept)
    yield "nothing written", replace(inputs, beta=zero)
    yield "all replaced", replace(inputs, beta=one, log_decay=kept)
    yield "all forgotten", replace(inputs, log_decay=lost)
    yield "some forgotten", replace(inputs, log_decay=mixed, beta=one)
    same = inputs.keys[:1].expand_as(inputs.keys).contiguous()
    yield "one key", replace(inputs, keys=same, log_decay=kept, beta=one)


def chunked(inputs: Inputs) -> float:
    """Return the worst error of outputs and last states. Buffers hold nan at first, so that
    everything must be written."""
    _, heads, dv = inputs.values.shape
    states = torch.randn(inputs.seqs, heads, inputs.keys.shape[2], dv)
    space = linear_chunk.make_workspace(inputs)
    for name in space.__slots__:
        getattr(space, name).fill_(float("nan"))
    linear_chunk.launch(inputs, states, space)
    out, final = delta_rule(inputs, states)
    return _worst((space.out, out), (space.final, final))


def stepped(inputs: Inputs) -> float:
    """Return the worst error of outputs and all states of a pool; states of other sequences must
    stay unchanged."""
    _, heads, dv = inputs.values.shape
    pool = torch.randn(2 * inputs.seqs + 1, heads, inputs.keys.shape[2], dv)
    slots = torch.randperm(len(pool))[: inputs.seqs].to(torch.int32)
    out, expected = torch.full_like(inputs.values, float("nan")), pool.clone()
    read, expected[slots] = delta_rule(inputs, pool[slots])
    linear_recurrent.launch(inputs, slots, pool, out)
    return _worst((out, read), (pool, expected))


def _worst(*pairs: tuple[Any, Any]) -> float:
    return max(
        relative_error(out, expected) if expected.any() else float(out.abs().max())
        for out, expected in pairs
    )


def checks() -> Iterator[tuple[str, float]]:
    torch.manual_seed(0)
    for kind in ("kda", "gdn"):
        for number in ("float32", "float16"):
            for seqs, tokens, heads, dk, dv in CHUNKED[:: 1 if number == "float32" else 3]:
                shape = _shape(seqs, tokens, heads, dk, dv)
                inputs = make_inputs(kind, shape, getattr(torch, number), "cpu", 1)
                yield f"{kind} chunk {number} {seqs} x {tokens}", chunked(inputs)
            for seqs, heads, dk, dv in STEPS:
                shape = _shape(seqs, 1, heads, dk, dv)
                inputs = make_inputs(kind, shape, getattr(torch, number), "cpu", 1)
                yield f"{kind} step {number} {seqs} x {dk} x {dv}", stepped(inputs)
        inputs = make_inputs(kind, _shape(1, 70, 2, 32, 32), torch.float32, "cpu", 2)
        for name, extreme in extremes(inputs):
            yield f"{kind} chunk float32 {name}", chunked(extreme)
        inputs = make_inputs(kind, _shape(3, 1, 2, 32, 32), torch.float32, "cpu", 2)
        for name, extreme in extremes(inputs):
            yield f"{kind} step float32 {name}", stepped(extreme)


def _shape(seqs: int, tokens: int, heads: int, dk: int, dv: int) -> dict[str, int]:
    return {
        "seqs": seqs,
        "tokens": tokens,
        "heads": heads,
        "head_k_dim": dk,
        "head_v_dim": dv,
    }


if __name__ == "__main__":
    print(json.dumps(dict(checks())))
