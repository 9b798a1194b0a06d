"""What a sequence holds of a paged pool, where layers store different things.

Layers are grouped so that the blocks of every group have one size in bytes, a page, as in vLLM's
hybrid KV cache manager: the layers whose state grows form one group, the others as many groups as
their bytes fill. A block of the growing group, of a window group and of a recurrent-state group is
one page each. Layers with a prompt budget hold the whole prompt until it is computed, then free
pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_UNBOUNDED = 1 << 40


class WindowPages(NamedTuple):
    """Layers that keep the newest ``window_tokens`` tokens, in ``groups`` groups."""

    window_tokens: int
    groups: int


class PromptPages(NamedTuple):
    """Layers that keep ``budget_tokens`` of a prompt and all generated tokens, in ``groups``
    groups."""

    budget_tokens: int
    groups: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Pages of a sequence. The default is full attention alone: one page per block.

    A window group holds the window's blocks and the one being filled; what a chunk needs beyond
    that during one step is not counted.
    """

    grows: bool = True
    """Whether any layer's state grows without end."""
    windows: tuple[WindowPages, ...] = ()
    fixed_pages: int = 0
    """Pages of a sequence from its first token on: recurrent states."""
    prompts: tuple[PromptPages, ...] = ()
    """Layers with prompt budgets."""
    checkpoint_pages: int = 0
    """Pages of a checkpoint of all recurrent states, which a prefix hit needs; 0: none are kept."""

    def pages(self, tokens: int, block_size: int, prompt_tokens: int | None = None) -> int:
        """Return the pages of a sequence of ``tokens`` tokens.

        ``prompt_tokens``: length of its computed prompt; None: the prompt is not complete, and all
        of it is held.
        """
        if tokens <= 0:
            return 0
        blocks = -(-tokens // block_size)
        pages = self.fixed_pages + (blocks if self.grows else 0)
        for window_tokens, groups in self.windows:
            pages += groups * min(blocks, window_blocks(window_tokens, block_size))
        for budget_tokens, groups in self.prompts:
            kept = tokens
            if prompt_tokens is not None:
                kept -= max(0, prompt_tokens - budget_tokens)
            pages += groups * -(-kept // block_size)
        return pages

    def most_tokens(self, pages: int, block_size: int) -> int:
        """Return the longest sequence that ``pages`` pages hold, in whole blocks."""
        low, high = 0, _UNBOUNDED
        while low < high:
            middle = (low + high + 1) // 2
            if self.pages(middle * block_size, block_size) <= pages:
                low = middle
            else:
                high = middle - 1
        return low * block_size


PLAIN = KVLayout()


def window_blocks(window_tokens: int, block_size: int) -> int:
    """Return the blocks of a group with a full window; the window may begin inside a block."""
    return -(-window_tokens // block_size) + 1


def pages_by_tokens(
    layout: KVLayout, tokens: NDArray[np.int64], block_size: int, prompt_tokens: int | None
) -> NDArray[np.int64]:
    """Return `KVLayout.pages` of a sequence at many lengths, all above 0: ``[n]``."""
    blocks = -(-tokens // block_size)
    pages = blocks if layout == PLAIN else layout.fixed_pages + blocks * layout.grows
    for window_tokens, groups in layout.windows:
        pages = pages + groups * np.minimum(blocks, window_blocks(window_tokens, block_size))
    for budget_tokens, groups in layout.prompts:
        gone = 0 if prompt_tokens is None else max(0, prompt_tokens - budget_tokens)
        pages = pages + groups * -(-(tokens - gone) // block_size)
    return pages
