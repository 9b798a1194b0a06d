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
"""Which states of recurrent layers are kept for prefix hits, as vLLM names it: none; those where a
chunk of a prompt ends with a block, and where a decode fills one (align); at every block (all)."""


def entry_tokens(shard: RankShard) -> int:
    """Blocks hold a multiple of so many tokens: whole compressed entries of every layer."""
    return math.lcm(*(state.entry_tokens for state, _ in shard.local.states))


def attention_block_tokens(shard: RankShard, unit_tokens: int = 16) -> int:
    """The smallest block, a multiple of ``unit_tokens``, that a recurrent state's page fits.

    vLLM's hybrid pools have one page size: an attention layer's block is made as large as the
    largest fixed state of another layer. Without such states it is one unit, on each of the ranks
    that split a sequence's context.
    """
    unit = math.lcm(unit_tokens, entry_tokens(shard)) * shard.layout.context_ranks
    states = [state for state, _ in shard.local.states]
    largest = max((state.fixed for state in states if not state.endless), default=0)
    a_token = min((state.endless for state in states if state.endless), default=None)
    if not largest or a_token is None:
        return unit
    return unit * max(1, math.ceil(largest / (a_token * unit)))


def block_unit(shard: RankShard, gpu: GpuSpec, block_size: int) -> int:
    """What blocks are a multiple of in a pool with recurrent states.

    Kernels of latent attention take pages of 64 tokens (FlashMLA), on Blackwell of 128 (CUTLASS).
    Source: vLLM 0.25, alignment of a hybrid model's attention block.
    """
    is_latent = any(isinstance(mixer, Mla) for mixer, _ in shard.local.mixers)
    if not is_latent or not is_recurrent(shard.local):
        return block_size
    return math.lcm(block_size, 128 if gpu.fp4_flop_per_s else 64)


def page_bytes(shard: RankShard, block_size: int, mode: MambaCacheMode = "none") -> int:
    """Bytes of a page on one rank: a block of all layers whose state grows.

    Where none grows, a block of the layers with the same budget of prompts, the fewest there are;
    without budgets, of all windows; without windows, all recurrent states. With a state at every
    block (all) a page holds that too, in as many parts of equal size as it fills.
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
    """Pages of a sequence on one rank.

    Windows of one length, and layers with one budget of prompts, are in as many groups as their
    bytes a token fill pages, recurrent states and what compressors have gathered in as many pages
    as they fill. With layers of equal size that is vLLM's rule: as many groups as layers of the
    kind over layers that grow, rounded up.
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
    """Whether some layer keeps a state that no prefix of the context can be cut from."""
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
    """Bytes of states of fixed size: those of recurrent layers, or of what compressors gather."""
    parts = (
        state.fixed * count for state, count in shard.states if (not state.endless) == of_recurrent
    )
    return sum(parts, Fraction(0))


def _window_bytes(shard: RankShard, *, of_prompts: bool = False) -> dict[int, Fraction]:
    """Bytes a token of all windows on one rank, by their length."""
    found: dict[int, Fraction] = {}
    for state, count in shard.states:
        for window in state.windows:
            if window.keeps_generated == of_prompts:
                more = window.bytes_per_token * count
                found[window.tokens] = found.get(window.tokens, Fraction(0)) + more
    return found


def _bytes_by_budget(shard: RankShard) -> dict[int, Fraction]:
    """Bytes a token of the layers that keep a budget of each prompt, by the budget."""
    return _window_bytes(shard, of_prompts=True)
