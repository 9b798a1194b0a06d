"""Start vLLM's engine core in this process, and describe it as a recording's info file does.

This is the only module that imports vLLM, and it does so when it is called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from calibrate.engines.driver import CoreDriver
from sim.errors import FleetcastError

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core must run in this process to be watched
    "VLLM_NO_USAGE_STATS": "1",
}
_SCHEDULER_FIELDS = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold")
_NOISE = 0.1  # standard deviation of what the KV cache is filled with


def start_vllm(
    model: str, *, random_weights: bool, engine_args: dict[str, Any]
) -> tuple[CoreDriver, dict[str, Any]]:
    """Return a driver of vLLM's engine core serving ``model``, and the description of the engine.

    ``model`` is what vLLM takes: a Hugging Face id or a checkpoint's folder; with random weights
    also a ``config.json``. ``engine_args`` are fields of vLLM's ``EngineArgs``. Raises
    `FleetcastError` without vLLM, or if the engine does not start.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    vllm = _import_vllm()
    folder = _model_folder(model, random_weights)
    given = {"skip_tokenizer_init": True, **engine_args, "model": folder}
    if random_weights:
        given["load_format"] = "dummy"
    start_s = time.perf_counter()
    try:
        core, config = _start_core(given)
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        raise FleetcastError(f"vLLM {vllm.__version__} does not start {model}: {error}") from error
    filled = _fill_kv_cache(core)
    load_s = time.perf_counter() - start_s
    shown = {name: _text(value) for name, value in given.items() if name != "model"}
    described = {
        "model_name": Path(model).stem if model.endswith(".json") else model,
        "hf_config": _hf_config(config, folder),
        "engine_args": shown,
        "vllm": vllm.__version__,
        "python": sys.version.split()[0],
        "gpu": device_line(),
        "load_s": round(load_s, 1),
        "kv_filled_layers": filled,
        "random_weights": random_weights,
        **describe_core(core, config),
    }
    vocab_size = int(config.model_config.get_vocab_size())
    return CoreDriver(core, _request_maker(core), vocab_size), described


def _import_vllm() -> Any:
    try:
        import vllm
    except ImportError as error:
        raise FleetcastError(
            f"vLLM cannot be imported here ({error}): run this in the environment that serves "
            "your model, on its GPU (pip install vllm)"
        ) from error
    return vllm


def _model_folder(model: str, random_weights: bool) -> str:
    """Return what vLLM takes as a model; a config.json is put into a folder of its own."""
    path = Path(model)
    if not model.endswith(".json"):
        return model
    if not random_weights:
        raise FleetcastError(f"{model} has no weights; add --random-weights, or name a checkpoint")
    if not path.is_file():
        raise FleetcastError(f"{model}: no such file")
    folder = Path(tempfile.mkdtemp(prefix="fleetcast-model-"))
    (folder / "config.json").write_bytes(path.read_bytes())
    return str(folder)


def _start_core(given: dict[str, Any]) -> tuple[Any, Any]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    # vLLM writes into the dictionaries that it is given.
    args = EngineArgs(**json.loads(json.dumps(given)))
    # The defaults of batch sizes depend on who asks: these are the API server's.
    config = args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    return EngineCore(config, Executor.get_class(config), log_stats=False), config


def _request_maker(core: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    def make(request_id: str, prompt: list[int], output_tokens: int) -> Any:
        params = SamplingParams(
            temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False
        )
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        return core.preprocess_add_request(request)

    return make


def describe_core(core: Any, config: Any) -> dict[str, Any]:
    """Return what `fleetcast validate` must know of an engine, read from its configuration."""
    scheduler, cache = config.scheduler_config, config.cache_config
    compilation = config.compilation_config
    layers = _layer_backends(compilation)
    manager = core.scheduler.kv_cache_manager
    return {
        **{name: getattr(scheduler, name, None) for name in _SCHEDULER_FIELDS},
        "policy": str(scheduler.policy),
        "async_scheduling": bool(scheduler.async_scheduling),
        "chunked_prefill": bool(scheduler.enable_chunked_prefill),
        "max_model_len": int(config.model_config.max_model_len),
        "tensor_parallel_size": int(config.parallel_config.tensor_parallel_size),
        "block_size": int(cache.block_size),
        "num_gpu_blocks": int(cache.num_gpu_blocks),
        "gpu_memory_utilization": float(cache.gpu_memory_utilization),
        "prefix_caching": bool(cache.enable_prefix_caching),
        "kv_cache_dtype": str(cache.cache_dtype),
        "watermark_blocks": getattr(manager, "watermark_blocks", 0),
        "attention_backends": sorted({layer.split(":")[1] for layer in layers} - {"-"}),
        "layer_backends": layers,
        "v2_model_runner": bool(getattr(config, "use_v2_model_runner", False)),
        "compilation": {
            "mode": str(compilation.mode),
            "cudagraph_mode": str(compilation.cudagraph_mode),
            "sizes": list(compilation.cudagraph_capture_sizes or []),
        },
    }


def _layer_backends(compilation: Any) -> dict[str, int]:
    """Count the layers by class and attention backend."""
    found: Counter[str] = Counter()
    for layer in (getattr(compilation, "static_forward_context", None) or {}).values():
        has_backend = hasattr(layer, "get_attn_backend")
        backend = layer.get_attn_backend().get_name() if has_backend else "-"
        found[f"{type(layer).__name__}:{backend}"] += 1
    return dict(found)


def _hf_config(config: Any, folder: str) -> dict[str, Any]:
    """Return the checkpoint's config.json if it is here, else what vLLM made of it."""
    path = Path(folder) / "config.json"
    if path.is_file():
        read = json.loads(path.read_text(encoding="utf-8"))
    else:
        read = json.loads(json.dumps(config.model_config.hf_config.to_dict(), default=str))
    return dict(read)


def _fill_kv_cache(core: Any) -> int:
    """Fill the KV cache with noise, as given contexts are read from it; return how many tensors.

    Zeros would make attention cheaper than it is, in power and in what its softmax skips.
    """
    import torch

    worker = getattr(core.model_executor, "driver_worker", None)  # there is none of several ranks
    runner = getattr(getattr(worker, "worker", worker), "model_runner", None)
    left, seen = list(getattr(runner, "kv_caches", [])), set()
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left.extend(part)
        elif _takes_noise(part) and part.data_ptr() not in seen:
            part.normal_(0, _NOISE)
            seen.add(part.data_ptr())
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return len(seen)


def _takes_noise(part: Any) -> bool:
    """Whether this is a tensor of 16-bit or 32-bit floats."""
    import torch

    is_tensor = isinstance(part, torch.Tensor)
    return is_tensor and part.is_floating_point() and part.element_size() >= 2


def device_line() -> str:
    """Return the device as nvidia-smi describes it, or its name alone where that is missing."""
    query = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        found = ""
    if found.strip():
        return found.strip().splitlines()[0]
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else "no GPU"


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
