"""Turn a scenario's prefix cache options into what the simulation takes."""

from __future__ import annotations

import math
from typing import NamedTuple

from costmodels.hardware.gpus import GIB, GpuSpec
from costmodels.hardware.links import host_link
from policies import EVICTIONS
from scenarios.build.plugins import eviction_factory
from scenarios.build.replica import Replica
from scenarios.schema import Scenario
from scenarios.schema.memory import HostTier, RemoteTier, SsdTier
from sim.clock import to_ns
from sim.errors import ScenarioError
from sim.evidence import Source, weakest
from sim.kv.eviction import CacheConfig
from sim.kv.layout import PLAIN
from sim.kv.tier_store import TierConfig
from sim.kv.tiers import TiersConfig

_TIERS = ("host", "ssd", "remote")


class Cache(NamedTuple):
    """The prefix cache of each engine, and the sources of its numbers."""

    config: CacheConfig
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def load_label(self) -> str | None:
        """Evidence label of the time that loads take; None if nothing is loaded."""
        bandwidths = [source["label"] for source in self.sources if source["what"].endswith("/s")]
        return weakest(bandwidths) if bandwidths else None


def cache_of(replica: Replica) -> Cache:
    """Build the prefix cache of each engine.

    Raises `ScenarioError` for policies and tiers that cannot be.
    """
    kv = replica.scenario.kv
    make_eviction = eviction_factory(kv.eviction, EVICTIONS)
    tiers, sources, notes = _tiers(replica)
    config = None
    if tiers and kv.tiers is not None:
        config = TiersConfig(
            tiers=tiers,
            write=kv.tiers.write,
            load=kv.tiers.load,
            layerwise=kv.tiers.layerwise,
            layers=replica.model.num_layers,
        )
    cache = CacheConfig(make_eviction=make_eviction, prefix_index=kv.prefix_index, tiers=config)
    return Cache(cache, sources, notes)


def _tiers(
    replica: Replica,
) -> tuple[tuple[TierConfig, ...], tuple[Source, ...], tuple[str, ...]]:
    scenario = replica.scenario
    tiers = scenario.kv.tiers
    named = {} if tiers is None else {name: getattr(tiers, name) for name in _TIERS}
    chosen = {name: tier for name, tier in named.items() if tier is not None}
    if not chosen:
        return (), (), ()
    if not scenario.kv.enable_prefix_caching:
        raise ScenarioError(
            "kv.tiers hold cached prefixes, and kv.enable_prefix_caching is false; drop one"
        )
    if replica.memory.blocks.layout != PLAIN:
        raise ScenarioError(
            "kv.tiers hold blocks of layers whose state grows with every token alone; this model "
            "has windows, recurrent states or budgets beside them"
        )
    _check_host(scenario)
    built, sources, notes = [], [], []
    for name, tier in chosen.items():
        config, of_tier = _tier(name, tier, replica)
        built.append(config)
        sources += of_tier
        notes.append(_note(config))
    return tuple(built), tuple(sources), tuple(notes)


def _check_host(scenario: Scenario) -> None:
    tiers, has_gib = scenario.kv.tiers, scenario.hardware.host_memory_gb
    if tiers is None or tiers.host is None or has_gib is None:
        return
    if tiers.host.capacity_gib > has_gib:
        raise ScenarioError(
            f"kv.tiers.host.capacity_gib {tiers.host.capacity_gib:g} is more than "
            f"hardware.host_memory_gb {has_gib:g}"
        )


def _tier(
    name: str, tier: HostTier | SsdTier | RemoteTier, replica: Replica
) -> tuple[TierConfig, list[Source]]:
    """Build one tier and the sources of its numbers.

    Each GPU moves its own part of a block; all ranks of a replica form one pool of blocks.
    """
    read, write = _bandwidths(name, tier, replica.scenario, replica.gpu)
    gpus = replica.layout.gpus
    block_gpus = gpus // replica.layout.data_parallel_size
    block_bytes = math.ceil(replica.memory.blocks.block_bytes / tier.compression) * block_gpus
    capacity = None
    if tier.capacity_gib is not None:
        parts = 1 if isinstance(tier, RemoteTier) else gpus
        capacity = int(tier.capacity_gib * parts * GIB) // block_bytes
        if not capacity:
            raise ScenarioError(
                f"kv.tiers.{name}.capacity_gib {tier.capacity_gib:g} holds no block of "
                f"{block_bytes:,} bytes"
            )
    latency = Source(
        what=f"kv.tiers.{name} latency, s",
        value=tier.latency_s,
        label="assumed",
        source="given" if "latency_s" in tier.model_fields_set else "a default",
    )
    of_pool = tier.pool_bytes_per_s if isinstance(tier, RemoteTier) else None
    config = TierConfig(
        name=name,
        capacity_blocks=capacity,
        block_bytes=block_bytes,
        read_bytes_per_s=_in_pieces(read, tier, replica, block_bytes / block_gpus) * gpus,
        write_bytes_per_s=None
        if write is None
        else _in_pieces(write, tier, replica, block_bytes / block_gpus) * gpus,
        latency_ns=to_ns(tier.latency_s),
        is_shared=isinstance(tier, RemoteTier),
        pool_bytes_per_s=math.inf if of_pool is None else of_pool,
        survives_crash=not isinstance(tier, HostTier),
    )
    return config, [source for source in (read, write, latency) if source is not None]


def _in_pieces(
    rate: Source, tier: HostTier | SsdTier | RemoteTier, replica: Replica, block_bytes: float
) -> float:
    """Return a bandwidth with the time to start the copies of a GPU's ``block_bytes``, one a
    layer."""
    bytes_per_s = float(str(rate["value"]))
    if not isinstance(tier, HostTier):
        return bytes_per_s
    started_s = tier.copy_s * replica.model.num_layers
    return block_bytes / (block_bytes / bytes_per_s + started_s)


def _bandwidths(
    name: str, tier: HostTier | SsdTier | RemoteTier, scenario: Scenario, gpu: GpuSpec
) -> tuple[Source, Source | None]:
    """Return one GPU's bandwidth from the tier, and the one towards it if that link is separate."""
    write = None
    if isinstance(tier, RemoteTier):
        if tier.bytes_per_s is None and gpu.network_bytes_per_s is None:
            raise ScenarioError(
                f"the network of {gpu.name} is not known: give kv.tiers.remote.bytes_per_s"
            )
        read = _bandwidth(name, gpu.network_bytes_per_s, "datasheet", f"network of {gpu.name}")
    elif tier.bytes_per_s is None:
        hardware = scenario.hardware
        link = host_link(
            gpu,
            bytes_per_s=hardware.host_link_bytes_per_s,
            disk_read_bytes_per_s=hardware.disk_read_bytes_per_s,
        )
        there, back, disk = link.sources
        found = disk if isinstance(tier, SsdTier) else there
        read = _bandwidth(name, found["value"], found["label"], found["source"])
        if isinstance(tier, HostTier):
            write = _bandwidth(name, back["value"], back["label"], back["source"], "written")
    if tier.bytes_per_s is not None:
        read = _bandwidth(name, tier.bytes_per_s, "assumed", "given")
        if isinstance(tier, HostTier):
            write = _bandwidth(name, tier.bytes_per_s, "assumed", "as the other way", "written")
    if tier.write_bytes_per_s is not None:
        write = _bandwidth(name, tier.write_bytes_per_s, "assumed", "given", "written")
    return read, write


def _bandwidth(name: str, value: object, label: str, source: str, way: str = "loaded") -> Source:
    return Source(what=f"kv.tiers.{name} {way}, B/s", value=value, label=label, source=source)


def _note(tier: TierConfig) -> str:
    size = "without bound"
    if tier.capacity_blocks is not None:
        size = f"of {tier.capacity_blocks * tier.block_bytes / GIB:,.4g} GiB"
    whose = "of all engines of the pool" if tier.is_shared else "an engine"
    return (
        f"a {tier.name} tier {size} {whose} holds cached prefixes, loaded at up to "
        f"{tier.read_bytes_per_s / 1e9:.3g} GB/s an engine"
    )
