"""Prefix chains as one sequence of block accesses: which request touches what, and touched it last.

An access is a position in ``PrefixChains.ids``. A request touches the blocks of its chain once,
when it arrives; requests arrive in the order of the chains.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import Int64
from sim.errors import TraceError
from sim.request_table import PrefixChains


def previous_accesses(chains: PrefixChains) -> Int64:
    """``[accesses]`` the access before of the same block, -1 where there is none.

    Raises TraceError where a block stands twice in one chain, which no prefix can.
    """
    order = np.argsort(chains.ids, kind="stable")
    in_order = chains.ids[order]
    is_again = in_order[1:] == in_order[:-1]
    previous = np.full(len(order), -1, np.int64)
    previous[order[1:][is_again]] = order[:-1][is_again]
    requests = requests_of_accesses(chains)
    twice = np.flatnonzero(previous >= chains.offsets[:-1][requests])
    if len(twice):
        access = twice[0]
        raise TraceError(
            f"prefix block {chains.ids[access]} stands twice in the chain of request "
            f"{requests[access]} (from 0, in order of arrival); ids must name whole prefixes"
        )
    return previous


def requests_of_accesses(chains: PrefixChains) -> Int64:
    """``[accesses]`` the request each belongs to."""
    return np.repeat(np.arange(len(chains.tokens)), np.diff(chains.offsets))


def tokens_of_accesses(chains: PrefixChains, prompt_tokens: Int64) -> Int64:
    """``[accesses]`` prompt tokens each block holds: the last of a prompt may be partial.

    Blocks beyond the prompt (of a chain that covers the output) hold none of it.
    """
    lengths = np.diff(chains.offsets)
    place = np.arange(len(chains.ids)) - np.repeat(chains.offsets[:-1], lengths)
    left = np.repeat(prompt_tokens, lengths) - place * chains.block_tokens
    tokens: Int64 = np.clip(left, 0, chains.block_tokens)
    return tokens
