"""Cutting and reordering prefix chains along with the requests they belong to."""

from __future__ import annotations

import numpy as np

from sim.request_table import Int64, PrefixChains


def chain_offsets(lengths: Int64) -> Int64:
    """``[n + 1]`` offsets of chains of ``lengths`` ``[n]`` laid end to end."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


def take_chains(chains: PrefixChains, index: Int64) -> PrefixChains:
    """The chains of the requests ``index`` names, in that order; ids are kept."""
    lengths = np.diff(chains.offsets)[index]
    offsets = chain_offsets(lengths)
    shift = np.repeat(chains.offsets[index] - offsets[:-1], lengths)
    return PrefixChains(
        ids=chains.ids[np.arange(offsets[-1]) + shift],
        offsets=offsets,
        tokens=chains.tokens[index],
        block_tokens=chains.block_tokens,
    )


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
