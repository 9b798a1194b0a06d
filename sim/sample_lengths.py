"""Further answers of requests that ask for several (``n`` > 1, parallel sampling)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.draws import uniform
from sim.errors import TraceError

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleLengths:
    """Output tokens of the answers beside the first, flattened."""

    tokens: Int64
    """Of all requests' further answers, one request after another; at least 1."""
    offsets: Int64
    """``[n + 1]``: those of request ``i`` are ``tokens[offsets[i]:offsets[i + 1]]``."""

    def further(self, request: int) -> tuple[int, ...]:
        """Output tokens of a request's answers beside the first."""
        start, stop = int(self.offsets[request]), int(self.offsets[request + 1])
        return tuple(self.tokens[start:stop].tolist())

    def totals(self) -> Int64:
        """Output tokens of each request's further answers, summed, int64 ``[n]``."""
        summed = np.concatenate([[0], self.tokens.cumsum()])
        totals: Int64 = summed[self.offsets[1:]] - summed[self.offsets[:-1]]
        return totals


def draw_lengths(output_tokens: Int64, n: int, shortest: float, seed: int) -> SampleLengths:
    """``n`` answers a request, the first of ``output_tokens``, the longest.

    The others are uniform between ``shortest`` (0 to 1) times that and that; a draw belongs to
    its request. A request without output has one answer.
    """
    if n < 1 or not 0 < shortest <= 1:
        raise TraceError(f"n is {n} and n_shortest {shortest}; they must be >= 1 and in (0, 1]")
    counts = np.where(output_tokens > 0, n - 1, 0)
    tokens = [
        max(1, round(length * (1 - (1 - shortest) * uniform(seed, request, sample))))
        for request, (length, count) in enumerate(
            zip(output_tokens.tolist(), counts.tolist(), strict=True)
        )
        for sample in range(count)
    ]
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
    return SampleLengths(tokens=np.array(tokens, np.int64), offsets=offsets)
