"""Lower bound of the all-to-all traffic of expert parallelism."""

from __future__ import annotations


def all_to_all_s(
    *,
    tokens: int,
    copies: int,
    hidden_size: int,
    bytes_per_s: float,
    dispatch_bytes: float = 1.0,
    combine_bytes: float = 2.0,
) -> float:
    """Seconds to send ``tokens`` tokens of a rank to ``copies`` experts each, and back.

    ``dispatch_bytes``, ``combine_bytes``: of an element on the way there (fp8) and back (bf16).
    """
    elements = tokens * copies * hidden_size
    return (dispatch_bytes + combine_bytes) * elements / bytes_per_s


def communication_tpot_s(layers: int, layer_s: float, micro_batches: int = 2) -> float:
    """The floor under the time per output token when only communication takes time.

    Two micro-batches hide each other's computation, so a token waits for both.
    """
    return micro_batches * layers * layer_s
