"""What lies below the KV caches in device memory: host memory, a disk, a pool of all engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scenarios.schema.fields import Number, Positive, Section

Gib = Annotated[Number, Field(gt=0, le=1e9)]
Latency = Annotated[Number, Field(ge=0, le=60)]


class _Tier(Section):
    """What all tiers have."""

    write_bytes_per_s: Positive | None = Field(
        None,
        description="towards the tier, a GPU; None: the host link's other way; elsewhere loads and "
        "writes share one bandwidth",
    )
    compression: Annotated[Number, Field(ge=1, le=1000)] = Field(
        1.0,
        description="how many times smaller content is there than in device memory (CacheGen, "
        "2310.07240, reports 3.5 to 4.3 against 8 bits); what coding takes is not modelled",
    )


class HostTier(_Tier):
    """Memory of each engine's host; lost when the engine crashes."""

    capacity_gib: Gib = Field(description="GiB of host memory for cached KV, a GPU")
    bytes_per_s: Positive | None = Field(
        None, description="towards a GPU; None: its host link (hardware.host_link_bytes_per_s)"
    )
    latency_s: Latency = Field(1e-5, description="added to each load and write")


class SsdTier(_Tier):
    """Disks of each engine's host; they outlive its process."""

    capacity_gib: Gib | None = Field(None, description="GiB for cached KV, a GPU; None: no bound")
    bytes_per_s: Positive | None = Field(
        None, description="read for a GPU; None: the disk's (hardware.disk_read_bytes_per_s)"
    )
    latency_s: Latency = Field(1e-4, description="added to each load and write")


class RemoteTier(_Tier):
    """A store that all engines of a pool read and write; it outlives them."""

    capacity_gib: Gib | None = Field(None, description="GiB in all; None: no bound")
    bytes_per_s: Positive | None = Field(
        None, description="towards a GPU; None: its network, as its datasheet has it"
    )
    pool_bytes_per_s: Positive | None = Field(
        None, description="of all engines together, both ways; None: more than they ask for"
    )
    latency_s: Latency = Field(1e-4, description="added to each load and write")


class KvTiers(Section):
    """Cached prefixes go down these tiers in this order, and come back when they are asked for."""

    host: HostTier | None = None
    ssd: SsdTier | None = None
    remote: RemoteTier | None = None
    write: Literal["through", "back"] = Field(
        "through",
        description="content is written to all tiers when a request leaves its blocks (through), "
        "or to the next when the one above drops it (back; simulated step by step once memory is "
        "full, which is slower)",
    )
    load: Literal["cheaper", "always", "never"] = Field(
        "cheaper",
        description="load what a lower tier has, compute it again, or whichever is predicted to "
        "be sooner, the link's queue included",
    )
    layerwise: bool = Field(
        False,
        description="compute each layer as soon as its KV is loaded; false: a request waits for "
        "all of it, while others go on",
    )
