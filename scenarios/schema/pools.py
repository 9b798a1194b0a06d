"""Several pools in a scenario: engines of their own kind, role and number, and the KV between."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scenarios.schema.fields import Number, Policy, Positive, Section, Whole


class KvTransfer(Section):
    """How KV moves from prefill to decode engines."""

    mode: Literal["pull", "push"] = Field(
        "pull",
        description="pull: all of it, once the prefill is done; push: layer by layer while the "
        "prompt is computed",
    )
    nic_bytes_per_s: Positive | None = Field(
        None,
        description="network of one GPU; None: its datasheet's. An engine has that of all its GPUs",
    )
    latency_s: Annotated[Number, Field(ge=0, le=60)] = Field(
        1e-5, description="added to each transfer"
    )
    core_bytes_per_s: Positive | None = Field(
        None, description="what all transfers share; None: the network between is no bottleneck"
    )


class PoolRoles(Section):
    """What `Scenario.pools` has of a pool beside the sections it overrides."""

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
