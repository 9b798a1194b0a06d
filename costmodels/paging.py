"""How the states of a model's layers share one pool of pages, as in vLLM's hybrid pools."""

from __future__ import annotations

import math
from fractions import Fraction

from costmodels.model_spec import ModelSpec
from costmodels.parallel import RankShard
from sim.kv_layout import KVLayout, PromptPages, WindowPages


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
    largest = max((state.fixed for state in states if not state.endless), default=0)
    a_token = min((state.endless for state in states if state.endless), default=None)
    if not largest or a_token is None:
        return unit
    return unit * max(1, math.ceil(largest / (a_token * unit)))


def page_bytes(shard: RankShard, block_size: int) -> int:
    """Bytes of a page on one rank: a block of all layers whose state grows.

    Where none grows, a block of the layers with the same budget of prompts, the fewest there are;
    without budgets, of all windows; without windows, all recurrent states.
    """
    found = block_size * shard.local.growing_state_bytes_per_token
    if not found:
        found = block_size * min(_bytes_by_budget(shard).values(), default=Fraction(0))
    if not found:
        found = block_size * sum(_window_bytes(shard).values(), Fraction(0))
    if not found:
        found = Fraction(shard.local.fixed_state_bytes_per_sequence)
    return math.ceil(found)


def kv_layout(shard: RankShard, block_size: int) -> KVLayout:
    """Pages of a sequence on one rank.

    Windows of one length, and layers with one budget of prompts, are in as many groups as their
    bytes a token fill pages, recurrent states and what compressors have gathered in as many pages
    as they fill. With layers of equal size that is vLLM's rule: as many groups as layers of the
    kind over layers that grow, rounded up.
    """
    page = page_bytes(shard, block_size)
    fixed = sum(state.fixed * count for state, count in shard.local.states)
    return KVLayout(
        grows=bool(shard.local.growing_state_bytes_per_token),
        windows=tuple(
            WindowPages(tokens, math.ceil(block_size * a_token / page))
            for tokens, a_token in sorted(_window_bytes(shard).items())
        ),
        fixed_pages=math.ceil(Fraction(fixed, page)) if page else 0,
        prompts=tuple(
            PromptPages(tokens, math.ceil(block_size * a_token / page))
            for tokens, a_token in sorted(_bytes_by_budget(shard).items())
        ),
    )


def is_recurrent(model: ModelSpec) -> bool:
    """Whether some layer keeps a state that no prefix of the context can be cut from."""
    return any(state.fixed and not state.endless for state, _ in model.states)


def _window_bytes(shard: RankShard, *, of_prompts: bool = False) -> dict[int, Fraction]:
    """Bytes a token of all windows on one rank, by their length."""
    found: dict[int, Fraction] = {}
    for state, count in shard.local.states:
        for window in state.windows:
            if window.keeps_generated == of_prompts:
                more = window.bytes_per_token * count
                found[window.tokens] = found.get(window.tokens, Fraction(0)) + more
    return found


def _bytes_by_budget(shard: RankShard) -> dict[int, Fraction]:
    """Bytes a token of the layers that keep a budget of each prompt, by the budget."""
    return _window_bytes(shard, of_prompts=True)
