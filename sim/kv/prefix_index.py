"""The contract of a prefix cache: which leading blocks of a request are cached, and which requests
hold them.

`sim.kv.block_hashes` and `sim.kv.radix_tree` fulfill it; `sim.kv.pool` counts the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from sim.request import Request


class Hit(NamedTuple):
    """Result of a lookup: the cached leading blocks of a request."""

    blocks: int
    evictable: int
    """Blocks of the hit that no running request holds: using them takes from the free blocks."""
    nodes: list[tuple[int, int]]
    """(node, leading blocks hit in it), in order."""
    common: int = 0
    """Cached leading blocks, including those after which some layers' states do not allow
    beginning."""
    is_fresh: bool = False
    """Whether the state at its end is computed only by the step being planned, and usable from
    the next on."""


class Watchers:
    """What an index reports of content that several requests can share; nothing, by default."""

    __slots__ = ("on_change", "on_evict")

    def __init__(self) -> None:
        self.on_change: tuple[Callable[[int, int], None], ...] = ()
        """Called with (prefix id, number of its cached blocks) on every change."""
        self.on_evict: tuple[Callable[[int, int, int], None], ...] = ()
        """Called with (prefix id, first evicted block, block after the last)."""


class PrefixIndex(Protocol):
    """The prefix cache of one engine. Requests carry what they hold (``pinned``,
    ``pinned_blocks``)."""

    watchers: Watchers

    def __bool__(self) -> bool:
        """Whether anything is cached."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages of cached content that no request holds."""
        ...

    def path(self, request: Request, /) -> list[tuple[int, int]]:
        """Return (prefix id, blocks of it in this request): the shared content, then the private
        rest."""
        ...

    def lookup(self, request: Request, limit: int, /) -> Hit:
        """Find the cached leading blocks of a request, at most ``limit``; changes nothing."""
        ...

    def pin(self, request: Request, hit: Hit, /) -> None:
        """Let a request hold the blocks it hit."""
        ...

    def share(self, request: Request, answer: Request, /) -> None:
        """Let a further answer hold what the request holds."""
        ...

    def register(self, request: Request, full: int, /, *, shared_only: bool) -> None:
        """Publish the first ``full`` computed blocks of a request and pin those it was first to
        publish.

        ``shared_only``: skip blocks whose content no other request can have.
        """
        ...

    def unpin(self, request: Request, /) -> int:
        """Release all that a request holds; return the number of blocks that no request holds
        now."""
        ...

    def released(self, request: Request, full: int, /) -> None:
        """Account for a released request, of which ``full`` leading blocks had been computed."""
        ...

    def evict(self, pages: int, /) -> int:
        """Evict at least ``pages`` free pages; return how many were evicted."""
        ...

    def expire(self, now_ns: int, /) -> int:
        """Evict content past its lifetime; return the number of pages."""
        ...

    def next_expiry_ns(self) -> int | None:
        """Return when content expires next; None: never."""
        ...

    def lose_all(self) -> None:
        """Forget all content and all holders."""
        ...

    def common_blocks(self, request: Request, holders: int, /) -> int:
        """Return the leading blocks of a running request that at least ``holders`` requests
        hold."""
        ...

    def new_step(self) -> None:
        """Make the states computed by the step before usable; called when a step is planned."""
        ...

    def checkpoint(self, request: Request, blocks: int, /) -> None:
        """Keep the recurrent state after ``blocks`` blocks of a request."""
        ...
