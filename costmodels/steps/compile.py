"""Compiles (model, GPU, layout, engine) into the step cost of a replica."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from costmodels.engines.attention_backends import AttentionBackend
from costmodels.engines.attention_kernels import attention_kernels
from costmodels.engines.expert_kernels import expert_kernel
from costmodels.engines.profile import EngineProfile, load_profile
from costmodels.hardware.efficiency import Efficiency, load_efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard, shard
from costmodels.memory.streaming import Offload, rank_offload
from costmodels.models.spec import ModelSpec
from costmodels.operators.chosen_kernels import ChosenKernels
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.sources import DATASHEET, OperatorSources
from costmodels.steps.combined import StepTerm
from costmodels.steps.compiled import compile_prices
from costmodels.steps.context import context_exchanges
from costmodels.steps.cost import StepCost
from costmodels.steps.prices import price_operators
from costmodels.steps.replica import replica_of
from costmodels.steps.streaming import streaming
from costmodels.tables.families import ATTENTION
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Everything that the prices of a model on a GPU depend on."""

    max_num_batched_tokens: int
    """Most tokens of a step on one data-parallel rank and micro-batch."""
    max_num_seqs: int
    """Most sequences of a step, likewise."""
    layout: Layout = field(default_factory=Layout)
    profile: EngineProfile | None = None
    """None: the built-in vLLM profile."""
    efficiency: Efficiency | None = None
    """None: the constants on file for the GPU."""
    operators: OperatorSources | None = None
    """Constants in place of ``efficiency`` per family of operators, and measured tables."""
    backend: AttentionBackend | None = None
    """Attention kernels other than those that ``efficiency`` was fitted to."""
    equal_contexts: bool = False
    """For benchmarks whose sequences are all of one length: these fill a device more evenly."""
    offload: Offload | None = None
    """What is kept off the devices."""
    shared_prefix_attention: str = "none"
    """The kernel that reads shared prefixes once, or ``none``."""
    tokens_per_seq: int = 1
    """Tokens that each decoding sequence computes, drafts to verify included."""
    terms: tuple[StepTerm, ...] = ()
    """What optional features of the engine add to a rank's kernels."""


def compile_step_cost(model: ModelSpec, gpu: GpuSpec, options: StepOptions) -> StepCost:
    """Tabulate a step's cost for every batch up to the two limits.

    Raises `ScenarioError` if the limits are not positive, a step has room for fewer tokens than
    sequences, the model does not divide over the ranks, or some of it is not priced in this layout
    or with such an offload.
    """
    kernels, profile = _kernel_times(model, gpu, options), options.profile or load_profile()
    graph_sizes = profile.graphs_for(options.max_num_seqs * options.tokens_per_seq)
    prices = price_operators(
        kernels,
        graph_sizes=graph_sizes,
        tokens=np.arange(options.max_num_batched_tokens + 1),
        logits=np.arange(options.max_num_seqs * options.tokens_per_seq + 1, dtype=np.float64),
        max_num_seqs=options.max_num_seqs,
        equal_contexts=options.equal_contexts,
        tokens_per_seq=options.tokens_per_seq,
    )
    compiled = compile_prices(prices, profile, kernels, graph_sizes[-1] if graph_sizes else 0)
    terms: list[StepTerm] = []
    if options.offload is not None and not options.offload.is_nothing:
        rank_offload(kernels.shard, options.offload)
        terms.append(streaming(kernels.shard, prices, options.offload))
    if options.layout.context_ranks > 1:
        terms.append(context_exchanges(kernels, compiled))
    replica = replica_of(kernels, prices, compiled, graph_sizes)
    if compiled.shared is not None and (terms or replica is not None):
        raise ScenarioError(
            f"engine.shared_prefix_attention {compiled.shared.kernel} is not priced for several "
            "data-parallel ranks, stages or context-parallel ranks, nor with an offload: which of "
            "them hold a prefix is not followed. Set it to none, or use pool.replicas and "
            "engine.tensor_parallel_size"
        )
    return StepCost(
        kernels=kernels,
        profile=profile,
        prices=prices,
        compiled=compiled,
        throttle=_efficiency(gpu, options).throttle,
        graph_sizes=graph_sizes,
        terms=(*terms, *options.terms),
        replica=replica,
    )


def _kernel_times(model: ModelSpec, gpu: GpuSpec, options: StepOptions) -> KernelTimes:
    if not 1 <= options.max_num_seqs <= options.max_num_batched_tokens:
        raise ScenarioError(
            f"max_num_seqs {options.max_num_seqs} must be at least 1 and at most "
            f"max_num_batched_tokens {options.max_num_batched_tokens}: every running sequence "
            "needs a token in the step"
        )
    operators, backend = options.operators, options.backend
    tables = operators.tables if operators else None
    profile = options.profile or load_profile()
    # Fitted small kernels include the engine's own time between passes, measured ones do not.
    is_measured = tables is not None and tables.lookups.get("elementwise")
    rank = shard(model, options.layout)
    return KernelTimes(
        shard=rank,
        gpu=gpu,
        chosen=_chosen(rank, gpu, options, profile),
        efficiency=backend.efficiency if backend else _efficiency(gpu, options),
        tables=tables,
        # A backend's constants take precedence over those of all families.
        constants=operators.constants if operators and not backend else {},
        backend=backend,
        shared_prefix_attention=options.shared_prefix_attention,
        between_passes_s=profile.between_passes_s if is_measured else 0.0,
    )


def _chosen(
    rank: RankShard, gpu: GpuSpec, options: StepOptions, profile: EngineProfile
) -> ChosenKernels:
    """Return the kernels that the engine chooses; experts without rates where other constants were
    asked for."""
    kernel = expert_kernel(rank, gpu, profile)
    families = options.operators.families if options.operators else ()
    asked = {one.family for one in families if one.source == DATASHEET}
    # Constants that were fitted to a user's own runs hold the kernels that ran there.
    is_built_in = _efficiency(gpu, options).name == load_efficiency(gpu).name
    if kernel is not None and (not is_built_in or "grouped_gemm" in asked):
        kernel = replace(kernel, rates=None)
    named = options.backend is not None or not is_built_in or bool(asked.intersection(ATTENTION))
    attention = {} if named else attention_kernels(rank, gpu, profile)
    return ChosenKernels(attention=attention, experts=kernel)


def _efficiency(gpu: GpuSpec, options: StepOptions) -> Efficiency:
    if options.operators is not None:
        return options.operators.efficiency
    return options.efficiency or load_efficiency(gpu)
