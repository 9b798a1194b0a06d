"""Scenario fields of what surrounds the engines: clients, faults, scaling, prices."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scenarios.schema.fields import (
    LONGEST_S,
    BytesPerS,
    Count,
    Interval,
    Number,
    Policy,
    Positive,
    Seconds,
    Section,
    Whole,
)

Wait = Annotated[Number, Field(ge=0, le=LONGEST_S)]


class Clients(Section):
    """How long clients wait, and whether they try again; without it they wait for ever."""

    ttft_timeout_s: Seconds | None = Field(
        None, description="from each sending until a client gives up without a first token"
    )
    e2e_timeout_s: Seconds | None = Field(
        None, description="from each sending until a client gives up without the whole answer"
    )
    max_retries: Annotated[Whole, Field(ge=0, le=1000)] = Field(
        0, description="attempts after the first, when one timed out, failed or was turned away"
    )
    backoff_s: Wait = Field(1.0, description="before the first retry, doubled for each further one")
    max_backoff_s: Wait = Field(60.0, description="the longest back-off")
    retry_budget: Annotated[Number, Field(ge=0, le=100)] | None = Field(
        None,
        description="retries as a share of requests, of all clients together; 0.1 is SRE practice, "
        "None: any number",
    )
    budget_burst: Annotated[Whole, Field(ge=0)] = Field(
        10, description="retries that the budget can save up"
    )
    server_notices: bool = Field(
        True,
        description="whether an engine drops the request of a client that has gone, or serves it "
        "to its end",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        first, whole = self.ttft_timeout_s, self.e2e_timeout_s
        if first is not None and whole is not None and whole < first:
            raise ValueError(
                f"e2e_timeout_s ({whole:g} s) is shorter than ttft_timeout_s ({first:g} s): the "
                "whole answer cannot be there before its first token"
            )
        if self.backoff_s > self.max_backoff_s:
            raise ValueError(
                f"backoff_s ({self.backoff_s:g} s) is above max_backoff_s "
                f"({self.max_backoff_s:g} s), the longest back-off"
            )
        return self


class FaultEvent(Section):
    """One fault at a known time."""

    at_s: Wait = Field(description="seconds from the start")
    kind: Literal["engine_crash", "gpu_lost", "slow_node", "link_slow", "link_cut"] = Field(
        description="engine_crash and gpu_lost lose all that runs there; a lost GPU needs another "
        "machine before the restart"
    )
    replica: Annotated[Whole, Field(ge=0)] | None = Field(
        None, description="which, counted over all pools from 0"
    )
    pool: str | None = Field(None, description="all replicas of a pool at once")
    link: str | None = Field(None, description="core: what all KV transfers share")
    factor: Annotated[Positive, Field(le=1e6)] = Field(
        1.0, description="slow_node: how many times as long; link_slow: share of the bandwidth"
    )
    duration_s: Wait = Field(0.0, description="of a slow node or link, or a cut")

    @model_validator(mode="after")
    def _factor_fits(self) -> Self:
        if self.kind == "slow_node" and self.factor < 1:
            raise ValueError(
                f"factor is {self.factor:g}: of a slow_node it is how many times as long its steps "
                "take, at least 1"
            )
        if self.kind == "link_slow" and self.factor > 1:
            raise ValueError(
                f"factor is {self.factor:g}: of a link_slow it is the share of the bandwidth that "
                "is left, at most 1"
            )
        return self


class Faults(Section):
    """What fails, and how it is noticed; without it nothing does."""

    schedule: tuple[FaultEvent, ...] = Field((), description="faults at known times")
    mtbf_s: Seconds | None = Field(
        None, description="mean time until a replica crashes, exponential; None: never"
    )
    detection_s: Wait = Field(
        5.0, description="from a crash until routers know of it and the restart begins"
    )
    proxy_retries: Annotated[Whole, Field(ge=0, le=1000)] = Field(
        0, description="engines a lost request is tried on after its first, unknown to its client"
    )


class Startup(Section):
    """What passes before an engine serves, after a crash or when one is added, and what it has
    compiled by then."""

    process_s: Wait = Field(
        30.0, description="the engine's own start, without its weights: imports, graphs, warm-up"
    )
    load_bytes_per_s: BytesPerS | None = Field(
        None, description="weights to each GPU; None: the disk behind it (hardware.*)"
    )
    provision_s: Wait = Field(120.0, description="until one more machine is there")
    kernel_cache: Literal["full", "disk", "kept", "lost"] = Field(
        "full",
        description="kernels that the engine compiles when a step's size first needs them: full, "
        "all are there; disk, compiled before, but each process loads them; kept, none at "
        "first, and what is compiled stays on the machine; lost, none after any start, as in a "
        "container without a volume",
    )


class Autoscaling(Section):
    """How many replicas there are, over time, at most the pool's; without it all of them."""

    policy: Policy = Field(description="an autoscaler, or your own as module:attribute")
    min_replicas: Count = Field(1, description="the fewest")
    initial_replicas: Count | None = Field(
        None, description="at the start, ready; None: min_replicas"
    )
    interval_s: Interval = Field(15.0, description="between two looks")
    role: Literal["arrivals", "decode"] = Field(
        "arrivals", description="which engines: those that take arrivals, or that decode for them"
    )


class Prices(Section):
    """What the fleet costs; without it no money is counted. Prices drift: give date and source."""

    usd_per_gpu_h: Annotated[Number, Field(ge=0)] | None = Field(
        None, description="rent of a GPU, of all pools without a price of their own"
    )
    by_pool: dict[str, Annotated[Number, Field(ge=0)]] = Field(
        {}, description="rent of a GPU by the pool's name"
    )
    date: str | None = Field(None, description="when that price held")
    source: str | None = Field(None, description="where it is from; None: it is assumed")
    idle_w: Annotated[Number, Field(ge=0)] | None = Field(
        None, description="power of a GPU that waits; None: energy is not counted"
    )
    busy_w: Annotated[Number, Field(ge=0)] | None = Field(
        None, description="power of a GPU that computes; None: its datasheet's limit"
    )
    usd_per_kwh: Annotated[Number, Field(ge=0)] = Field(
        0.0, description="of energy that the rent does not cover"
    )


class KvTransfer(Section):
    """How KV moves from prefill to decode engines."""

    mode: Literal["pull", "push"] = Field(
        "pull",
        description="pull: all of it, once the prefill is done; push: layer by layer while the "
        "prompt is computed",
    )
    nic_bytes_per_s: BytesPerS | None = Field(
        None,
        description="network of one GPU; None: its datasheet's. An engine has that of all its GPUs",
    )
    latency_s: Annotated[Number, Field(ge=0, le=60)] = Field(
        1e-5, description="added to each transfer"
    )
    core_bytes_per_s: BytesPerS | None = Field(
        None, description="what all transfers share; None: the network between is no bottleneck"
    )


class PoolRoles(Section):
    """Fields of a pool in `Scenario.pools` besides the sections that it overrides."""

    name: str = Field(min_length=1, description="in results")
    role: Literal["mixed", "prefill", "decode"] = Field(
        "mixed", description="all of a request, its prompt, or what comes after its first token"
    )
    replicas: Annotated[Whole, Field(ge=1, le=10_000)] = Field(1, description="engines")
    router: Policy | None = Field(
        None,
        description="among all engines that take arrivals, or all that decode for others (that of "
        "the first such pool counts); None: pool.router",
    )
