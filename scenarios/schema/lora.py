"""Scenario fields of LoRA adapters: vLLM's options, and which requests use which adapter."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scenarios.schema.fields import Count, Number, Section


class Lora(Section):
    """LoRA adapters beside the model: slots of device memory, their kernels, and their loads."""

    enabled: bool | None = Field(
        None,
        description="whether requests use adapters (vLLM's enable_lora); None: if another field "
        "of this section is given",
    )
    max_loras: Count = Field(
        1, description="different adapters in one step, each with a slot of device memory"
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = Field(
        16, description="rank of the slots; kernels compute with it, whatever an adapter's own is"
    )
    max_cpu_loras: Count | None = Field(
        None,
        description="adapters kept in host memory, those in slots included; None: max_loras. "
        "Others are read from disk when they are needed",
    )
    rank: Count | None = Field(
        None, description="of the adapters, for the time to load one; None: max_lora_rank"
    )
    adapters: Count = Field(1, description="adapters that requests ask for")
    zipf: Annotated[Number, Field(ge=0, le=10)] = Field(
        0.0, description="adapter k of them is asked for in proportion to 1 / k^zipf; 0: equally"
    )
    share: Annotated[Number, Field(ge=0, le=1)] = Field(
        1.0, description="of requests, or of sessions, that use an adapter; others use the model"
    )

    @property
    def is_on(self) -> bool:
        """Whether requests use adapters."""
        return bool(self.model_fields_set) if self.enabled is None else self.enabled

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(
                f"max_cpu_loras {self.max_cpu_loras} must be at least max_loras {self.max_loras}: "
                "an adapter in a slot is in host memory too"
            )
        if self.rank is not None and self.rank > self.max_lora_rank:
            raise ValueError(
                f"rank {self.rank} must be at most max_lora_rank {self.max_lora_rank}, which is "
                "what a slot has room for"
            )
        return self
