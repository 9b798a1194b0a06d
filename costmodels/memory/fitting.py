"""The tensor-parallel sizes that hold a model, as it is and with its matrices in fewer bits."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from costmodels.layouts.shard import LARGEST_NODE, valid_sizes
from costmodels.memory.device import DevicePlan
from costmodels.models.spec import quantized


class Fit(NamedTuple):
    """The fewest ranks that hold a model with its matrices in one format."""

    weights: str
    """The format of the layers' matrices; several joined by ``+``."""
    tensor_parallel_size: int | None
    """Tensor-parallel size; None: no size holds the model."""
    sequences: int
    """Number of sequences of the given length that fit."""


def smallest_layouts(plan: DevicePlan, prompt_tokens: int, output_tokens: int) -> list[Fit]:
    """Return for each format the smallest tensor-parallel size that holds at least one sequence.

    The rest of the plan's layout is kept, and nothing is off the devices. The formats are the
    model's own, 8 bits and 4 bits; the last two only if they take fewer bytes than the model.
    """
    model, gpu, layout = plan.model, plan.gpu, plan.layout
    narrow = "fp8" if gpu.fp8_flop_per_s else "int8" if gpu.int8_op_per_s else "w8a16"
    candidates = [model, quantized(model, linear=narrow), quantized(model, linear="int4_g128")]
    smaller = [one for one in candidates[1:] if one.weight_bytes < model.weight_bytes]
    found = []
    for candidate in (model, *smaller):
        name = candidate.linear_dtype
        for ranks in valid_sizes(candidate, LARGEST_NODE, layout):
            other = replace(
                plan,
                model=candidate,
                layout=replace(layout, tensor_parallel_size=ranks),
                offload=None,
                writes_scores=False,
            )
            sequences = other.pool_bytes // other.paged_bytes(prompt_tokens, output_tokens)
            if sequences:
                found.append(Fit(name, ranks, sequences))
                break
        else:
            found.append(Fit(name, None, 0))
    return found


MAX, POW2, ORACLE, PAGED = "Orca Max", "Orca Pow2", "Orca Oracle", "paged"
SCHEMES = (MAX, POW2, ORACLE, PAGED)


class Reservation(NamedTuple):
    """One reservation scheme for sequences of one length."""

    scheme: str
    slots: int
    """Tokens set aside for one sequence at its end."""
    sequence_bytes: int
    """Bytes set aside for one sequence at its end."""
    sequences: int
    """Sequences at once that can all reach their end."""
    mean_sequences: int
    """Sequences at once when their answers are at all stages, from the mean bytes set aside."""
    used: float
    """Share of the bytes set aside that holds state, mean over an answer."""
    later: float
    """Share that the sequence itself will fill."""
    wasted: float
    """Share that it never fills. The three shares add up to 1."""


def reserve(
    plan: DevicePlan, prompt_tokens: int, output_tokens: int, max_model_len: int
) -> list[Reservation]:
    """Return all schemes for sequences of this length. ``max_model_len`` is what Max sets aside."""
    return [
        _reserve(plan, scheme, prompt_tokens, output_tokens, max_model_len) for scheme in SCHEMES
    ]


def slots_of(scheme: str, prompt_tokens: int, output_tokens: int, max_model_len: int) -> int:
    """Return the tokens that a contiguous scheme sets aside for one sequence."""
    needed = prompt_tokens + output_tokens
    if scheme == MAX:
        return max(max_model_len, needed)
    if scheme == POW2:
        rounded = prompt_tokens + (1 << max(0, output_tokens - 1).bit_length())
        return max(min(rounded, max_model_len), needed)
    return needed


def _reserve(
    plan: DevicePlan, scheme: str, prompt_tokens: int, output_tokens: int, max_model_len: int
) -> Reservation:
    rank = plan.rank
    middle = output_tokens // 2
    end_bytes = plan.device_bytes(rank.state_bytes(prompt_tokens + output_tokens, output_tokens))
    used_bytes = plan.device_bytes(rank.state_bytes(prompt_tokens + middle, middle))
    if scheme == PAGED:
        slots = -(-(prompt_tokens + output_tokens) // plan.block_size) * plan.block_size
        sequence_bytes = plan.paged_bytes(prompt_tokens, output_tokens)
        mean_bytes = plan.paged_bytes(prompt_tokens, middle)
        later_bytes = 0
    else:
        slots = slots_of(scheme, prompt_tokens, output_tokens, max_model_len)
        sequence_bytes = plan.device_bytes(rank.state_bytes(slots, slots - prompt_tokens))
        mean_bytes = sequence_bytes
        later_bytes = end_bytes - used_bytes
    used, later = used_bytes / mean_bytes, later_bytes / mean_bytes
    return Reservation(
        scheme=scheme,
        slots=slots,
        sequence_bytes=sequence_bytes,
        sequences=plan.pool_bytes // sequence_bytes,
        mean_sequences=plan.pool_bytes // mean_bytes,
        used=used,
        later=later,
        wasted=1 - used - later,
    )
