"""A tier below device memory: the KV content it holds, and the pipe that content moves over."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from sim.clock import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """One tier. Bytes and bandwidths are those of all GPUs of an engine together."""

    name: str
    capacity_blocks: int | None
    """Blocks per engine, or of all engines together if the tier is shared; None: unlimited."""
    block_bytes: int
    read_bytes_per_s: float
    """Bandwidth of one engine's loads, towards its devices."""
    write_bytes_per_s: float | None = None
    """Bandwidth of writes; None: both directions share one pipe."""
    latency_ns: int = 0
    """Latency of a load or a write, after its bytes."""
    is_shared: bool = False
    """Whether all engines of the pool can hit what one of them writes."""
    pool_bytes_per_s: float = math.inf
    """Total bandwidth of all engines of the pool, if the tier is shared."""
    survives_crash: bool = False
    """Whether content survives a crash of its engine."""


class Pipe:
    """Transfers one after the other, each at full bandwidth, as a copy engine works."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_ns = bytes_per_s / NS_PER_S
        self.free_ns = 0
        """Time at which all requested transfers are done."""
        self.busy_ns = 0
        self.moved_bytes = 0

    def duration_ns(self, num_bytes: int) -> int:
        """Return the duration of a transfer, without waiting."""
        return math.ceil(num_bytes / self._bytes_per_ns)

    def move(self, now_ns: int, num_bytes: int) -> tuple[int, int]:
        """Queue a transfer; return when it begins and ends."""
        start_ns = max(now_ns, self.free_ns)
        taken_ns = self.duration_ns(num_bytes)
        self.free_ns = start_ns + taken_ns
        self.busy_ns += taken_ns
        self.moved_bytes += num_bytes
        return start_ns, self.free_ns


_UNLIMITED = 1 << 62

Piece = tuple[int, int, int]
"""(prefix id, first block, block after the last)."""


class TierStore:
    """Blocks by prefix id, one stretch each; the least recently used id is evicted first, from
    its tail."""

    def __init__(self, capacity_blocks: int | None) -> None:
        self.capacity_blocks = _UNLIMITED if capacity_blocks is None else capacity_blocks
        self._spans: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.held = self.most_held = 0
        self.added = self.evicted = self.lost = 0
        """Blocks added so far; each is still held, or was evicted or lost."""

    def reach(self, prefix_id: int, block: int) -> int:
        """Return the block after the last one held without a gap from ``block`` on."""
        start, stop = self._spans.get(prefix_id, (0, 0))
        return stop if start <= block < stop else block

    def gaps(self, piece: Piece) -> list[Piece]:
        """Return the parts of a piece that are not held."""
        prefix_id, first, last = piece
        start, stop = self._spans.get(prefix_id, (0, 0))
        start, stop = max(start, first), min(stop, last)
        if start >= stop:
            return [piece]
        sides = ((first, start), (stop, last))
        return [(prefix_id, *side) for side in sides if side[0] < side[1]]

    def touch(self, prefix_id: int) -> None:
        """Mark a prefix id as used."""
        if prefix_id in self._spans:
            self._spans.move_to_end(prefix_id)

    def put(self, piece: Piece) -> list[Piece]:
        """Add content as the youngest; return what was evicted for it.

        If it neither meets nor overlaps the stretch held for its id, it replaces that stretch.
        """
        prefix_id, first, last = piece
        gone: list[Piece] = []
        start, stop = self._spans.pop(prefix_id, (first, first))
        if first > stop or last < start:
            gone.append((prefix_id, start, stop))
            self._drop(stop - start)
            start, stop = first, first
        first, last = min(first, start), max(last, stop)
        self._spans[prefix_id] = (first, last)
        self.added += last - first - (stop - start)
        self.held += last - first - (stop - start)
        self._make_room(gone)
        self.most_held = max(self.most_held, self.held)
        return gone

    def _make_room(self, gone: list[Piece]) -> None:
        while self.held > self.capacity_blocks:
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
        """Lose all content at once."""
        self.lost += self.held
        self.held = 0
        self._spans.clear()
