"""What linear-attention kinds share: a state of fixed size, read and written once per step.

Prompts are computed in chunks of 64 tokens (the flash-linear-attention kernels' size), so their
FLOPs are linear in the new tokens, whatever the context.
"""

from __future__ import annotations

from costmodels.formats import ModelPrecision, load_format
from costmodels.models.layers.parts import AttentionWork, State

_CHUNK = 64


def recurrent_state(elements: int, conv_elements: int, precision: ModelPrecision) -> State:
    """Return the recurrent state, and the newest inputs of the short convolutions."""
    state = load_format(precision.state).num_bytes(elements)
    return State(fixed=state + load_format(precision.conv).num_bytes(conv_elements))


def recurrent_work(
    state: State, heads: int, d_k: int, d_v: int, *, delta_rule: bool
) -> AttentionWork:
    """Return the work of reading and writing ``state`` once per sequence and step.

    A decode decays the state, adds an outer product and multiplies by a query: 5 d_k d_v FLOPs per
    head; the delta rule first reads what the state holds for the key: 2 more. A chunk's token meets
    the state twice (three times with the delta rule) and half the other tokens of its chunk.
    """
    square = d_k * d_v
    products = 3 if delta_rule else 2
    # Scores and their product with values; the delta rule also solves for its corrections.
    within = 3 * d_k + 2 * d_v if delta_rule else d_k + d_v
    return AttentionWork(
        decode_seq_flops=float(heads * (5 + 2 * delta_rule) * square),
        decode_seq_bytes=2.0 * state.fixed,
        prefill_seq_bytes=2.0 * state.fixed,
        prefill_token_flops=float(heads * (2 * products * square + _CHUNK * within)),
    )
