"""One replica of a pool: a model on its devices, and what follows from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from costmodels.drafting.speculative_build import compile_speculative_cost
from costmodels.engines.api_server import ApiServerCosts
from costmodels.engines.attention_backends import AttentionBackend, attention_backend
from costmodels.engines.expert_kernels import expert_kernel
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.memory.device import DevicePlan
from costmodels.memory.entries import MemoryEntry
from costmodels.memory.streaming import Offload
from costmodels.models.drafters import Drafter
from costmodels.models.spec import ModelSpec
from costmodels.operators.sources import DATASHEET, FITTED, OperatorSources, load_operators
from costmodels.steps.combined import StepTerm
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import PoolCost, StepCost
from costmodels.tables.families import ATTENTION
from scenarios.build.host import host_factor
from scenarios.build.layout import layout_text
from scenarios.build.memo import content_key, memoized
from scenarios.build.speculation import SpeculationPlan, speculation_of
from scenarios.files.identity import with_contents
from scenarios.schema import Scenario
from sim.engine.view import Feature
from sim.errors import ScenarioError
from sim.request_table import RequestTable


class Kernels(NamedTuple):
    """Operator times and attention backend, fields of `costmodels.steps.compile.StepOptions`."""

    operators: OperatorSources
    backend: AttentionBackend | None


@dataclass(frozen=True, kw_only=True)
class Added:
    """What an optional feature adds to a replica."""

    name: str
    """The section of the scenario that asks for it."""
    memory: tuple[MemoryEntry, ...] = ()
    """What it holds on each device."""
    terms: tuple[StepTerm, ...] = ()
    """What it adds to the kernels of a rank's steps."""
    in_engine: Callable[[RequestTable], Feature]
    """Makes its part of one engine (`sim.engine.hooks`) that serves a table."""
    notes: tuple[str, ...] = ()


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
    api_server: ApiServerCosts | None = None
    """What stands between clients and the engine; None: nothing that takes time."""
    max_num_batched_tokens: int
    """Most tokens per step of one rank and micro-batch."""
    max_num_seqs: int
    """Most running sequences of one rank."""
    offload: Offload | None = None
    methods: tuple[str | None, str | None] = (None, None)
    """Quantization methods of the weight matrices and of the KV cache."""
    notes: tuple[str, ...] = ()
    """Decisions made for the user about the model's formats, in plain words."""
    added: tuple[Added, ...] = ()
    """What optional features add (`scenarios.build.features`)."""

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
            gpu_memory_utilization=kv.gpu_memory_utilization or self.profile.gpu_memory_utilization,
            block_size=kv.block_size,
            num_gpu_blocks=kv.num_gpu_blocks,
            profile=self.profile,
            offload=self.offload,
            drafter=self.drafter,
            writes_scores=options.attention_backend == "unfused",
            mamba_cache_mode=kv.mamba_cache_mode if kv.enable_prefix_caching else "none",
            more=tuple(entry for one in self.added for entry in one.memory),
        )

    @cached_property
    def kernels(self) -> Kernels:
        """The sources of operator times, and the attention backend.

        Raises `ScenarioError` if they do not exist, or not for this GPU or model.
        """
        return memoized("kernels", self._kernels_key, self._load_kernels)

    def _load_kernels(self) -> Kernels:
        options, gpu, model = self.scenario.engine, self.gpu, self.model
        name = options.attention_backend
        operators = load_operators(
            options.operators, gpu, model, self.fitted, self.layout, self.profile.kernels
        )
        for one in operators.families:
            if name != "auto" and one.family in ATTENTION and one.source not in (FITTED, DATASHEET):
                raise ScenarioError(
                    f"engine.attention_backend must be auto with {one.family} of engine.operators "
                    f"{one.source}: its tables are of the kernels that the engine chose"
                )
        return Kernels(operators, attention_backend(name, gpu, model, operators.efficiency))

    @cached_property
    def kernel_notes(self) -> tuple[str, ...]:
        """Notes on kernels that the engine chooses although faster ones exist."""
        kernel = expert_kernel(shard(self.model, self.layout), self.gpu, self.profile)
        if kernel is None or not kernel.is_untuned:
            return ()
        return (
            f"untuned experts: vLLM ships no configuration of its Triton kernel for {kernel.shape} "
            f"on {self.gpu.name} and runs its default one ({kernel.name}), as its log says; "
            "vLLM's benchmark_moe.py --tune makes one",
        )

    @cached_property
    def _kernels_key(self) -> str:
        options, kernels = self.scenario.engine, dict(self.profile.kernels)
        named = (with_contents(options.operators), options.attention_backend)
        return content_key(*named, self.gpu, self.model, kernels, self.fitted, self.layout)

    @cached_property
    def cost(self) -> PoolCost:
        """The step cost of the whole replica, drafts included; runs that share it reuse it."""
        engine, speculation = self.scenario.engine, self.speculation
        if speculation is None:
            return self.plain_cost(shared_prefix_attention=engine.shared_prefix_attention)
        options, factor = self._step_options(), host_factor(engine)
        return memoized(
            "cost",
            content_key(self._kernels_key, options, factor, speculation),
            lambda: compile_speculative_cost(
                self.model,
                speculation.drafter,
                self.gpu,
                self._with_kernels(options),
                drafts_by_seqs=speculation.speculation.drafts_by_seqs,
                acceptance=speculation.acceptance,
                host_speed_factor=factor,
            ),
        )

    def plain_cost(
        self, *, equal_contexts: bool = False, shared_prefix_attention: str = "none"
    ) -> StepCost:
        """Return the cost of steps without drafts; the options are those of
        `costmodels.steps.compile.StepOptions`."""
        options = replace(
            self._step_options(),
            equal_contexts=equal_contexts,
            shared_prefix_attention=shared_prefix_attention,
        )
        return memoized(
            "cost",
            content_key(self._kernels_key, options),
            lambda: compile_step_cost(self.model, self.gpu, self._with_kernels(options)),
        )

    def _step_options(self) -> StepOptions:
        """Return the options without the kernels, which have a key of their own."""
        return StepOptions(
            layout=self.layout,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            profile=self.profile,
            offload=self.offload,
            terms=tuple(term for one in self.added for term in one.terms),
        )

    def _with_kernels(self, options: StepOptions) -> StepOptions:
        return replace(options, operators=self.kernels.operators, backend=self.kernels.backend)

    @property
    def async_scheduling(self) -> bool:
        """Whether the next step is planned before the last one is read."""
        asked = self.scenario.engine.async_scheduling
        return self.profile.async_scheduling if asked is None else asked

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
