"""The two predictors that `tests.silicon` compares at a measured point: fleetcast and
AIConfigurator."""

from __future__ import annotations

import importlib
import logging
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError, TraceError
from tests.silicon.points import SiliconPoint, model_config

# Ids of the file whose config.json the package has under another: same shapes.
CONFIG_OF = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
}
STORED_IN_4_BITS = ("moonshotai/Kimi-K2.5", "openai/gpt-oss-120b")
"""Their config.json says how their experts are stored; the others' 4-bit files are not named."""
REQUESTS_PER_SLOT = 10
"""Both clients send 10 requests for each concurrent one, all counted; warm-up is apart."""
INFERENCE_X = (0.8, 1.0)
"""InferenceX draws each length evenly from this range of the one asked for."""
OTHERS = (0.9, 1.1)
"""Others ask for equal lengths. A simulated client without jitter would keep requests that start
together in step for ever; a real one does not, so their output lengths are spread evenly here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Means over requests, in seconds."""

    ttft_s: float
    tpot_s: float


def refusal(point: SiliconPoint) -> str:
    """Why a point cannot be put as a scenario; empty if it can."""
    if point.backend != "vllm":
        return f"the engine is {point.backend}"
    if point.precision not in ("bf16", "fp8") and point.model not in STORED_IN_4_BITS:
        return f"{point.precision} weights"
    if point.pp > 1:
        return "pipeline parallelism"
    layout = parallel_options(point)
    ranks = layout["tensor_parallel_size"] * layout["data_parallel_size"]
    if layout["enable_expert_parallel"] and point.ep not in (ranks, point.tp * point.dp):
        return f"experts over {point.ep} ranks, not all {ranks}"
    return ""


def parallel_options(point: SiliconPoint) -> dict[str, Any]:
    """How the deployment is laid out.

    InferenceX's scripts for MiniMax-M2.5 (benchmarks/single_node/minimaxm2.5_*.sh) start
    ``--tensor-parallel-size=$TP``, with ``--enable-expert-parallel`` where EP_SIZE is above 1, and
    have no data-parallel ranks. Rows from the database dump say dp = tp, ep = tp * tp, on one node
    of 8; they repeat, to the percent, rows of the dated files with the same concurrency and dp 1
    (H100, tp 4, 1,024 + 1,024 tokens, 64 requests: 192.0 ms and 25.69 ms; 191.2 ms and 25.66 ms).
    """
    dp = 1 if point.model == "MiniMaxAI/MiniMax-M2.5" and point.is_inference_x else point.dp
    return {
        "tensor_parallel_size": point.tp,
        "data_parallel_size": dp,
        "enable_expert_parallel": point.ep > 1,
    }


def scenario(
    point: SiliconPoint, operators: str, folder: Path, host_speed_factor: float = 1.0
) -> Scenario:
    """The point as a scenario; its requests' lengths are written into ``folder``."""
    with resources.as_file(model_config(CONFIG_OF.get(point.model, point.model))) as file:
        model = str(file)
    in_16_bits = point.model in CONFIG_OF or point.model == "Qwen/Qwen3-32B"
    return parse_scenario(
        {
            "model": model,
            "hardware": {"gpu": point.gpu},
            "engine": {
                "operators": operators,
                **parallel_options(point),
                "host_speed_factor": host_speed_factor,
                **_engine_options(point),
                "quantization": "fp8" if point.precision == "fp8" and in_16_bits else None,
            },
            "kv": {"enable_prefix_caching": False, **_kv_options(point)},
            "workload": _workload(point, folder) | {"max_concurrency": point.concurrency},
            "bands": False,
        }
    )


def _engine_options(point: SiliconPoint) -> dict[str, int]:
    """What a launch says beyond the engine's defaults, as InferenceX's scripts have it.

    benchmarks/single_node/minimaxm2.5_fp8_{b200,b300}.sh, and the launch command of
    Llama-3.1-70B in the README of the first releases.
    """
    if point.model == "meta-llama/Llama-3.1-70B":
        return {"max_num_seqs": point.concurrency, "max_num_batched_tokens": 8192}
    if _is_minimax_on_blackwell(point):
        return {"max_num_batched_tokens": 2 * point.isl, "max_cudagraph_capture_size": 2048}
    return {}


def _kv_options(point: SiliconPoint) -> dict[str, Any]:
    if point.model in CONFIG_OF and point.gpu != "H100-SXM":
        # hf_quant_config.json of NVIDIA's FP8 checkpoints: kv_cache_quant_algo FP8. On two H100,
        # 64 requests of 9,216 tokens waited for a minute each: they did not fit, and in fp8 would.
        return {"cache_dtype": "fp8"}
    if _is_minimax_on_blackwell(point):
        return {"cache_dtype": "fp8", "block_size": 32}
    if point.model == "MiniMaxAI/MiniMax-M2.5":
        return {"gpu_memory_utilization": 0.95, "block_size": 32}
    return {}


def _is_minimax_on_blackwell(point: SiliconPoint) -> bool:
    """Whether the script is that of vLLM 0.19; the one before it had other options."""
    is_blackwell = point.gpu in ("B200", "B300") and point.version != "0.17.0"
    return point.model == "MiniMaxAI/MiniMax-M2.5" and is_blackwell


def _workload(point: SiliconPoint, folder: Path) -> dict[str, Any]:
    count = REQUESTS_PER_SLOT * point.concurrency
    spread = INFERENCE_X if point.is_inference_x else OTHERS
    draw = np.random.default_rng(0)
    outputs = _drawn(draw, point.osl, spread, count)
    prompts = _drawn(draw, point.isl, spread if point.is_inference_x else (1.0, 1.0), count)
    path = folder / "lengths.csv"
    rows = "".join(
        f"0,{prompt},{output}\n" for prompt, output in zip(prompts, outputs, strict=True)
    )
    path.write_text("t_s,input_tokens,output_tokens\n" + rows, encoding="utf-8")
    return {"trace": {"path": str(path)}}


def _drawn(
    draw: np.random.Generator, asked: int, spread: tuple[float, float], count: int
) -> NDArray[np.int64]:
    shortest, longest = (round(share * asked) for share in spread)
    return draw.integers(shortest, longest + 1, count)


def simulated(
    point: SiliconPoint, operators: str, host_speed_factor: float = 1.0
) -> Predicted | str:
    """What fleetcast predicts, or why it refuses."""
    reason = refusal(point)
    if reason:
        return reason
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = simulate(scenario(point, operators, Path(folder), host_speed_factor))
    except (ScenarioError, TraceError) as error:
        return _without_paths(str(error))
    ttft_s, tpot_s = result.figure("ttft"), result.figure("tpot")
    if ttft_s is None or tpot_s is None:
        return "no request finished"
    return Predicted(ttft_s=ttft_s, tpot_s=tpot_s)


def _without_paths(message: str) -> str:
    return message.rpartition("_config.json: ")[2]


def estimated(point: SiliconPoint) -> Predicted | str:
    """What AIConfigurator's own aggregated estimate says, asked as its regression tool asks.

    That tool passes the row's sizes, quantisation and batch of one attention replica, one prompt a
    step, and the package's current data for versions it has none of.
    """
    try:
        found = _aic_estimate(point)
    except Exception as error:  # its errors have no common base
        return f"{type(error).__name__}: {error}"[:120]
    return Predicted(ttft_s=float(found["ttft"]) * 1e-3, tpot_s=float(found["tpot"]) * 1e-3)


def _aic_estimate(point: SiliconPoint) -> dict[str, Any]:
    builders = importlib.import_module("aiconfigurator_core.sdk.config_builders")
    config = importlib.import_module("aiconfigurator_core.sdk.config")
    models = importlib.import_module("aiconfigurator_core.sdk.models")
    model_settings = builders.build_model_config(
        point.tp,
        point.pp,
        point.dp,
        point.moe_tp,
        point.ep,
        gemm_quant_mode=point.gemm_mode or None,
        moe_quant_mode=point.moe_mode or None,
    )
    name = CONFIG_OF.get(point.model, point.model)
    model = models.get_model(name, model_settings, point.backend)
    load = config.RuntimeConfig(
        batch_size=max(1, point.concurrency // point.dp), isl=point.isl, osl=point.osl
    )
    backend, database = _aic_database(point.system, point.backend)
    # A backend keeps estimates by load, not by model.
    summary = type(backend)().run_agg(model, database, load, ctx_tokens=point.isl)
    found: dict[str, Any] = summary.get_result_dict()
    return found


@cache
def _aic_database(system: str, backend: str) -> tuple[Any, Any]:
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    databases = importlib.import_module("aiconfigurator_core.sdk.perf_database")
    factory = importlib.import_module("aiconfigurator_core.sdk.backends.factory")
    version = databases.get_latest_database_version(system=system, backend=backend)
    database = databases.get_database_view(system, backend, version, database_mode="SILICON")
    return factory.get_backend(backend), database
