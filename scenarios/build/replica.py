"""One replica of a pool: a model on its devices, and what follows from that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from costmodels.drafting.speculative_build import PoolCosts
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.memory.device import DevicePlan
from costmodels.memory.streaming import Offload
from costmodels.models.drafters import Drafter
from costmodels.models.spec import ModelSpec
from costmodels.steps.layout_cost import StepCosts
from scenarios.build.layout import layout_text
from scenarios.build.speculation import SpeculationPlan, speculation_of
from scenarios.build.step_cost import (
    KernelChoice,
    Kernels,
    drafting_cost,
    load_kernels,
    plain_cost,
)
from scenarios.schema import Scenario


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A model, its devices and the engine around it, as a scenario of one pool names them.

    Memory, drafts, kernels and step costs are worked out when they are first asked for, and raise
    `ScenarioError` then.
    """

    scenario: Scenario
    model: ModelSpec
    gpu: GpuSpec
    layout: Layout
    profile: EngineProfile
    fitted: Efficiency
    """The profile's fitted constants."""
    max_num_batched_tokens: int
    """Most tokens per step of one rank and micro-batch."""
    max_num_seqs: int
    """Most running sequences of one rank."""
    offload: Offload | None = None
    methods: tuple[str | None, str | None] = (None, None)
    """Quantization methods of the weight matrices and of the KV cache."""
    notes: tuple[str, ...] = ()
    """Decisions made for the user about the model's formats, in plain words."""

    @cached_property
    def speculation(self) -> SpeculationPlan | None:
        """How decode steps draft; None if nothing is drafted."""
        return speculation_of(self.scenario, self.model)

    @property
    def drafter(self) -> Drafter | None:
        """What drafts beside the model; None if nothing is drafted."""
        return None if self.speculation is None else self.speculation.drafter

    @cached_property
    def memory(self) -> DevicePlan:
        """What fills one rank's device."""
        options, kv = self.scenario.engine, self.scenario.kv
        return DevicePlan(
            self.model,
            self.gpu,
            layout=self.layout,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            gpu_memory_utilization=kv.gpu_memory_utilization,
            block_size=kv.block_size,
            num_gpu_blocks=kv.num_gpu_blocks,
            profile=self.profile,
            offload=self.offload,
            drafter=self.drafter,
            writes_scores=options.attention_backend == "unfused",
            mamba_cache_mode=kv.mamba_cache_mode if kv.enable_prefix_caching else "none",
        )

    @cached_property
    def kernels(self) -> Kernels:
        """The sources of operator times, and the attention backend."""
        return load_kernels(self._kernel_choice)

    @cached_property
    def cost(self) -> PoolCosts:
        """The step cost of the whole replica, drafts included."""
        if self.speculation is None:
            shared = self.scenario.engine.shared_prefix_attention
            return self.plain_cost(shared_prefix_attention=shared)
        return drafting_cost(self._kernel_choice, self.kernels, self._limits, self.speculation)

    def plain_cost(
        self, *, shared_prefix_attention: str = "none", equal_contexts: bool = False
    ) -> StepCosts:
        """Compile the cost of steps without drafts.

        ``equal_contexts`` is for benchmarks whose sequences are all of one length.
        """
        return plain_cost(
            self._kernel_choice,
            self.kernels,
            self._limits,
            offload=self.offload,
            shared_prefix_attention=shared_prefix_attention,
            equal_contexts=equal_contexts,
        )

    @property
    def _limits(self) -> tuple[int, int]:
        return self.max_num_batched_tokens, self.max_num_seqs

    @cached_property
    def _kernel_choice(self) -> KernelChoice:
        options = self.scenario.engine
        return KernelChoice(options, self.gpu, self.model, self.profile, self.fitted, self.layout)

    @property
    def max_model_len(self) -> int:
        """The longest sequence that a request may have, in tokens, if the pool holds it."""
        return self.scenario.engine.max_model_len or self.model.max_position_embeddings

    def facts(self) -> dict[str, Any]:
        """Return the set-up in words, for the head of an answer."""
        layout, precision = self.layout, self.model.precision
        return {
            "model": self.model.name,
            "gpu": self.gpu.name,
            "gpus": layout.gpus,
            "layout": layout_text(layout),
            "data_parallel_size": layout.data_parallel_size,
            "tensor_parallel_size": layout.tensor_parallel_size,
            "prefill_context_parallel_size": layout.prefill_context_parallel_size,
            "decode_context_parallel_size": layout.decode_context_parallel_size,
            "weights": precision.linear,
            "kv_dtype": precision.kv,
            "engine": self.profile.name,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "notes": list(self.notes),
        }
