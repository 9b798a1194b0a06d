"""Gaps between the tokens of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.books.token_times import gap_chunks
from sim.fleet.cluster import RunLog


def decode_gaps(log: RunLog) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All chunks of `gap_chunks` at once: gaps in ns, and how many tokens have each."""
    chunks = [(np.empty(0, np.int64), np.empty(0, np.int64)), *gap_chunks(log)]
    gaps, weights = zip(*chunks, strict=True)
    return np.concatenate(gaps), np.concatenate(weights)
