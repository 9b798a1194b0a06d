"""How many sequences fit a pool of state memory, by how their memory is set aside.

Contiguous reservation takes the longest a sequence may become when it starts (Orca): all of
``max_model_len`` slots (Max), the output rounded up to a power of two (Pow2), or exactly what will
be needed (Oracle, which knows the length). Paging takes a block when one is needed.

Source of the three names: PagedAttention, arXiv 2309.06180, sections 2 and 6.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodels.device_memory import DevicePlan

MAX, POW2, ORACLE, PAGED = "Orca Max", "Orca Pow2", "Orca Oracle", "paged"
SCHEMES = (MAX, POW2, ORACLE, PAGED)


class Reservation(NamedTuple):
    """One scheme for sequences of one length."""

    scheme: str
    slots: int
    """Tokens set aside for one sequence at its end."""
    sequence_bytes: int
    """Bytes set aside for one sequence at its end."""
    sequences: int
    """Sequences at once that can all reach their end."""
    mean_sequences: int
    """Sequences at once when their answers are at all stages: the mean bytes set aside count."""
    used: float
    """Share of the bytes set aside that holds state, mean over an answer."""
    later: float
    """Share that the sequence itself will fill."""
    wasted: float
    """Share that it never fills. The three shares add up to 1."""


def reserve(
    plan: DevicePlan, prompt_tokens: int, output_tokens: int, max_model_len: int
) -> list[Reservation]:
    """All schemes for sequences of this length. ``max_model_len`` is what Max sets aside."""
    return [
        _reserve(plan, scheme, prompt_tokens, output_tokens, max_model_len) for scheme in SCHEMES
    ]


def slots_of(scheme: str, prompt_tokens: int, output_tokens: int, max_model_len: int) -> int:
    """Tokens that a contiguous scheme sets aside for one sequence."""
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
