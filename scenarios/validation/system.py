"""Turn an info file into what the simulator needs: model, GPU, memory plan, engine and step
cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from costmodels.engines.hosts import fitted_on
from costmodels.engines.profile import EngineProfile, is_known_profile
from costmodels.fields import NUMBER, POSITIVE, TEXT, Fields
from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.memory.paging import kv_layout
from costmodels.models.hf_config import read_hf_config
from costmodels.models.spec import DTYPE_BYTES, ModelSpec, quantized
from costmodels.operators.sources import FITTED, Choice
from policies import ROUTERS, SCHEDULERS
from scenarios.build import compiling
from scenarios.build.cache import cache_of
from scenarios.build.plugins import router_factory, scheduler_factory
from scenarios.build.replica import Replica
from scenarios.build.resolve import resolve
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import parse_scenario
from scenarios.run.summary import engine_conditions
from scenarios.validation.folder import Recording
from scenarios.validation.routing import routing_spread, with_routing
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.config import PoolConfig

_ABSENT = (None, "", "None", "none", "null")
_SIZES: TypeAdapter[list[int]] = TypeAdapter(list[int])
_PROBES: TypeAdapter[list[dict[str, Any]]] = TypeAdapter(list[dict[str, Any]])

_RECURRENT_BACKENDS = ("GDN_ATTN", "MAMBA", "LINEAR_ATTN")
"""Backends of recurrent layers, which have kernels of their own."""
FP8_KV_CACHE = ("fp8", "fp8_e4m3")

# What a prediction would get wrong if the option were ignored.
_REFUSED = {"kv_transfer_config": "the transfer would take no time"}
_REFUSED_ABOVE_ONE = (
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
)
_WARNED = {
    "enable_lora": "adapters of recorded requests are not read, and not priced",
    "cpu_offload_gb": "offloaded weights are not priced",
}
_WARNED_ABOVE = {
    "long_prefill_token_threshold": (0, "long prompts are chunked by the token budget alone"),
    "max_num_partial_prefills": (1, "partial prefills are limited by the token budget alone"),
    "watermark_blocks": (0, "requests are admitted down to the last free block"),
    "num_lookahead_tokens": (0, "no block is held for tokens ahead"),
}


def _options(recording: Recording) -> Fields:
    """Return the fields of an info file, and beside them the options that the engine was given,
    as text."""
    where = str(recording.info_path)
    info = _given(recording.info)
    if info.get("engine_args"):
        info = _given(Fields(info, where).part("engine_args").values) | info
    return Fields(info, where, is_text=True)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in _ABSENT}


def refuse_options(fields: Fields) -> None:
    """Raise `ScenarioError` for an option with which a prediction would mislead."""
    for name, otherwise in _REFUSED.items():
        value = fields.first(name)
        if value is not None:
            raise fields.wrong(name, f"is {value!r}, which is not modelled: {otherwise}")
    quantization = fields.first("quantization")
    if quantization not in (None, "fp8"):
        raise fields.wrong("quantization", f"is {quantization!r}; fp8 is priced, or none")
    dtype = str(fields.first("dtype") or "auto").removeprefix("torch.")
    if dtype != "auto" and dtype not in DTYPE_BYTES:
        raise fields.wrong("dtype", f"is {dtype!r}; priced are {' and '.join(DTYPE_BYTES)}")
    for name in _REFUSED_ABOVE_ONE:
        if fields.count(name, default=1) > 1:
            raise fields.wrong(name, f"is {fields.count(name)}, which is not modelled; use 1")


def warn_of_options(fields: Fields) -> list[str]:
    """Return a line for each option that is predicted as if it were not set."""
    lines = []
    for name, instead in _WARNED.items():
        value = fields.first(name)
        if value not in (None, False, "False", 0, "0", "0.0"):
            lines.append(f"{name} is {value}: {instead}")
    for name, (most, instead) in _WARNED_ABOVE.items():
        if (fields.read(NUMBER, name) or 0) > most:
            lines.append(f"{name} is {fields.first(name)}: {instead}")
    policy = str(fields.first("policy") or "fcfs")
    if policy != "fcfs":
        lines.append(f"policy is {policy}: requests are scheduled first come, first served")
    if not fields.flag("chunked_prefill", True):
        lines.append("chunked_prefill is off: prompts are predicted cut to the token budget")
    backends = fields.first("attention_backends") or []
    known = ("FLASH_ATTN", *_RECURRENT_BACKENDS)
    if isinstance(backends, list) and not all(any(k in str(b) for k in known) for b in backends):
        lines.append(f"attention backend {', '.join(map(str, backends))}: priced as FlashAttention")
    lines += _kv_cache_lines(fields)
    return lines


def _kv_cache_lines(fields: Fields) -> list[str]:
    name = str(fields.first("kv_cache_dtype") or "auto")
    if name == "auto" or name in DTYPE_BYTES or name in FP8_KV_CACHE:
        return []
    return [
        f"kv_cache_dtype is {name}: the KV cache is priced with 16 bits, so that attention reads "
        "come out up to twice as long and the memory plan holds half the blocks"
    ]


_DRAFT_METHODS = {"eagle": "eagle", "eagle3": "eagle", "ngram": "ngram", "mtp": "mtp"}
"""A scenario's method by the engine's name of it."""
_DEFAULT_PROFILE = "vllm-0.25"
_LARGEST_ASKED_BLOCK = 256
_COPY_S = 4.8e-6
"""Time to start one of the copies, of 64 KiB each, in which vLLM's own offloading loads a block:
fitted to the loads of one recording (Llama-3.1-8B, 2026-11-30), 11 GB/s where the link has 55."""
_DEFAULT_UTILIZATION = 0.92


@dataclass(frozen=True, kw_only=True)
class System:
    """One recorded engine, ready to be predicted."""

    key: str
    replica: Replica
    pool: PoolConfig
    """The engine with the KV blocks that were recorded."""
    conditions: dict[str, Any]
    """What was run, for the reader; as recorded."""
    warnings: tuple[str, ...]
    """Options that cannot be modeled."""
    is_blocks_override: bool = False
    """Whether the recorded number of KV blocks was asked for, and says nothing of the plan."""


def read_system(
    recording: Recording, profile_name: str | None = None, operators: Choice = FITTED
) -> System:
    """Compile the recorded engine. Raises `ScenarioError` or `TraceError` if it cannot be compiled.

    ``profile_name`` is a profile or calibration file; None: the one of the recorded version.
    ``operators`` names the source of kernel times, see `costmodels.operators.sources`.
    """
    fields = _options(recording)
    refuse_options(fields)
    warnings = warn_of_options(fields)
    replica = _replica(recording.key, fields, operators, profile_name, warnings)
    routing = routing_spread(recording, replica)
    if routing is not None:
        replica = replace(replica, model=with_routing(replica.model, routing))
    speculation = replica.speculation
    cache = cache_of(replica)
    engine = EngineConfig(
        step_token_limit=replica.max_num_batched_tokens,
        running_seq_limit=replica.max_num_seqs,
        max_model_len=_max_model_len(fields, replica.model),
        block_size=fields.count("block_size"),
        replica_blocks=fields.count("num_gpu_blocks"),
        kv_layout=kv_layout(replica.memory.rank, fields.count("block_size")),
        clip_tokens=replica.model.clips,
        enable_prefix_caching=fields.flag("prefix_caching", True),
        async_scheduling=fields.flag("async_scheduling", True)
        and (speculation is None or speculation.async_scheduling),
        speculation=None if speculation is None else speculation.speculation,
    )
    pool = PoolConfig(
        engine=engine,
        cost=replica.cost,
        make_scheduler=scheduler_factory("fcfs", SCHEDULERS),
        make_router=router_factory("round_robin", ROUTERS),
        cache=cache.config,
        make_features=tuple(compiling.features(replica)),
    )
    return System(
        key=recording.key,
        replica=replica,
        pool=pool,
        conditions={
            **_conditions(fields, replica, engine),
            "operators": operators if isinstance(operators, str) else dict(operators),
            **({} if routing is None else {"experts_chosen_from": routing}),
        },
        warnings=(*warnings, *cache.notes, *replica.kernel_notes, *_routing_lines(routing)),
        is_blocks_override=bool(fields.count("num_gpu_blocks_override", default=0)),
    )


def _routing_lines(routing: float | None) -> list[str]:
    if routing is None:
        return []
    return [
        f"random weights: tokens choose among {routing:.0f} experts, fitted to the decode steps of "
        "this recording, which therefore say nothing of the traffic of experts"
    ]


def _replica(
    key: str, fields: Fields, operators: Choice, profile_name: str | None, warnings: list[str]
) -> Replica:
    """Resolve the recorded options as a scenario's; adds to ``warnings``."""
    name = str(fields.first("model_name") or key)
    config = fields.part("hf_config").values
    model = quantized(
        read_hf_config(config, name=name, source=f"hf_config of {key}"),
        linear=fields.first("quantization"),
        kv_cache="fp8" if fields.first("kv_cache_dtype") in FP8_KV_CACHE else "auto",
    )
    ranks = fields.count("tensor_parallel_size", default=1)
    profile = profile_name or _recorded_profile(fields, warnings)
    scenario = parse_scenario(
        {
            "model": name,
            "hardware": {"gpu": _gpu_name(fields)},
            "engine": {
                "profile": profile,
                "operators": operators if isinstance(operators, str) else dict(operators),
                "tensor_parallel_size": ranks,
                "max_num_batched_tokens": fields.count("max_num_batched_tokens"),
                "max_num_seqs": fields.count("max_num_seqs"),
                "host_speed_factor": _host_factor(fields) if profile_name is None else 1.0,
                "speculative": _speculative(fields),
            },
            "kv": {
                "block_size": _asked_block_size(fields),
                "gpu_memory_utilization": fields.read(NUMBER, "gpu_memory_utilization")
                or _DEFAULT_UTILIZATION,
                "tiers": _tiers(fields),
            },
            # A recorded engine is a fresh process over kernels that one before it compiled.
            "startup": {"kernel_cache": "disk"},
            "workload": ANY_WORKLOAD,
        },
        where=key,
    )
    replica = resolve(scenario, model=model)
    # The ranks are taken as all in one node, whatever the device's usual number is.
    layout = Layout(tensor_parallel_size=ranks)
    return replace(replica, layout=layout, profile=_with_graphs(fields, replica.profile, warnings))


def _speculative(fields: Fields) -> dict[str, Any] | None:
    """Return the scenario's section of a recorded ``speculative_config``; None if there is none.

    Synthetic rates of acceptance are of reaching each position, the section's of going on to it.
    """
    given = fields.first("speculative_config")
    if given is None:
        return None
    try:
        config = json.loads(given) if isinstance(given, str) else dict(given)
    except ValueError:
        raise fields.wrong("speculative_config", "is no JSON object") from None
    method = str(config.get("method"))
    if method not in _DRAFT_METHODS:
        raise fields.wrong(
            "speculative_config",
            f"has method {method!r}; predicted are {', '.join(sorted(_DRAFT_METHODS))}",
        )
    section: dict[str, Any] = {"method": _DRAFT_METHODS[method]}
    if "num_speculative_tokens" in config:
        section["num_speculative_tokens"] = config["num_speculative_tokens"]
    reached = config.get("synthetic_acceptance_rates")
    if reached:
        before = [1.0, *reached]
        rates = [after / least if least else 0.0 for least, after in pairwise(before)]
        section |= {"acceptance": rates, "acceptance_source": "synthetic rates of the engine"}
    vocabulary = fields.child("speculative_draft_hf_config").first("draft_vocab_size")
    if method == "eagle3" and vocabulary:
        section["draft_vocab_size"] = vocabulary
    return section


def _tiers(fields: Fields) -> dict[str, Any] | None:
    """Return the scenario's tiers of recorded KV offloading; None without any."""
    size_gib = fields.read(NUMBER, "kv_offloading_size") or 0.0
    if not size_gib:
        return None
    return {"host": {"capacity_gib": size_gib, "copy_s": _COPY_S}, "load": "always"}


def _asked_block_size(fields: Fields) -> int:
    """Return the tokens of a block before a hybrid's was made as large as its states."""
    recorded = fields.count("block_size")
    return recorded if recorded <= _LARGEST_ASKED_BLOCK else 16


def _gpu_name(fields: Fields) -> str:
    """Return the device that nvidia-smi names, e.g. ``NVIDIA A100-SXM4-80GB, 580.95, 81920 MiB,
    ...``."""
    recorded = fields.need(TEXT, "gpu", what="text").split(",")[0].strip()
    try:
        return load_gpu(recorded).name
    except ScenarioError as error:
        raise fields.wrong("gpu", f"is {recorded!r}: {error}") from None


def _recorded_profile(fields: Fields, warnings: list[str]) -> str:
    """Return the profile of the recorded version, or another with a warning."""
    version = str(fields.first("vllm") or "unknown")
    name = f"vllm-{version}"
    if is_known_profile(name):
        return name
    warnings.append(f"vLLM {version} has no profile: host times are those of {_DEFAULT_PROFILE}")
    return _DEFAULT_PROFILE


def _host_factor(fields: Fields) -> float:
    """Return how many times as long as on the profiles' own host the recorded one takes.

    It was probed when its process began and ended. A shared machine changes its speed within
    minutes, so two probes tell half of what lies between them: the geometric mean of the host that
    they show and of the profiles' own. 1.0 without probes.
    """
    probes = fields.read(_PROBES, "host") or []
    launches_s = [
        Fields(row, f"{fields.where}: host").need(POSITIVE, "launch_1000_ms", what="ms") / 1e6
        for row in probes
    ]
    return math.sqrt(fmean(launches_s) / fitted_on().launch_s) if launches_s else 1.0


def _with_graphs(fields: Fields, profile: EngineProfile, warnings: list[str]) -> EngineProfile:
    """Return the profile with the CUDA graphs that the recorded engine captured."""
    compilation = fields.child("compilation")
    mode = str(compilation.first("cudagraph_mode") or "FULL_AND_PIECEWISE").rpartition(".")[2]
    if fields.flag("enforce_eager", False) or mode == "NONE":
        return replace(profile, graph_sizes=())
    if mode != "FULL_AND_PIECEWISE":
        warnings.append(
            f"cudagraph_mode {mode} is priced as FULL_AND_PIECEWISE: one graph for steps of "
            "decodes only, graphs between the attention calls with prefill"
        )
    sizes = compilation.read(_SIZES, "sizes")
    return profile if sizes is None else replace(profile, graph_sizes=tuple(sorted(set(sizes))))


def _max_model_len(fields: Fields, model: ModelSpec) -> int:
    pool_tokens = (fields.count("num_gpu_blocks") - 1) * fields.count("block_size")
    return fields.count("max_model_len", default=min(model.max_position_embeddings, pool_tokens))


def _conditions(fields: Fields, replica: Replica, engine: EngineConfig) -> dict[str, Any]:
    model, cost, ranks = replica.model, replica.cost, replica.layout.tensor_parallel_size
    return {
        "engine": f"vLLM {fields.first('vllm') or 'of unknown version'}",
        "model": model.name,
        "gpu": replica.gpu.name,
        "gpus": ranks,
        "tensor_parallel_size": ranks,
        "linear_dtype": model.linear_dtype,
        "kv_cache_dtype": model.kv_cache_dtype,
        **engine_conditions(engine),
        "largest_cuda_graph": max(replica.profile.graphs_for(replica.max_num_seqs), default=0),
        "profile": replica.profile.name,
        "efficiency": cost.kernels.efficiency.name,
        "evidence": cost.evidence(),
    }
