"""Scenario fields of memory: KV that is dropped, kept off the device, or cached in tiers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scenarios.schema.fields import BytesPerS, Number, Section, Tokens

_OPTIONS = {
    "streaming_llm": "sink_tokens",
    "h2o": "",
    "snapkv": "observation_tokens",
    "pyramidkv": "observation_tokens",
    "quest": "page_tokens",
}


class KvPolicy(Section):
    """Layers of full grouped-query attention keep, or read, part of their tokens."""

    kind: Literal["streaming_llm", "h2o", "snapkv", "pyramidkv", "quest"] = Field(
        description="streaming_llm: the first and the newest tokens; h2o: heavy hitters and the "
        "newest; snapkv, pyramidkv: the best of the prompt, and all that is generated; quest: all "
        "stay stored, the best pages are read"
    )
    budget_tokens: Tokens = Field(
        description="tokens kept, or read, a head; pyramidkv: the mean over layers"
    )
    sink_tokens: Tokens | None = Field(
        None, description="streaming_llm: first tokens among them; None: 4"
    )
    observation_tokens: Tokens | None = Field(
        None, description="snapkv, pyramidkv: last tokens of the prompt that choose; None: 32"
    )
    page_tokens: Tokens | None = Field(None, description="quest: tokens a page; None: 16")

    @model_validator(mode="after")
    def _options_of_the_kind(self) -> Self:
        for option in filter(None, dict.fromkeys(_OPTIONS.values())):
            if getattr(self, option) is not None and option != _OPTIONS[self.kind]:
                raise ValueError(f"{option} is no option of {self.kind}")
        if self.kind == "streaming_llm" and self.budget_tokens <= (self.sink_tokens or 4):
            raise ValueError(
                f"budget_tokens {self.budget_tokens} must be more than its "
                f"{self.sink_tokens or 4} sink_tokens"
            )
        return self


Reported = Annotated[Number, Field(ge=0, le=1e6)]


class StartupLog(Section):
    """What the start-up log of a server said of one rank's memory (`fleetcast memory` prints it
    beside its own figures)."""

    weights_gib: Reported | None = Field(None, description="loading the model took this much")
    activation_gib: Reported | None = Field(None, description="peak of the start-up profile")
    other_gib: Reported | None = Field(None, description="outside the tensor library: NCCL, ...")
    graphs_gib: Reported | None = Field(None, description="capturing CUDA graphs took this much")
    kv_cache_gib: Reported | None = Field(None, description="left for keys and values")
    kv_cache_tokens: Tokens | None = Field(None, description="tokens that the KV cache holds")
    max_concurrency: Reported | None = Field(
        None, description="requests of max_model_len tokens at once"
    )


Percent = Annotated[Number, Field(ge=0, le=100)]


class OffloadOptions(Section):
    """Weights and state that are streamed to the GPUs layer by layer, as FlexGen's percentages."""

    weights_gpu_percent: Percent = Field(
        100.0, description="of every layer's weights on the GPU; with the next two 100 in all"
    )
    weights_host_percent: Percent = Field(
        0.0,
        description="in host memory, streamed every step, the next layer's beside this one's "
        "computing (ZeRO-Inference: all of them)",
    )
    weights_disk_percent: Percent = Field(0.0, description="on disk, read and streamed every step")
    kv_gpu_percent: Percent = Field(
        100.0, description="of every sequence's keys and values on the GPU; with the next 100"
    )
    kv_host_percent: Percent = Field(
        0.0, description="in host memory, streamed every step; needs hardware.host_memory_gb"
    )

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        for what in ("weights", "kv"):
            shares = {k: v for k, v in self if k.startswith(what)}
            total = sum(shares.values())
            if abs(total - 100) > 1e-6:
                parts = " + ".join(f"{name} {value:g}" for name, value in shares.items())
                raise ValueError(f"must add up to 100: {parts} = {total:g}")
        return self


Gib = Annotated[Number, Field(gt=0, le=1e9)]
Latency = Annotated[Number, Field(ge=0, le=60)]


class _Tier(Section):
    """Fields that all tiers have."""

    write_bytes_per_s: BytesPerS | None = Field(
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
    bytes_per_s: BytesPerS | None = Field(
        None, description="towards a GPU; None: its host link (hardware.host_link_bytes_per_s)"
    )
    latency_s: Latency = Field(1e-5, description="added to each load and write")
    copy_s: Latency = Field(
        0.0,
        description="to start each copy of one layer's part of a block, beside its bytes; about "
        "5e-6 in vLLM's own offloading",
    )


class SsdTier(_Tier):
    """Disks of each engine's host; they outlive its process."""

    capacity_gib: Gib | None = Field(None, description="GiB for cached KV, a GPU; None: no bound")
    bytes_per_s: BytesPerS | None = Field(
        None, description="read for a GPU; None: the disk's (hardware.disk_read_bytes_per_s)"
    )
    latency_s: Latency = Field(1e-4, description="added to each load and write")


class RemoteTier(_Tier):
    """A store that all engines of a pool read and write; it outlives them."""

    capacity_gib: Gib | None = Field(None, description="GiB in all; None: no bound")
    bytes_per_s: BytesPerS | None = Field(
        None, description="towards a GPU; None: its network, as its datasheet has it"
    )
    pool_bytes_per_s: BytesPerS | None = Field(
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
