"""Cut, copy and coarsen prefix chains along with the requests that they belong to."""

from __future__ import annotations

import numpy as np

from sim.arrays import Int64
from sim.request_table import PrefixChains

_LONG_CHAIN = 200  # mean ids per chain above which copying chain by chain is faster


def chain_offsets(lengths: Int64) -> Int64:
    """Return the ``[n + 1]`` offsets of chains of ``lengths`` ``[n]`` laid end to end."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


def take_chains(
    chains: PrefixChains, index: Int64, *, id_shift: Int64 | None = None
) -> PrefixChains:
    """Return the chains of the requests that ``index`` ``[m]`` names, in that order.

    Ids are kept; with ``id_shift`` ``[m]``, a number is added to all ids of each chain.
    """
    offsets = chain_offsets(np.diff(chains.offsets)[index])
    if offsets[-1] > _LONG_CHAIN * len(index):
        ids = _copy_long(chains, index, offsets, id_shift)
    else:
        ids = _copy_short(chains, index, offsets, id_shift)
    return PrefixChains(
        ids=ids,
        offsets=offsets,
        tokens=chains.tokens[index],
        block_tokens=chains.block_tokens,
        covers_output=chains.covers_output,
    )


def _copy_long(chains: PrefixChains, index: Int64, offsets: Int64, id_shift: Int64 | None) -> Int64:
    """Copy the ids chain by chain, because agentic traces have 10**8 ids in all."""
    ids = np.empty(offsets[-1], np.int64)
    shifts = np.zeros(len(index), np.int64) if id_shift is None else id_shift
    sources = zip(chains.offsets[index].tolist(), chains.offsets[index + 1].tolist(), strict=True)
    rows = zip(sources, offsets[:-1].tolist(), shifts.tolist(), strict=True)
    for (start, stop), to, shift in rows:
        np.add(chains.ids[start:stop], shift, out=ids[to : to + stop - start])
    return ids


def _copy_short(
    chains: PrefixChains, index: Int64, offsets: Int64, id_shift: Int64 | None
) -> Int64:
    """Copy the ids of all chains at once."""
    lengths = np.diff(offsets)
    origin = np.repeat(chains.offsets[index] - offsets[:-1], lengths)
    ids: Int64 = chains.ids[np.arange(offsets[-1]) + origin]
    return ids if id_shift is None else ids + np.repeat(id_shift, lengths)


def copy_chains(chains: PrefixChains, index: Int64, copy: Int64) -> PrefixChains:
    """Return the chains that ``index`` ``[m]`` names, with ids of their own in each copy above 0.

    ``copy`` ``[m]`` numbers the copies. Requests of one copy share with each other what they shared
    before, and nothing with other copies. Ids are renumbered if the copies would not fit into int64
    otherwise.
    """
    stride = int(chains.ids.max()) + 1 if len(chains.ids) else 0
    num_copies = int(copy.max()) + 1 if len(copy) else 0
    if stride * num_copies > 2**62:
        distinct, dense = np.unique(chains.ids, return_inverse=True)
        chains = PrefixChains(
            ids=dense.astype(np.int64),
            offsets=chains.offsets,
            tokens=chains.tokens,
            block_tokens=chains.block_tokens,
            covers_output=chains.covers_output,
        )
        stride = len(distinct)
    return take_chains(chains, index, id_shift=copy * stride)


def regroup(chains: PrefixChains, block_tokens: int) -> PrefixChains:
    """Rename the chains' blocks to larger ones of ``block_tokens``, a multiple of the present size.

    Ids are prefix-chained, so the last id of a group names all of it: the group keeps that id. A
    chain's last group may be partial. Equal prefixes of whole groups stay equal; a shared prefix
    that ends inside a group is found up to the group before. Raises ValueError if ``block_tokens``
    is not a multiple.
    """
    group, rest = divmod(block_tokens, chains.block_tokens)
    if rest or not group:
        raise ValueError(
            f"{block_tokens} is not a multiple of the chains' {chains.block_tokens} tokens"
        )
    lengths = np.diff(chains.offsets)
    offsets = chain_offsets(-(-lengths // group))
    in_chain = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    last = np.minimum((in_chain + 1) * group, np.repeat(lengths, np.diff(offsets))) - 1
    return PrefixChains(
        ids=chains.ids[last + np.repeat(chains.offsets[:-1], np.diff(offsets))],
        offsets=offsets,
        tokens=chains.tokens,
        block_tokens=block_tokens,
        covers_output=chains.covers_output,
    )
