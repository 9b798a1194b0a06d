"""A tier below device memory: what KV content it holds, and the pipe that content moves over."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from sim.clock import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """One tier; bytes and bandwidths are of all GPUs of an engine together."""

    name: str
    capacity_blocks: int | None
    """Of each engine, or, where it is shared, of all together; None: without bound."""
    block_bytes: int
    read_bytes_per_s: float
    """Of one engine, towards its devices."""
    write_bytes_per_s: float | None = None
    """The other way; None: both ways share one pipe."""
    latency_ns: int = 0
    """Of a load or a write, after its bytes."""
    is_shared: bool = False
    """Whether what one engine of the pool puts there can be hit by all."""
    pool_bytes_per_s: float | None = None
    """What all engines of the pool together read and write, where it is shared; None: more than
    they ask for."""
    survives_crash: bool = False
    """Whether content stays when an engine's process is gone."""


class Pipe:
    """Transfers one after the other, each with the whole bandwidth; how a copy engine works."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_ns = bytes_per_s / NS_PER_S
        self.free_ns = 0
        """When what was asked for so far has moved."""
        self.busy_ns = 0
        self.moved_bytes = 0

    def duration_ns(self, num_bytes: int) -> int:
        """Of a transfer, without waiting."""
        return math.ceil(num_bytes / self._bytes_per_ns)

    def move(self, now_ns: int, num_bytes: int) -> tuple[int, int]:
        """Ask for a transfer; returns when it begins and ends."""
        start_ns = max(now_ns, self.free_ns)
        taken_ns = self.duration_ns(num_bytes)
        self.free_ns = start_ns + taken_ns
        self.busy_ns += taken_ns
        self.moved_bytes += num_bytes
        return start_ns, self.free_ns


Piece = tuple[int, int, int]
"""(prefix id, first block of it, block after the last)."""


class TierStore:
    """Blocks by prefix id, one stretch of each; the least recently used goes first, tail first."""

    def __init__(self, capacity_blocks: int | None) -> None:
        self.capacity_blocks = capacity_blocks
        self._spans: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.held = self.most_held = 0
        self.added = self.evicted = self.lost = 0
        """Blocks; what was added is held, or was evicted or lost."""

    def reach(self, prefix_id: int, block: int) -> int:
        """The block after the last that is here without a gap from ``block`` on."""
        start, stop = self._spans.get(prefix_id, (0, 0))
        return stop if start <= block < stop else block

    def gaps(self, piece: Piece) -> list[Piece]:
        """What of it is not here."""
        prefix_id, first, last = piece
        start, stop = self._spans.get(prefix_id, (0, 0))
        start, stop = max(start, first), min(stop, last)
        if start >= stop:
            return [piece]
        sides = ((first, start), (stop, last))
        return [(prefix_id, *side) for side in sides if side[0] < side[1]]

    def touch(self, prefix_id: int) -> None:
        """It has been used."""
        if prefix_id in self._spans:
            self._spans.move_to_end(prefix_id)

    def put(self, piece: Piece) -> list[Piece]:
        """Add content, as the youngest; returns what had to go for it.

        Where it neither meets nor overlaps what is here of its id, it takes that one's place.
        """
        prefix_id, first, last = piece
        gone: list[Piece] = []
        span = self._spans.pop(prefix_id, None)
        if span is not None and (first > span[1] or last < span[0]):
            gone.append((prefix_id, *span))
            self._drop(span[1] - span[0])
            span = None
        before = 0
        if span is not None:
            before = span[1] - span[0]
            first, last = min(first, span[0]), max(last, span[1])
        self._spans[prefix_id] = (first, last)
        self.added += last - first - before
        self.held += last - first - before
        self._make_room(gone)
        self.most_held = max(self.most_held, self.held)
        return gone

    def _make_room(self, gone: list[Piece]) -> None:
        while self.capacity_blocks is not None and self.held > self.capacity_blocks:
            prefix_id, (start, stop) = next(iter(self._spans.items()))
            left = max(start, stop - (self.held - self.capacity_blocks))
            gone.append((prefix_id, left, stop))
            self._drop(stop - left)
            if left > start:
                self._spans[prefix_id] = (start, left)
            else:
                del self._spans[prefix_id]

    def _drop(self, blocks: int) -> None:
        self.held -= blocks
        self.evicted += blocks

    def lose_all(self) -> None:
        """Everything is gone at once."""
        self.lost += self.held
        self.held = 0
        self._spans.clear()
