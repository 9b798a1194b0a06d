"""What a prefix cache has to know: which leading blocks of a request are resident, and who holds
them. `sim.kv.block_hashes` and `sim.kv.radix_tree` are two; blocks are counted by `sim.kv.pool`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from sim.request import Request


class Hit(NamedTuple):
    """What a lookup found: leading blocks of the request that are resident."""

    blocks: int
    evictable: int
    """How many of them no running request holds: using them takes from the free blocks."""
    nodes: list[tuple[int, int]]
    """(node, leading blocks hit in it), in order."""
    common: int = 0
    """Leading blocks that are cached, though some layers' states do not allow beginning there."""
    is_fresh: bool = False
    """Its state is only computed in the step being planned: it can be used from the next on."""


class PrefixIndex(Protocol):
    """One engine's. Requests carry what they hold in it (``pinned``, ``pinned_blocks``)."""

    on_change: Callable[[int, int], None] | None
    """Told of (prefix id, its resident blocks) whenever that changes."""
    on_evict: Callable[[int, int, int], None] | None
    """Told of (prefix id, first block of it, block after the last) that were evicted."""

    def __bool__(self) -> bool:
        """Whether anything is cached."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages of content that no request holds."""
        ...

    def path(self, request: Request, /) -> list[tuple[int, int]]:
        """(prefix id, blocks of it in this request): what names its content, then its own rest."""
        ...

    def lookup(self, request: Request, limit: int, /) -> Hit:
        """Its resident leading blocks, at most so many; changes nothing."""
        ...

    def pin(self, request: Request, hit: Hit, /) -> None:
        """Let it hold what it hit."""
        ...

    def share(self, request: Request, answer: Request, /) -> None:
        """Let a further answer hold what the request holds."""
        ...

    def register(self, request: Request, full: int, /, *, shared_only: bool) -> None:
        """So many leading blocks of it are computed: let it hold them here, as far as nobody else
        brought the same content; with ``shared_only``, what names no other request's is left out.
        """
        ...

    def unpin(self, request: Request, /) -> int:
        """It holds nothing any more; returns how many blocks nobody holds now."""
        ...

    def released(self, request: Request, full: int, /) -> None:
        """What it held counts as free, and so many leading blocks of it had been computed."""
        ...

    def evict(self, pages: int, /) -> int:
        """Drop at least so many free pages; returns how many."""
        ...

    def expire(self, now_ns: int, /) -> int:
        """Drop what has outlived its lifetime; returns how many pages."""
        ...

    def next_expiry_ns(self) -> int | None:
        """When something does next; None: never."""
        ...

    def lose_all(self) -> None:
        """No block has content any more, and none is held."""
        ...

    def common_blocks(self, request: Request, holders: int, /) -> int:
        """Leading blocks of a running request that as many as ``holders`` requests hold."""
        ...

    def new_step(self) -> None:
        """A step is planned: states that the one before computes can be used."""
        ...

    def checkpoint(self, request: Request, blocks: int, /) -> None:
        """Keep the recurrent state at the end of so many of its blocks."""
        ...
