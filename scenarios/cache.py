"""What a scenario says of its prefix caches, into what the simulation takes."""

from __future__ import annotations

from policies import EVICTIONS
from scenarios.plugins import eviction_factory
from scenarios.schema import Scenario
from sim.cache_config import CacheConfig


def cache_config(scenario: Scenario) -> CacheConfig:
    """The prefix cache of each engine. Raises ScenarioError."""
    kv = scenario.kv
    return CacheConfig(
        make_eviction=eviction_factory(kv.eviction, EVICTIONS), prefix_index=kv.prefix_index
    )
