"""Look up what a scenario names: `resolve` is where everything that has a replica begins."""

from __future__ import annotations

from dataclasses import replace

from costmodels.engines.api_server import ApiServerCosts
from costmodels.engines.calibration import load_api_server, load_constants
from costmodels.engines.profile import EngineProfile, capture_up_to, in_cudagraph_mode, scale_host
from costmodels.formats import format_names
from costmodels.hardware.gpu_names import gpu_note
from costmodels.hardware.gpus import GIB, GpuSpec, load_gpu
from costmodels.models import kv_policies
from costmodels.models.catalog import load_model
from costmodels.models.quantization import AUTO, method_names, quantize
from costmodels.models.spec import ModelSpec, in_dtype, quantized
from scenarios.build import features
from scenarios.build.host import host_factor, host_notes
from scenarios.build.images import with_towers
from scenarios.build.layout import layout_of, offload_of
from scenarios.build.replica import Replica
from scenarios.schema import EngineOptions, Scenario
from scenarios.schema.memory import KvPolicy

_Methods = tuple[str | None, str | None]


def resolve(
    scenario: Scenario,
    *,
    quantization: str | None = None,
    kv_dtype: str | None = None,
    model: ModelSpec | None = None,
) -> Replica:
    """Look up the model, GPU, layout and engine constants of a scenario of one pool.

    ``quantization`` and ``kv_dtype`` replace the scenario's: any format of ``formats.yaml``, or a
    method that a scenario may name. ``model`` replaces the one that the scenario names, as it is.
    Raises `ScenarioError`.
    """
    options = scenario.engine
    gpu = load_gpu(scenario.hardware.gpu)
    methods: _Methods = (None, None)
    notes: tuple[str, ...] = ()
    profile, fitted = load_constants(options.profile, gpu)
    if model is None:
        methods = _methods(scenario, quantization, kv_dtype)
        if methods[1] is None and kv_dtype is None:
            methods = (methods[0], _default_cache(scenario, profile))
        model, notes = _served(scenario, gpu, methods, (quantization, kv_dtype))
    profile = scale_host(profile, host_factor(options))
    if options.cudagraph_mode is not None:
        profile = in_cudagraph_mode(profile, options.cudagraph_mode)
    captured = options.max_cudagraph_capture_size or profile.graph_limit_by_type.get(
        model.model_type
    )
    if captured is not None:
        profile = capture_up_to(profile, captured)
    tokens, seqs = _batch_limits(scenario, gpu)
    layout = layout_of(scenario, gpu)
    return Replica(
        scenario=scenario,
        model=model,
        gpu=gpu,
        layout=layout,
        profile=profile,
        fitted=fitted,
        api_server=_api_server(options),
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        offload=offload_of(scenario, gpu),
        methods=methods,
        notes=(*model.notes, *_name_notes(scenario), *notes, *host_notes(options)),
        added=features.added(scenario, model, gpu, layout),
    )


def _name_notes(scenario: Scenario) -> tuple[str, ...]:
    """Return what was made of a name of the GPU that says more than the device."""
    note = gpu_note(scenario.hardware.gpu)
    return () if note is None else (note,)


def _api_server(options: EngineOptions) -> ApiServerCosts | None:
    if options.api_server_count is None:
        return None
    return load_api_server(options.profile).scaled(host_factor(options))


def _served(
    scenario: Scenario, gpu: GpuSpec, methods: _Methods, formats: tuple[str | None, str | None]
) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model as it is served, by quantization methods or in bare formats, and notes."""
    (method, cache), (linear, kv) = methods, formats
    spec = in_dtype(load_model(scenario.model), scenario.engine.dtype)
    positions = scenario.engine.max_position_embeddings
    if positions is not None:  # neither work nor memory depends on how rope is scaled
        spec = replace(spec, max_position_embeddings=positions)
    model, notes = quantize(
        spec,
        gpu,
        weights=method,
        cache_dtype=cache or AUTO,
    )
    model = quantized(
        model, linear=None if method else linear, kv_cache=(None if cache else kv) or AUTO
    )
    model, more = with_towers(scenario, _with_policy(model, scenario.kv.policy))
    return model, (*notes, *more)


def _methods(scenario: Scenario, quantization: str | None, kv_dtype: str | None) -> _Methods:
    """Return the methods of matrices and cache; None where an option names a bare format
    instead."""
    weights: str | None = scenario.engine.quantization
    cache: str | None = None if scenario.kv.cache_dtype == AUTO else scenario.kv.cache_dtype
    formats = set(format_names())
    if quantization is not None:
        is_method = quantization in method_names() and quantization not in formats
        weights = quantization if is_method else None
    if kv_dtype is not None:
        is_method = kv_dtype in method_names("cache") and kv_dtype not in formats
        cache = kv_dtype if is_method else None
    return weights, cache


def _default_cache(scenario: Scenario, profile: EngineProfile) -> str | None:
    """Return the cache that the engine's version gives the model's attention; None: the model's."""
    if profile.sparse_latent_cache == AUTO:
        return None
    kinds = {mixer.kind for mixer, _ in load_model(scenario.model).mixers}
    return profile.sparse_latent_cache if "dsa" in kinds else None


def _with_policy(model: ModelSpec, policy: KvPolicy | None) -> ModelSpec:
    """Return ``model`` under a KV policy, or unchanged if the policy is None.

    Raises `ScenarioError` if the model has no layer that the policy applies to.
    """
    if policy is None:
        return model
    budget_tokens = policy.budget_tokens
    match policy.kind:
        case "streaming_llm":
            sink_tokens = policy.sink_tokens or 4
            return kv_policies.streaming_llm(model, budget_tokens - sink_tokens, sink_tokens)
        case "h2o":
            return kv_policies.h2o(model, budget_tokens)
        case "snapkv":
            return kv_policies.snapkv(model, budget_tokens, policy.observation_tokens or 32)
        case "pyramidkv":
            return kv_policies.pyramid_kv(model, budget_tokens, policy.observation_tokens or 32)
        case "quest":
            return kv_policies.quest(model, budget_tokens, policy.page_tokens or 16)


def _batch_limits(scenario: Scenario, gpu: GpuSpec) -> tuple[int, int]:
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
