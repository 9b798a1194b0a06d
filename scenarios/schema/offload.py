"""Scenario fields of what is not on the devices: weights and state on the host or on disk."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from scenarios.schema.fields import Number, Section

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
