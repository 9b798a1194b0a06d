"""Prefix caches by eviction policy and index."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from policies import EVICTIONS
from scenarios.build.plugins import load_attribute
from sim.engine.config import EngineConfig
from sim.kv.eviction import PLAIN_CACHE, CacheConfig
from sim.protocols import CachedContent
from tests.properties.engines import ENGINES

RADIX = CacheConfig(prefix_index="radix")


def evicting(name: str, **options: Any) -> CacheConfig:
    return CacheConfig(make_eviction=partial(load_attribute(EVICTIONS[name]), **options))


class Contrary:
    """A user's policy at its worst: what came last, of that what was used most, goes first."""

    def priority(self, content: CachedContent) -> float:
        return -content.born - content.uses / 1000


CACHES = {
    "lru": PLAIN_CACHE,
    "lfu": evicting("lfu"),
    "fifo": evicting("fifo"),
    "ttl": evicting("ttl", seconds=0.05),
    "short ttl": evicting("ttl", seconds=1e-6),
    "contrary": CacheConfig(make_eviction=Contrary),
    "radix": RADIX,
    "radix, lfu": replace(evicting("lfu"), prefix_index="radix"),
    "radix, fifo": replace(evicting("fifo"), prefix_index="radix"),
    "radix, ttl": replace(evicting("ttl", seconds=0.05), prefix_index="radix"),
    "radix, contrary": CacheConfig(make_eviction=Contrary, prefix_index="radix"),
}


def without_states(engine: EngineConfig) -> EngineConfig:
    """A radix tree has no windows and recurrent states beside it."""
    return replace(engine, kv_layout=replace(engine.kv_layout, windows=(), checkpoint_pages=0))


RADIX_ENGINES = ENGINES.filter(lambda e: e.kv_layout.pages(1, 4) > 0).map(without_states)
RADIX_ENGINES = RADIX_ENGINES.filter(lambda e: e.kv_layout.pages(1, 4) > 0)
