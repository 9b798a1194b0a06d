"""What the tiers of the prefix caches held and moved, and where hits came from."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.books.metrics import RequestMetrics
from sim.fleet.cluster import RunLog


def tier_facts(log: RunLog, metrics: RequestMetrics) -> list[dict[str, Any]]:
    """One entry a pool and tier, device memory first; empty where no engine has a tier below it.

    Hits are of the prompts of finished measured requests; bytes are of the whole run, summed over
    the pool's engines. What came to a tier is held, or was evicted or lost.
    """
    facts: list[dict[str, Any]] = []
    cached = np.frombuffer(log.requests.cached_tokens, np.int64)
    replica = np.frombuffer(log.requests.replica, np.int32)
    first = 0
    for pool in log.fleet.pools:
        engines = range(first, first + pool.replicas)
        first = engines.stop
        if pool.cache.tiers is None:
            continue
        counted = metrics.counted & (replica >= engines.start) & (replica < engines.stop)
        prompts = int(log.table.prompt_tokens[counted].sum())
        hits = [int(cached[counted].sum())] + [0] * len(pool.cache.tiers.tiers)
        for request, by_tier in log.requests.tier_tokens.items():
            if counted[request]:
                for tier, tokens in by_tier.items():
                    hits[tier] += tokens if tier else 0
        hits[0] -= sum(hits[1:])
        facts.append({"pool": pool.name, "tier": "device", **_hit_facts(hits[0], prompts)})
        for tier, of_tier in enumerate(hits[1:]):
            ways = [log.tiers[engine].ways[tier] for engine in engines]
            size = ways[0].config.block_bytes
            stores = list({id(way.store): way.store for way in ways}.values())
            busy_ns = max(p.busy_ns for way in ways for p in (way.to_device, way.from_device))
            capacity = ways[0].config.capacity_blocks
            facts.append(
                {
                    "pool": pool.name,
                    "tier": ways[0].config.name,
                    **_hit_facts(of_tier, prompts),
                    "capacity_bytes": None if capacity is None else capacity * size * len(stores),
                    "peak_bytes": size * sum(store.most_held for store in stores),
                    "added_bytes": size * sum(store.added for store in stores),
                    "held_bytes": size * sum(store.held for store in stores),
                    "evicted_bytes": size * sum(store.evicted for store in stores),
                    "lost_bytes": size * sum(store.lost for store in stores),
                    "loads": sum(way.counts.loads for way in ways),
                    "loaded_bytes": size * sum(way.counts.loaded for way in ways),
                    "written_bytes": size * sum(way.counts.written for way in ways),
                    "link_busy": busy_ns / max(log.end_ns, 1),
                }
            )
    return facts


def _hit_facts(tokens: int, prompt_tokens: int) -> dict[str, Any]:
    share = tokens / prompt_tokens if prompt_tokens else None
    return {"hit_tokens": tokens, "hit_fraction": share}
