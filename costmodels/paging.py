"""How many tokens a block of state holds, where layers of several kinds share one pool."""

from __future__ import annotations

import math

from costmodels.parallel import RankShard


def entry_tokens(shard: RankShard) -> int:
    """Blocks hold a multiple of so many tokens: whole compressed entries of every layer."""
    return math.lcm(*(state.entry_tokens for state, _ in shard.local.states))


def attention_block_tokens(shard: RankShard, unit_tokens: int = 16) -> int:
    """The smallest block, a multiple of ``unit_tokens``, that a recurrent state's page fits.

    vLLM's hybrid pools have one page size: an attention layer's block is made as large as the
    largest fixed state of another layer. Without such states it is one unit.
    """
    unit = math.lcm(unit_tokens, entry_tokens(shard))
    states = [state for state, _ in shard.local.states]
    largest = max((state.fixed for state in states if not state.growing), default=0)
    a_token = min((state.growing for state in states if state.growing), default=None)
    if not largest or a_token is None:
        return unit
    return unit * max(1, math.ceil(largest / (a_token * unit)))
