"""Random tiers below device memory, and checks that their blocks and bytes balance."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.strategies as st

from sim.fleet.cluster import RunLog
from sim.kv.layout import KVLayout
from sim.kv.tier_store import Pipe, TierConfig
from sim.kv.tiers import TiersConfig
from tests.properties.caches import CACHES
from tests.properties.engines import ENGINES

TIER_ENGINES = ENGINES.map(lambda engine: replace(engine, kv_layout=KVLayout()))
TIERS = st.builds(
    TierConfig,
    name=st.just("a tier"),
    capacity_blocks=st.sampled_from([3, 30, 300, None]),
    block_bytes=st.just(1_000_000),
    read_bytes_per_s=st.sampled_from([1e8, 1e9, 1e11]),
    write_bytes_per_s=st.sampled_from([None, 1e8, 1e10]),
    latency_ns=st.sampled_from([0, 100_000]),
    is_shared=st.booleans(),
    pool_bytes_per_s=st.sampled_from([math.inf, 5e8]),
    survives_crash=st.booleans(),
)
CONFIGS = st.builds(
    TiersConfig,
    tiers=st.lists(TIERS, min_size=1, max_size=3).map(tuple),
    write=st.sampled_from(["through", "back"]),
    load=st.sampled_from(["always", "cheaper", "always"]),
    layerwise=st.booleans(),
    layers=st.sampled_from([1, 4]),
)
CACHE_CONFIGS = st.builds(
    lambda cache, tiers: replace(CACHES[cache], tiers=tiers), st.sampled_from(list(CACHES)), CONFIGS
)


def check_tiers(log: RunLog) -> None:
    """Blocks that came to a tier are there, or were evicted or lost; bytes are those of blocks."""
    pipes: dict[Pipe, int] = {}
    for tiers in log.tiers.values():
        for way in tiers.ways:
            store, counts, size = way.store, way.counts, way.config.block_bytes
            assert store.added == store.held + store.evicted + store.lost
            assert store.held == sum(stop - start for start, stop in store._spans.values())
            capacity = way.config.capacity_blocks
            assert capacity is None or store.held <= capacity
            assert min(store.held, store.evicted, store.lost) >= 0
            pipes[way.to_device] = pipes.get(way.to_device, 0) + counts.loaded * size
            pipes[way.from_device] = pipes.get(way.from_device, 0) + counts.written * size
    assert all(pipe.moved_bytes == num_bytes for pipe, num_bytes in pipes.items())
    for store in {way.store for tiers in log.tiers.values() for way in tiers.ways}:
        ways = [w for tiers in log.tiers.values() for w in tiers.ways if w.store is store]
        assert store.added <= sum(way.counts.written for way in ways)


def check_hits(log: RunLog) -> None:
    """Hits by tier add up to all hits, and are no more than was loaded."""
    by_tier: dict[int, int] = {}
    for request, found in log.requests.tier_tokens.items():
        assert sum(found.values()) == log.requests.cached_tokens[request]
        for tier, tokens in found.items():
            by_tier[tier] = by_tier.get(tier, 0) + tokens
    for tier in by_tier.keys() - {0}:
        loaded = sum(
            tiers.ways[tier - 1].counts.loaded
            for tiers in log.tiers.values()
            if tier <= len(tiers.ways)
        )
        assert by_tier[tier] <= loaded * max(p.engine.block_size for p in log.fleet.pools)
