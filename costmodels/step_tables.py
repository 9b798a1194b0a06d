"""Everything about a step that depends on one count alone, tabulated once for all counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.efficiency import Efficiency
from costmodels.gpu_spec import GpuSpec
from costmodels.operators import (
    Array,
    Operator,
    attention_operator,
    logit_operators,
    token_operators,
)
from costmodels.parallel import RankShard
from costmodels.roofline import OperatorSeconds, operator_seconds
from costmodels.split_kv import imbalance_table


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """A step's operators priced at every token count and every number of logits.

    Attention is linear in its sums, so it needs three rates in place of a table.
    """

    by_tokens: tuple[OperatorSeconds, ...]
    """Arrays ``[max_num_batched_tokens + 1]``, indexed by tokens before padding to a graph."""
    by_logits: tuple[OperatorSeconds, ...]
    """Arrays ``[max_num_seqs + 1]``, indexed by sequences that sample."""
    decode_token_s: Array
    """Decode attention, a token of context, all layers: the slower of compute and KV reads, by
    number of decoding sequences: ``[max_num_seqs + 1]``."""
    prefill_pair_s: float
    """Prefill attention, compute side, a query-key pair, all layers."""
    prefill_tile_s: float
    """The same, a KV token: what the half-empty last query tile of each chunk adds."""
    prefill_token_s: float
    """Prefill attention, memory side, a KV token read, all layers."""
    seq_tokens: int
    """Tokens a decoding sequence reads beyond its context (`Efficiency.decode_seq_tokens`)."""

    def token_seconds(self) -> Array:
        """GPU seconds by token count, all operators: ``[max_num_batched_tokens + 1]``."""
        return _sum([op.total_s for op in self.by_tokens])

    def compute_seconds(self) -> Array:
        """The compute-bound part of `token_seconds`."""
        return _sum([np.where(op.compute_bound, op.work_s, 0.0) for op in self.by_tokens])

    def logit_seconds(self) -> Array:
        """GPU seconds by number of logits, all operators: ``[max_num_seqs + 1]``."""
        return _sum([op.total_s for op in self.by_logits])


def build_tables(
    shard: RankShard,
    gpu: GpuSpec,
    efficiency: Efficiency,
    *,
    graph_sizes: tuple[int, ...],
    max_num_batched_tokens: int,
    max_num_seqs: int,
    equal_contexts: bool,
) -> StepTables:
    """Price every operator of ``shard`` on ``gpu``; raises what `operator_seconds` raises."""
    ranks = shard.tensor_parallel_size

    def priced(operators: list[Operator]) -> tuple[OperatorSeconds, ...]:
        return tuple(operator_seconds(op, gpu, efficiency, ranks) for op in operators)

    def attention_s(pairs: float, kv_tokens: float) -> float:
        operator = attention_operator(shard, "attention", np.array([pairs]), np.array([kv_tokens]))
        return float(operator_seconds(operator, gpu, efficiency, ranks).work_s[0])

    pair_s = attention_s(1.0, 0.0)
    sizes = padded_sizes(np.arange(max_num_batched_tokens + 1), graph_sizes)
    logits = np.arange(max_num_seqs + 1, dtype=np.float64)
    return StepTables(
        by_tokens=priced(token_operators(shard, sizes)),
        by_logits=priced(logit_operators(shard, logits, efficiency.sampling_bytes_per_logit)),
        decode_token_s=attention_s(1.0, 1.0)
        * decode_imbalance(shard, gpu, efficiency, max_num_seqs, equal_contexts=equal_contexts),
        prefill_pair_s=pair_s,
        prefill_tile_s=pair_s * efficiency.attention_query_tile_tokens / 2,
        prefill_token_s=attention_s(0.0, 1.0),
        seq_tokens=efficiency.decode_seq_tokens,
    )


def decode_imbalance(
    shard: RankShard,
    gpu: GpuSpec,
    efficiency: Efficiency,
    max_num_seqs: int,
    *,
    equal_contexts: bool = False,
) -> Array:
    """How much longer decode attention takes than evenly spread: ``[max_num_seqs + 1]``."""
    if gpu.num_sms is None:
        return np.ones(max_num_seqs + 1)
    last_sm = imbalance_table(
        max_num_seqs, shard.local.num_key_value_heads, gpu.num_sms, equal_contexts=equal_contexts
    )
    return 1 + efficiency.attention_imbalance * (last_sm - 1)


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
