"""The matrices that LoRA adapters add on one rank: their bytes and their work.

As in vLLM, an adapter has a pair of matrices, A and B, for each projection of attention and of
dense and shared FFNs. A fused projection has a pair for each of its parts. With tensor parallelism
one of the two is split over the ranks, as the projection is. Routed experts have none here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from costmodels.layouts.shard import RankShard
from costmodels.operators.operators import token_operators

_PARTS = {
    "qkv": 3,
    "qkv_a": 2,
    "gate_up": 2,
    "shared_gate_up": 2,
    **dict.fromkeys(("q", "q_b", "kv_a", "kv_b", "o", "o_a", "o_b", "down", "shared_down"), 1),
}
"""Projections that have adapters, by name, and the matrices that each fuses."""


class AdaptedMatrix(NamedTuple):
    """A projection that adapters extend."""

    calls: int
    """Times per step."""
    parts: int
    """Matrices that it fuses, each with its own pair."""
    inner: int
    outer: int

    def elements(self, rank: int) -> int:
        """Return the elements of all calls' pairs of one adapter of this rank."""
        return self.calls * rank * (self.parts * self.inner + self.outer)


def adapted_matrices(shard: RankShard) -> tuple[AdaptedMatrix, ...]:
    """Return the projections of one rank that adapters extend."""
    return tuple(_adapted(shard))


def _adapted(shard: RankShard) -> Iterator[AdaptedMatrix]:
    for operator in token_operators(shard, np.ones(1)):
        parts = _PARTS.get(operator.name.rpartition(" ")[2])
        if parts is not None and operator.matrix is not None:
            yield AdaptedMatrix(operator.calls, parts, *operator.matrix)


def adapter_bytes(shard: RankShard, rank: int) -> int:
    """Return the bytes of one adapter of this rank on a tensor-parallel rank, in the model's
    16-bit type."""
    elements = sum(matrix.elements(rank) for matrix in adapted_matrices(shard))
    return elements * shard.model.dtype_bytes
