"""The server of a model, from a scenario file or a few options, for commands that simulate
nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodels.engines.calibration import load_constants
from costmodels.engines.profile import EngineProfile, capture_up_to, scale_host
from costmodels.formats import format_names
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec, load_gpu
from costmodels.layouts.layout import Layout
from costmodels.memory.streaming import Offload
from costmodels.models.catalog import load_model
from costmodels.models.quantization import AUTO, method_names, quantize
from costmodels.models.spec import ModelSpec, in_dtype, quantized
from scenarios.build.builder import batch_limits
from scenarios.build.cache import with_policy
from scenarios.build.layout import layout_of, layout_text, offload_of
from scenarios.files.flags import apply_flags
from scenarios.files.load import apply_override, validate
from scenarios.files.scenario_file import read_scenario_file
from scenarios.files.yaml_text import Places
from scenarios.schema import Scenario
from sim.errors import ScenarioError

# A scenario needs a workload, but the answers given here do not depend on it.
_ANY_WORKLOAD = {
    "generator": {"input_tokens": {"fixed": 1}, "output_tokens": {"fixed": 1}},
    "rate_per_s": 1.0,
    "num_requests": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """A model on its devices, and the engine around it."""

    scenario: Scenario
    model: ModelSpec
    gpu: GpuSpec
    profile: EngineProfile
    efficiency: Efficiency
    max_num_batched_tokens: int
    max_num_seqs: int
    offload: Offload | None = None
    methods: tuple[str | None, str | None] = (None, None)
    """Quantization methods of the weight matrices and of the KV cache."""
    notes: tuple[str, ...] = ()
    """Decisions made for the user, in plain words."""

    @property
    def tensor_parallel_size(self) -> int:
        """Devices that share each layer."""
        return self.scenario.engine.tensor_parallel_size

    @property
    def layout(self) -> Layout:
        """The layout of a replica's ranks."""
        return layout_of(self.scenario, self.gpu)

    @property
    def max_model_len(self) -> int:
        """The longest sequence that a request may have, in tokens."""
        return self.scenario.engine.max_model_len or self.model.max_position_embeddings

    def facts(self) -> dict[str, Any]:
        """Return the set-up in words, for the head of an answer."""
        precision, options = self.model.precision, self.scenario.engine
        return {
            "model": self.model.name,
            "gpu": self.gpu.name,
            "gpus": self.layout.gpus,
            "layout": layout_text(self.layout),
            "data_parallel_size": self.layout.data_parallel_size,
            "tensor_parallel_size": self.tensor_parallel_size,
            "prefill_context_parallel_size": options.prefill_context_parallel_size,
            "decode_context_parallel_size": options.decode_context_parallel_size,
            "weights": precision.linear,
            "kv_dtype": precision.kv,
            "engine": self.profile.name,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "notes": list(self.notes),
        }


def read_served(
    path: Path | None,
    flags: Mapping[str, Any],
    overrides: Sequence[str],
    *,
    quantization: str | None = None,
    kv_dtype: str | None = None,
) -> ModelServer:
    """Read a scenario file, or options without one (None: not given), then apply ``--set``
    overrides.

    ``quantization`` and ``kv_dtype`` are any formats of ``formats.yaml``, or methods that a
    scenario may name. Raises `ScenarioError`.
    """
    given = {flag: value for flag, value in flags.items() if value is not None}
    values: dict[str, Any] = {"workload": dict(_ANY_WORKLOAD)}
    places: Places = {(): "command line"}
    if path is not None:
        values, places = read_scenario_file(path)
    elif "--model" not in given and not any(item.startswith("model=") for item in overrides):
        raise ScenarioError("no model: give a scenario file, or --model and --gpu")
    apply_flags(values, places, given)
    for override in overrides:
        apply_override(values, places, override)
    return served(validate(values, places), quantization=quantization, kv_dtype=kv_dtype)


def served(
    scenario: Scenario, *, quantization: str | None = None, kv_dtype: str | None = None
) -> ModelServer:
    """Look up the model, GPU and engine that a scenario names. Raises `ScenarioError`."""
    options = scenario.engine
    gpu = load_gpu(scenario.hardware.gpu)
    method, cache = _methods(scenario, quantization, kv_dtype)
    model, notes = quantize(
        in_dtype(load_model(scenario.model), options.dtype),
        gpu,
        weights=method,
        cache_dtype=cache or AUTO,
    )
    model = quantized(
        model,
        linear=None if method else quantization,
        kv_cache=(None if cache else kv_dtype) or AUTO,
    )
    model = with_policy(model, scenario.kv.policy)
    profile, efficiency = load_constants(options.profile, gpu)
    profile = scale_host(profile, options.host_speed_factor)
    if options.max_cudagraph_capture_size is not None:
        profile = capture_up_to(profile, options.max_cudagraph_capture_size)
    tokens, seqs = batch_limits(scenario, gpu)
    return ModelServer(
        scenario=scenario,
        model=model,
        gpu=gpu,
        profile=profile,
        efficiency=efficiency,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        offload=offload_of(scenario, gpu),
        methods=(method, cache),
        notes=notes,
    )


def _methods(
    scenario: Scenario, quantization: str | None, kv_dtype: str | None
) -> tuple[str | None, str | None]:
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
