"""Everything about a step that depends on one count alone, tabulated once for all counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.attention_rates import AttentionRates
from costmodels.kernel_times import KernelTimes
from costmodels.operators import logit_operators, token_operators
from costmodels.roofline import OperatorSeconds
from costmodels.work import Array, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """A step's operators priced at every token count and every number of logits.

    Attention is linear in its sums, so it needs rates in place of a table.
    """

    by_tokens: tuple[OperatorSeconds, ...]
    """Arrays ``[max_num_batched_tokens + 1]``, indexed by tokens before padding to a graph."""
    by_logits: tuple[OperatorSeconds, ...]
    """Arrays ``[max_num_seqs * tokens_a_seq + 1]``, indexed by logits."""
    attention: AttentionRates
    tokens_a_seq: int = 1
    """Tokens that each decoding sequence computes."""

    def token_seconds(self) -> Array:
        """GPU seconds by token count, all operators: ``[max_num_batched_tokens + 1]``."""
        return _sum([op.total_s for op in self.by_tokens])

    def compute_seconds(self) -> Array:
        """The compute-bound part of `token_seconds`."""
        return _sum([np.where(op.compute_bound, op.work_s, 0.0) for op in self.by_tokens])

    def logit_seconds(self) -> Array:
        """GPU seconds by number of logits, all operators."""
        return _sum([op.total_s for op in self.by_logits])


def build_tables(
    kernels: KernelTimes,
    *,
    graph_sizes: tuple[int, ...],
    max_num_batched_tokens: int,
    max_num_seqs: int,
    equal_contexts: bool,
    tokens_a_seq: int = 1,
) -> StepTables:
    """Price every operator at every size; raises what `KernelTimes.price` raises."""
    shard, efficiency = kernels.shard, kernels.efficiency

    def priced(operators: list[Operator]) -> tuple[OperatorSeconds, ...]:
        return tuple(kernels.price(operator) for operator in operators)

    sizes = padded_sizes(np.arange(max_num_batched_tokens + 1), graph_sizes)
    logits = np.arange(max_num_seqs * tokens_a_seq + 1, dtype=np.float64)
    return StepTables(
        by_tokens=priced(token_operators(shard, sizes)),
        by_logits=priced(logit_operators(shard, logits, efficiency.sampling_bytes_per_logit)),
        attention=kernels.attention_rates(
            max_num_seqs, equal_contexts=equal_contexts, queries=tokens_a_seq
        ),
        tokens_a_seq=tokens_a_seq,
    )


def padded_sizes(tokens: NDArray[np.int64], graph_sizes: tuple[int, ...]) -> Array:
    """Each token count padded to its graph: float64 ``[n]``. No tokens stay none."""
    if not graph_sizes:
        return tokens.astype(np.float64)
    graphs = np.array(graph_sizes)
    place = np.minimum(np.searchsorted(graphs, tokens), graphs.size - 1)
    in_graph = (tokens > 0) & (tokens <= graphs[-1])
    return np.where(in_graph, graphs[place], tokens).astype(np.float64)


def _sum(arrays: list[Array]) -> Array:
    total: Array = np.sum(arrays, axis=0)
    return total
