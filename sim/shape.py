"""What a cost model may see of a step: the batch as sums, never the requests."""

from __future__ import annotations

from typing import NamedTuple


class StepShape(NamedTuple):
    """One engine step. Every field is a count over the whole batch of one engine.

    A sequence is either decoding (one new token on a computed context) or prefilling (a chunk of
    one or more new tokens). The same names are the columns of the step log.
    """

    decode_seqs: int = 0
    decode_context_tokens: int = 0
    """Tokens already in the KV cache before the step, summed over the decoding sequences."""
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    """New tokens computed by the prefilling sequences."""
    prefill_context_tokens: int = 0
    """Tokens already in the KV cache before the step, summed over the prefilling sequences."""
    prefill_pairs: int = 0
    """Causal query-key pairs of the prefills: sum of ``n * start + n * (n + 1) / 2``."""
    logits: int = 0
    """Sequences that sample a token in this step: each needs one row of the LM head."""

    @property
    def num_tokens(self) -> int:
        """New tokens computed in the step (one a decode, ``prefill_tokens`` in all)."""
        return self.decode_seqs + self.prefill_tokens


def causal_pairs(start: int, tokens: int) -> int:
    """Query-key pairs of ``tokens`` new tokens after ``start`` computed ones."""
    return tokens * start + tokens * (tokens + 1) // 2
