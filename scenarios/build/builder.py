"""Build the objects that a scenario names: model, GPU, memory plan, step cost, policies, pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodels.engines.calibration import load_constants
from costmodels.engines.profile import capture_up_to, scale_host
from costmodels.hardware.gpus import GIB, GpuSpec, load_gpu
from costmodels.layouts.draft_layout import draft_weight_bytes
from costmodels.layouts.layout import Layout
from costmodels.memory.paging import is_recurrent
from costmodels.memory.plan import DeviceMemory, plan_memory
from costmodels.models.catalog import load_model
from costmodels.models.drafters import with_drafter
from costmodels.models.quantization import quantize
from costmodels.models.spec import ModelSpec, in_dtype
from policies import ROUTERS, SCHEDULERS
from scenarios.build.beams import beam_notes, check_beams
from scenarios.build.built import Build
from scenarios.build.cache import cache_of, policy_notes, with_policy
from scenarios.build.layout import layout_notes, layout_of, offload_notes, offload_of
from scenarios.build.plugins import router_factory, scheduler_factory
from scenarios.build.pools import pool_notes, pool_scenarios, transfer_config
from scenarios.build.service import has_service, service_config, service_notes, start_ns
from scenarios.build.speculation import graph_notes, speculation_of
from scenarios.build.step_cost import KernelChoice, load_kernels, pool_cost
from scenarios.schema import EngineOptions, Scenario
from sim.clock import to_ns
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.config import PoolConfig, Role
from sim.kv.layout import PLAIN


def build(scenario: Scenario) -> Build:
    """Look up and compile everything but the workload. Raises `ScenarioError`."""
    parts = tuple(_build_pool(of, name, role) for name, role, of in pool_scenarios(scenario))
    transfer = transfer_config(scenario, parts)
    notes = [*parts[0].notes]
    for part in parts[1:]:
        notes += [f"{part.pool.name}: {note}" for note in part.notes if note not in notes]
    notes += pool_notes(scenario, transfer)
    if scenario.workload.beam_width > 1:
        for part in parts:
            check_beams(scenario, part.pool, part.layout)
        notes += beam_notes(scenario)
    pools = tuple(part.pool for part in parts)
    notes += service_notes(scenario, pools)
    whole = replace(
        parts[0],
        notes=tuple(notes),
        others=parts[1:],
        transfer=transfer,
        service=service_config(scenario, pools),
        prices=scenario.prices,
    )
    whole.fleet.check_roles()
    return whole


def _build_pool(scenario: Scenario, name: str, role: Role) -> Build:
    options, kv = scenario.engine, scenario.kv
    gpu = load_gpu(scenario.hardware.gpu)
    model, format_notes = quantize(
        in_dtype(load_model(scenario.model), options.dtype),
        gpu,
        weights=options.quantization,
        cache_dtype=kv.cache_dtype,
    )
    model = with_policy(model, kv.policy)
    layout = layout_of(scenario, gpu)
    profile, fitted = load_constants(options.profile, gpu)
    wanted = KernelChoice(options, gpu, model, profile, fitted, layout)
    kernels = load_kernels(wanted)
    profile = scale_host(profile, options.host_speed_factor)
    if options.max_cudagraph_capture_size is not None:
        profile = capture_up_to(profile, options.max_cudagraph_capture_size)
    tokens, seqs = batch_limits(scenario, gpu)
    offload = offload_of(scenario, gpu)
    speculating = speculation_of(scenario, model)
    drafter = None if speculating is None else speculating.drafter
    if drafter is not None and offload is not None:
        raise ScenarioError(
            "engine.speculative is not modelled with weights or state off the devices (offload, "
            "engine.cpu_offload_gb)"
        )
    memory = plan_memory(
        model,
        gpu,
        kept=with_drafter(model, drafter),
        draft_weight_bytes=0 if drafter is None else draft_weight_bytes(drafter, layout),
        layout=layout,
        gpu_memory_utilization=kv.gpu_memory_utilization,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        block_size=kv.block_size,
        num_gpu_blocks=kv.num_gpu_blocks,
        profile=profile,
        offload=offload,
        writes_scores=options.attention_backend == "unfused",
        mamba_cache_mode=kv.mamba_cache_mode if kv.enable_prefix_caching else "none",
    )
    max_model_len, notes = _max_model_len(scenario, model, memory)
    prefix_caching, more_notes = _pool_notes(scenario, model, memory, layout)
    if options.shared_prefix_attention != "none" and not prefix_caching:
        raise ScenarioError(
            f"engine.shared_prefix_attention {options.shared_prefix_attention} reads blocks that "
            "requests share, and without kv.enable_prefix_caching they share none"
        )
    notes += more_notes
    swapping = _swapping(scenario, gpu, memory, layout.data_parallel_size)
    if swapping:
        rate = memory.block_bytes / swapping["swap_ns_per_block"] / layout.data_parallel_size
        notes = (*notes, f"preempted requests move to the host and back at {rate:.3g} GB/s a GPU")
    cost = pool_cost(
        options,
        model,
        gpu,
        layout,
        limits=(tokens, seqs),
        profile=profile,
        kernels=kernels,
        kernels_key=wanted.key,
        offload=offload,
        speculating=speculating,
    )
    cache = cache_of(scenario, model, gpu, memory, layout)
    ranks = layout.data_parallel_size
    pool = PoolConfig(
        engine=EngineConfig(
            # One engine stands for all data-parallel ranks and micro-batches.
            max_num_batched_tokens=ranks * layout.pipeline_parallel_size * tokens,
            max_num_seqs=ranks * seqs,
            num_gpu_blocks=ranks * (memory.num_gpu_blocks - 1) + 1,  # each rank has a null block
            max_model_len=max_model_len,
            block_size=memory.block_size,
            kv_layout=memory.layout,
            clip_tokens=model.clips,
            long_prefill_token_threshold=_longest_chunk(options, layout, tokens),
            shared_prefix_attention=options.shared_prefix_attention,
            enable_prefix_caching=prefix_caching,
            async_scheduling=options.async_scheduling
            if speculating is None
            else speculating.async_scheduling,
            speculation=None if speculating is None else speculating.speculation,
            seed=scenario.seed,
            **swapping,
        ),
        cost=cost,
        make_scheduler=scheduler_factory(options.scheduler, SCHEDULERS),
        make_router=router_factory(scenario.pool.router, ROUTERS),
        replicas=scenario.pool.replicas,
        start_ns=start_ns(scenario, gpu, memory) if has_service(scenario) else 0,
        provision_ns=to_ns(scenario.startup.provision_s),
        name=name,
        role=role,
        cache=cache.config,
    )
    return Build(
        model=model,
        gpu=gpu,
        profile=profile,
        memory=memory,
        layout=layout,
        cost=cost,
        model_with_drafter=with_drafter(model, drafter),
        speculating=speculating,
        pool=pool,
        operators=kernels.operators,
        cache=cache,
        notes=(
            *notes,
            *cache.notes,
            *format_notes,
            *policy_notes(kv.policy),
            *layout_notes(layout),
            *offload_notes(scenario, memory),
            *kernels.operators.notes,
            *(() if speculating is None else speculating.notes),
            *graph_notes(cost, seqs),
        ),
    )


def _swapping(scenario: Scenario, gpu: GpuSpec, memory: DeviceMemory, ranks: int) -> dict[str, Any]:
    """Return the engine options of swap preemption; each GPU moves its own part of a block."""
    if scenario.engine.preemption_mode != "swap":
        return {}
    bandwidth = scenario.kv.swap_bytes_per_s or gpu.host_link_bytes_per_s
    if bandwidth is None:
        raise ScenarioError(f"the host link of {gpu.name} is not known: give kv.swap_bytes_per_s")
    blocks = int(scenario.kv.swap_space_gib * GIB) // memory.block_bytes
    return {
        "preemption_mode": "swap",
        "num_cpu_blocks": ranks * blocks,
        "swap_ns_per_block": memory.block_bytes / bandwidth * 1e9 / ranks,
    }


def _longest_chunk(options: EngineOptions, layout: Layout, tokens: int) -> int:
    """Return the most tokens of one prompt in a step; 0: no limit.

    A prompt stays on its data-parallel rank and has one chunk in each micro-batch.
    """
    asked = options.long_prefill_token_threshold
    stages = layout.pipeline_parallel_size
    if layout.data_parallel_size == stages == 1:
        return asked
    return stages * min(asked or tokens, tokens)


def batch_limits(scenario: Scenario, gpu: GpuSpec) -> tuple[int, int]:
    """Return the most tokens and sequences per step, from the scenario or vLLM's API-server
    defaults.

    The defaults are larger for GPUs of 70 GiB and more, except the A100. Source: vLLM 0.25
    ``EngineArgs.get_batch_defaults``.
    """
    large = gpu.hbm_bytes >= 70 * GIB and not gpu.name.startswith("A100")
    default_tokens, default_seqs = (8192, 1024) if large else (2048, 256)
    options = scenario.engine
    tokens = options.max_num_batched_tokens or default_tokens
    seqs = options.max_num_seqs or min(default_seqs, tokens)
    return tokens, seqs


def _max_model_len(
    scenario: Scenario, model: ModelSpec, memory: DeviceMemory
) -> tuple[int, tuple[str, ...]]:
    pool_tokens = memory.layout.most_tokens(memory.num_gpu_blocks - 1, memory.block_size)
    asked = scenario.engine.max_model_len
    if asked is None:
        if model.max_position_embeddings <= pool_tokens:
            return model.max_position_embeddings, ()
        note = (
            f"max_model_len is {pool_tokens:,}, all that the KV pool holds, not the model's "
            f"{model.max_position_embeddings:,}"
        )
        return pool_tokens, (note,)
    if asked > model.max_position_embeddings:
        raise ScenarioError(
            f"engine.max_model_len {asked:,} is beyond the {model.max_position_embeddings:,} "
            f"positions of {model.name}"
        )
    if asked > pool_tokens:
        raise ScenarioError(
            f"engine.max_model_len {asked:,} is more than the {pool_tokens:,} tokens the KV pool "
            "holds; lower it, raise kv.gpu_memory_utilization or engine.tensor_parallel_size"
        )
    return asked, ()


def _pool_notes(
    scenario: Scenario, model: ModelSpec, memory: DeviceMemory, layout: Layout
) -> tuple[bool, tuple[str, ...]]:
    """Return whether prefixes are cached, and notes on what differs from a pool of full
    attention."""
    notes: list[str] = []
    parts = layout.context_ranks
    if parts > 1:
        notes.append(
            f"a KV block holds {memory.block_size:,} tokens, {memory.block_size // parts:,} on "
            f"each of the {parts} ranks that split contexts"
        )
    if memory.block_size != parts * scenario.kv.block_size:
        notes.append(
            f"a KV block holds {memory.block_size:,} tokens, not {scenario.kv.block_size}: a page "
            "must fit a layer's recurrent state, or whole compressed entries"
        )
    if not scenario.kv.enable_prefix_caching or memory.layout == PLAIN:
        return scenario.kv.enable_prefix_caching, tuple(notes)
    if is_recurrent(model) and scenario.kv.mamba_cache_mode == "none":
        notes.append(
            "prefix caching is off: recurrent layers need their state at the end of a cached "
            "prefix, which kv.mamba_cache_mode align keeps"
        )
        return False, tuple(notes)
    if len(memory.layout.prompts) > 1:
        notes.append(
            f"a KV block is of one budget's layers alone, {memory.block_bytes:,} bytes: each layer "
            "gives back pages of its own"
        )
    if memory.layout.prompts:
        notes.append("prefix caching is off: of a prompt only the tokens it chose itself are kept")
        return False, tuple(notes)
    if not memory.layout.grows:
        notes.append("prefix caching is off: every layer drops what leaves its window")
        return False, tuple(notes)
    if memory.layout.fixed_pages and not is_recurrent(model):
        notes.append("a prefix hit is assumed to find what compressors had gathered at its end")
    return True, tuple(notes)
