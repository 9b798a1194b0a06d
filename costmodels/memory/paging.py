"""How the states of a model's layers share one pool of pages, as in vLLM's hybrid pools."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.mamba2 import Mamba2
from costmodels.models.layers.mla import Mla
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError
from sim.kv.layout import KVLayout, PromptPages, WindowPages

MambaCacheMode = Literal["none", "align", "all"]
"""States of recurrent layers that are kept for prefix hits, in vLLM's names: none; those where a
prompt chunk ends with a block, and where a decode fills one (align); at every block (all)."""


def entry_tokens(shard: RankShard) -> int:
    """Return the tokens that blocks are a multiple of, to hold whole compressed entries of every
    layer."""
    return math.lcm(*(state.entry_tokens for state, _ in shard.local.states))


def attention_block_tokens(shard: RankShard, unit_tokens: int = 16) -> int:
    """Return the smallest block, a multiple of ``unit_tokens``, whose page holds a recurrent state.

    vLLM's hybrid pools have one page size: an attention layer's block is made as large as the
    largest fixed state of another layer. Without such states a block is one unit on each of the
    ranks that split a sequence's context.
    """
    unit = math.lcm(unit_tokens, entry_tokens(shard)) * shard.layout.context_ranks
    states = [state for state, _ in shard.local.states]
    largest = max((state.fixed for state in states if not state.endless), default=0)
    a_token = min((state.endless for state in states if state.endless), default=None)
    if not largest or a_token is None:
        return unit
    return unit * max(1, math.ceil(largest / (a_token * unit)))


def block_unit(shard: RankShard, gpu: GpuSpec, block_size: int) -> int:
    """Return the tokens that blocks are a multiple of in a pool with recurrent states.

    Kernels of latent attention take pages of 64 tokens (FlashMLA), on Blackwell of 128 (CUTLASS).
    Source: vLLM 0.25, alignment of a hybrid model's attention block.
    """
    is_latent = any(isinstance(mixer, Mla) for mixer, _ in shard.local.mixers)
    if not is_latent or not is_recurrent(shard.local):
        return block_size
    return math.lcm(block_size, 128 if gpu.fp4_flop_per_s else 64)


def page_bytes(shard: RankShard, block_size: int, mode: MambaCacheMode = "none") -> int:
    """Return the bytes of a page on one rank: a block of all layers whose state grows.

    If no state grows, a page is a block of the layers with one budget of prompts, the smallest such
    block; without budgets, a block of all windows; without windows, all recurrent states. With a
    recurrent state kept at every block (all), a page holds that too and grows by whole multiples of
    its size.
    """
    page = _page_bytes(shard, block_size)
    if mode != "all":
        return page
    return page * (1 + math.ceil(_fixed_bytes(shard, of_recurrent=True) / page))


def _page_bytes(shard: RankShard, block_size: int) -> int:
    found = block_size * sum((state.growing * n for state, n in shard.states), Fraction(0))
    if not found:
        found = block_size * min(_bytes_by_budget(shard).values(), default=Fraction(0))
    if not found:
        found = block_size * sum(_window_bytes(shard).values(), Fraction(0))
    if not found:
        found = _fixed_bytes(shard, of_recurrent=True)
    return math.ceil(found)


def kv_layout(shard: RankShard, block_size: int, mode: MambaCacheMode = "none") -> KVLayout:
    """Return the pages that a sequence takes on one rank.

    Windows of one length are in groups, each with its own pages: the bytes of one of their blocks
    over those of a page, rounded up. Layers with one budget of prompts are grouped alike. Recurrent
    states, and what compressors have gathered, take the pages that they fill. With layers of equal
    size that is vLLM's rule: the number of groups is the layers of the kind over the layers that
    grow, rounded up.
    """
    page = page_bytes(shard, block_size, mode)
    recurrent = _fixed_bytes(shard, of_recurrent=True)
    fixed = _fixed_bytes(shard, of_recurrent=False) + (0 if mode == "all" else recurrent)
    return KVLayout(
        grows=bool(shard.local.growing_state_bytes_per_token),
        windows=tuple(
            WindowPages(tokens, math.ceil(block_size * a_token / page))
            for tokens, a_token in sorted(_window_bytes(shard).items())
        ),
        fixed_pages=math.ceil(fixed / page) if page else 0,
        prompts=tuple(
            PromptPages(tokens, math.ceil(block_size * a_token / page))
            for tokens, a_token in sorted(_bytes_by_budget(shard).items())
        ),
        checkpoint_pages=math.ceil(recurrent / page) if mode == "align" else 0,
    )


def is_recurrent(model: ModelSpec) -> bool:
    """Return whether some layer keeps a state that no prefix of the context can be cut from."""
    return any(state.fixed and not state.endless for state, _ in model.states)


def check_mamba_cache_mode(model: ModelSpec, mode: MambaCacheMode) -> None:
    """Raise `ScenarioError` for a mode that vLLM does not have for a model."""
    recurrent = {
        mixer.kind
        for mixer, _ in model.mixers
        if (state := mixer.state(model.precision)).fixed and not state.endless
    }
    if mode == "all" and recurrent - {Mamba2.kind}:
        kinds = ", ".join(sorted(recurrent))
        raise ScenarioError(
            f"kv.mamba_cache_mode all: kernels put out states inside a chunk for mamba2 layers "
            f"alone, and {model.name} has {kinds}; align would do"
        )


def _fixed_bytes(shard: RankShard, *, of_recurrent: bool) -> Fraction:
    """Return the bytes of fixed-size states: those of recurrent layers, or those that
    compressors gather."""
    parts = (
        state.fixed * count for state, count in shard.states if (not state.endless) == of_recurrent
    )
    return sum(parts, Fraction(0))


def _window_bytes(shard: RankShard, *, of_prompts: bool = False) -> dict[int, Fraction]:
    """Return the bytes per token of all windows on one rank, by their length."""
    found: dict[int, Fraction] = {}
    for state, count in shard.states:
        for window in state.windows:
            if window.keeps_generated == of_prompts:
                more = window.bytes_per_token * count
                found[window.tokens] = found.get(window.tokens, Fraction(0)) + more
    return found


def _bytes_by_budget(shard: RankShard) -> dict[int, Fraction]:
    """Return the bytes per token of the layers that keep a budget of each prompt, by the budget."""
    return _window_bytes(shard, of_prompts=True)
