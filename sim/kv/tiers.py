"""The tiers below one engine's device memory: what lookups find there, loads and writes.

Content goes down when a request releases its blocks (``through``: to every tier), or when the tier
above evicts it (``back``: to the next). It can be hit once it is written; moving it takes time on
each tier's pipe, none on the GPU. A load leaves a copy where it was and uses only the pipe of its
own tier. Private content of a request is never written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import simpy

from sim.clock import after_unseen
from sim.kv.prefix_index import Hit, PrefixIndex
from sim.kv.tier_store import Piece, Pipe, TierConfig, TierStore
from sim.request import Request

Write = Literal["through", "back"]
Load = Literal["always", "never", "cheaper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersConfig:
    """The tiers below device memory, the nearest first."""

    tiers: tuple[TierConfig, ...]
    write: Write = "through"
    load: Load = "cheaper"
    """``cheaper``: load as much as is predicted to arrive sooner than it can be computed."""
    layerwise: bool = False
    """Compute a layer as soon as it is loaded, instead of waiting for the whole load."""
    layers: int = 1


SharedTiers = Sequence[Callable[[], tuple[TierStore, Pipe]]]
"""What gives an engine each tier's store, and the pipe of all that use the store."""


def shared_tiers(config: TiersConfig) -> SharedTiers:
    """Return where the engines of one pool get the stores of all tiers."""
    return [_shared(tier) if tier.is_shared else partial(_own, tier) for tier in config.tiers]


def _shared(tier: TierConfig) -> Callable[[], tuple[TierStore, Pipe]]:
    common = TierStore(tier.capacity_blocks), Pipe(tier.pool_bytes_per_s)
    return lambda: common


def _own(tier: TierConfig) -> tuple[TierStore, Pipe]:
    return TierStore(tier.capacity_blocks), Pipe(math.inf)


class Segment(NamedTuple):
    """Consecutive blocks of a request that one tier holds."""

    tier: int
    blocks: int
    pieces: list[Piece]


class TierCounts:
    """Blocks moved between an engine and one tier."""

    __slots__ = ("loaded", "loads", "written")

    def __init__(self) -> None:
        self.loaded = self.loads = self.written = 0


class _Way:
    """One engine's access to a tier."""

    def __init__(self, config: TierConfig, store: TierStore, common: Pipe) -> None:
        self.config = config
        self.store = store
        self.counts = TierCounts()
        self.to_device = Pipe(config.read_bytes_per_s)
        write = config.write_bytes_per_s
        self.from_device = self.to_device if write is None else Pipe(write)
        self.under_way: dict[int, tuple[int, int]] = {}
        """Blocks being written, by prefix id: the first, and the one after the last."""
        self._common = common

    def load_ns(self, now_ns: int, blocks: int) -> int:
        """Return how long a load would take, its time in the queue included."""
        num_bytes = blocks * self.config.block_bytes
        pipes = (self.to_device, self._common)
        end_ns = max(max(now_ns, pipe.free_ns) + pipe.duration_ns(num_bytes) for pipe in pipes)
        return end_ns + self.config.latency_ns - now_ns

    def move(self, pipe: Pipe, now_ns: int, blocks: int) -> tuple[int, int]:
        """Queue a transfer; return when it begins and ends."""
        num_bytes = blocks * self.config.block_bytes
        spans = (pipe.move(now_ns, num_bytes), self._common.move(now_ns, num_bytes))
        start_ns, end_ns = (max(times) for times in zip(*spans, strict=True))
        return start_ns, end_ns + self.config.latency_ns


class Tiers:
    """All tiers of one engine."""

    def __init__(
        self,
        env: simpy.Environment,
        config: TiersConfig,
        index: PrefixIndex,
        shared: SharedTiers,
    ) -> None:
        """``shared`` is common to all engines of a pool."""
        self.config = config
        self.prefill_ns: Callable[[Request, int], int] = lambda request, computed_tokens: 0
        """Predicts the GPU time to prefill a request from a number of tokens on."""
        self._env = env
        self._index = index
        self.ways = [
            _Way(tier, *store_and_pipe())
            for tier, store_and_pipe in zip(config.tiers, shared, strict=True)
        ]
        self._lives = 0
        self._evicted: list[Piece] = []
        if config.write == "back":
            index.watchers.on_evict = (self._note_evicted,)

    @property
    def _now_ns(self) -> int:
        return int(self._env.now)

    def find(self, request: Request, hit: Hit, limit: int) -> list[Segment]:
        """Find what the tiers hold of a request directly behind its hit, up to ``limit`` leading
        blocks."""
        found: list[Segment] = []
        at, base = hit.blocks, 0
        for prefix_id, size in self._index.path(request):
            if prefix_id < 0 or at >= limit:
                break
            stop = min(size, limit - base)
            block = at - base
            while block < stop:
                tier, reached = self._reach(prefix_id, block, stop)
                if tier < 0:
                    return found
                piece = (prefix_id, block, reached)
                if found and found[-1].tier == tier:
                    last = found[-1]
                    last.pieces.append(piece)
                    found[-1] = last._replace(blocks=last.blocks + reached - block)
                else:
                    found.append(Segment(tier, reached - block, [piece]))
                block = reached
            at, base = max(at, base + stop), base + size
        return found

    def _reach(self, prefix_id: int, block: int, stop: int) -> tuple[int, int]:
        """Return the nearest tier that holds a block and how far it reaches; tier -1: none."""
        for tier, way in enumerate(self.ways):
            reached = min(way.store.reach(prefix_id, block), stop)
            if reached > block:
                return tier, reached
        return -1, block

    def worthwhile(self, request: Request, hit: Hit, found: list[Segment], block_size: int) -> int:
        """Return how many of the segments are worth loading; the rest is computed."""
        if self.config.load != "cheaper" or not found:
            return len(found) if self.config.load == "always" else 0
        now_ns, blocks = self._now_ns, hit.blocks
        best, soonest_ns = 0, self.prefill_ns(request, blocks * block_size)
        by_tier = [0] * len(self.ways)
        for count, segment in enumerate(found, 1):
            blocks += segment.blocks
            by_tier[segment.tier] += segment.blocks
            loaded_ns = max(
                way.load_ns(now_ns, n) for way, n in zip(self.ways, by_tier, strict=True) if n
            )
            total_ns = loaded_ns + self.prefill_ns(request, blocks * block_size)
            if total_ns < soonest_ns:
                best, soonest_ns = count, total_ns
        return best

    def load(self, segments: list[Segment]) -> tuple[int, int]:
        """Load segments; return when the first bytes move and when all have arrived."""
        now_ns = self._now_ns
        spans = []
        by_tier: dict[int, int] = {}
        for segment in segments:
            by_tier[segment.tier] = by_tier.get(segment.tier, 0) + segment.blocks
        for tier, blocks in by_tier.items():
            way = self.ways[tier]
            spans.append(way.move(way.to_device, now_ns, blocks))
            way.counts.loads += 1
            way.counts.loaded += blocks
        for segment in reversed(segments):  # in the order of writing: heads become the youngest
            for prefix_id, _, _ in reversed(segment.pieces):
                self.ways[segment.tier].store.touch(prefix_id)
        return min(start for start, _ in spans), max(end for _, end in spans)

    def left(self, request: Request) -> None:
        """Write the pinned content of a request that releases its blocks (policy ``through``)."""
        if self.config.write != "through":
            return
        pieces = [(node_id, 0, depth) for node_id, depth in request.pinned if node_id >= 0]
        if pieces:
            pieces.reverse()  # tails are evicted first
            for way in self.ways:
                self._write(way, pieces)

    def _note_evicted(self, prefix_id: int, start: int, stop: int) -> None:
        """Record an eviction from device memory; it is written once this instant's evictions are
        known."""
        if not self._evicted:
            after_unseen(self._env, 0, self._write_evicted)
        self._evicted.append((prefix_id, start, stop))

    def _write_evicted(self) -> None:
        pieces, self._evicted = self._evicted, []
        if pieces:
            self._write(self.ways[0], pieces)

    def _write(self, way: _Way, pieces: list[Piece]) -> None:
        """Write pieces that are neither held nor on their way; mark the others as used."""
        asked: list[tuple[int, list[Piece]]] = []
        blocks = 0
        for piece in pieces:
            prefix_id, first, last = piece
            start, stop = way.under_way.get(prefix_id, (0, 0))
            gaps = [] if start <= first and last <= stop else way.store.gaps(piece)
            if gaps:
                blocks += sum(gap[2] - gap[1] for gap in gaps)
                way.under_way[prefix_id] = (first, last)
            way.store.touch(prefix_id)
            asked.append((prefix_id, gaps))
        if not blocks:
            return
        way.counts.written += blocks
        end_ns = way.move(way.from_device, self._now_ns, blocks)[1]
        life = self._lives

        def landed() -> None:
            if life == self._lives:  # otherwise its engine was lost with the write under way
                self._land(way, asked)

        after_unseen(self._env, end_ns - self._now_ns, landed)

    def _land(self, way: _Way, asked: list[tuple[int, list[Piece]]]) -> None:
        gone: list[Piece] = []
        for prefix_id, gaps in asked:
            for gap in gaps:
                way.under_way.pop(prefix_id, None)
                gone += way.store.put(gap)
            way.store.touch(prefix_id)  # in order: a prefix is younger than what continues it
        below = self.ways.index(way) + 1
        if gone and self.config.write == "back" and below < len(self.ways):
            self._write(self.ways[below], gone)

    def lose(self) -> None:
        """Lose the engine's own tiers after a crash."""
        self._lives += 1
        self._evicted.clear()
        for way in self.ways:
            if not way.config.survives_crash:
                way.store.lose_all()
            way.under_way.clear()
            way.to_device.free_ns = way.from_device.free_ns = self._now_ns
