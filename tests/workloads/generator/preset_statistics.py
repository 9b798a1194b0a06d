"""Statistics of a generated workload that presets claim, in addition to those of `describe`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.arrays import Int64
from sim.request_table import PrefixChains, RequestTable
from workloads.chains import chain_offsets
from workloads.statistics.describe import describe


def matched_tokens(chains: PrefixChains) -> Int64:
    """``[n]`` tokens of each chain that an earlier request already held.

    That is what a cache without limit would hit: ``block_tokens`` times the leading ids seen
    before, the partial last block counted as far as it goes.
    """
    starts, ends = chains.offsets[:-1], chains.offsets[1:]
    _, first_position, occurrence = np.unique(chains.ids, return_index=True, return_inverse=True)
    start_of_id = np.repeat(starts, ends - starts)
    new = np.flatnonzero(first_position[occurrence] >= start_of_id)
    first_new = np.append(new, len(chains.ids))[np.searchsorted(new, starts)]
    matched_blocks = np.minimum(first_new, ends) - starts
    matched: Int64 = np.minimum(matched_blocks * chains.block_tokens, chains.tokens)
    return matched


def input_block_hits(table: RequestTable) -> Int64:
    """``[n]`` hit tokens as trace papers count them: blocks of prompts alone, a last, partial block
    having an id of its own."""
    chains = table.chains
    assert chains is not None
    blocks = -(-table.prompt_tokens // chains.block_tokens)
    offsets = chain_offsets(blocks)
    source = np.arange(offsets[-1]) + np.repeat(chains.offsets[:-1] - offsets[:-1], blocks)
    ids = chains.ids[source]
    partial = table.prompt_tokens % chains.block_tokens > 0
    ids[offsets[1:][partial] - 1] = -1 - np.flatnonzero(partial)
    return matched_tokens(
        replace(chains, ids=ids, offsets=offsets, tokens=table.prompt_tokens, covers_output=False)
    )


def preset_statistics(table: RequestTable, *, with_hits: bool) -> dict[str, float]:
    """Everything a preset may claim of its table; hits take seconds for millions of blocks."""
    is_own = np.ones(len(table), bool) if table.after is None else table.after < 0
    statistics = describe(replace(table, chains=None))
    statistics["requests_over_128k_fraction"] = float((table.prompt_tokens > 128_000).mean())
    statistics["first_prompt_tokens_p50"] = float(np.median(table.prompt_tokens[is_own]))
    gaps_s = np.diff(table.arrival_ns[is_own]) / 1e9
    if len(gaps_s):
        statistics["interarrival_s_p50"] = float(np.median(gaps_s))
    if with_hits and table.chains is not None:
        prompt_tokens = table.prompt_tokens
        hits = np.minimum(matched_tokens(table.chains), prompt_tokens)
        statistics["prefix_hit_fraction"] = float(hits.sum() / prompt_tokens.sum())
        statistics["requests_with_hit_fraction"] = float((hits > 0).mean())
        by_rule = input_block_hits(table).sum() / prompt_tokens.sum()
        statistics["prefix_hit_fraction_of_input_blocks"] = float(by_rule)
    return statistics
