"""How the server behind a measured point was started, as options of a scenario.

InferenceX's scripts (github.com/SemiAnalysisAI/InferenceX, benchmarks/ and configs/, as they stood
when the rows were measured) say it of its rows; other rows have the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.silicon.points import SiliconPoint

Options = Mapping[str, Any]
PROFILES = {"sglang": "sglang-0.5", "trtllm": "trtllm-1.2"}
_VLLM_PROFILES = {"0.11.2": "vllm-0.11", "0.12.0": "vllm-0.12", "": "vllm-0.11"}
"""By version; rows without one are of the first releases, October 2025."""
_MTP_VERSIONS = ("1.2.0rc6.post3",)
"""Images that only recipes with multi-token prediction name."""
_ACTIVATIONS = 0.06
FP8_CACHE = {"cache_dtype": "fp8"}


def refusal(point: SiliconPoint) -> str:
    """Why a point cannot be put as a scenario; empty if it can."""
    if point.pp > 1:
        return "pipeline parallelism"
    if point.is_inference_x and point.system.startswith("gb"):
        return "all GPUs of prefill and decode servers in one figure"
    layout = parallel_options(point)
    ranks = layout["tensor_parallel_size"] * layout["data_parallel_size"]
    if layout["enable_expert_parallel"] and _whole_on(point) != ranks:
        return f"experts over {_whole_on(point)} ranks, not all {ranks}"
    return ""


def parallel_options(point: SiliconPoint) -> dict[str, Any]:
    """How the deployment is laid out.

    Rows of InferenceX's database with n ranks and experts whole on them say that there are n * n
    (tp or dp is n * n, or both are n; moe_tp and ep are n): they repeat, to the percent, rows of
    its dated files with the same concurrency and n ranks (DeepSeek-R1, B200, SGLang, 64 requests:
    tp 64, 496 ms and 16.3 ms; tp 8 and ep 8, the same).
    """
    tp, dp = point.tp, point.dp
    if _is_squared(point):
        ranks = _whole_on(point)
        tp, dp = (1, ranks) if tp == 1 else (ranks, 1)
    return {
        "tensor_parallel_size": tp,
        "data_parallel_size": dp,
        "enable_expert_parallel": point.ep > 1,
    }


def _is_squared(point: SiliconPoint) -> bool:
    ranks = _whole_on(point)
    return point.is_inference_x and ranks > 1 and point.tp * point.dp == ranks**2


def _whole_on(point: SiliconPoint) -> int:
    """The ranks that experts are divided over, whole."""
    both_squared = point.tp == point.dp > 1 and point.ep == point.tp**2
    return point.tp if both_squared else point.ep


def launch_options(point: SiliconPoint) -> dict[str, Options]:
    """The options of ``engine`` and ``kv``."""
    engine, cache = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[point.backend](point)
    own = {"api_server_count": 1, "host": "bare-metal", **parallel_options(point)}
    return {
        "engine": own | dict(engine),
        "kv": {"enable_prefix_caching": False, **cache},
    }


def _vllm(point: SiliconPoint) -> tuple[Options, Options]:
    profile = {"profile": _VLLM_PROFILES.get(point.version, "vllm-0.25")}
    engine, cache = _vllm_script(point) if point.is_inference_x else ({}, {})
    return profile | dict(engine), cache


def _vllm_script(point: SiliconPoint) -> tuple[Options, Options]:
    is_blackwell = point.gpu.startswith("B")
    match point.model:
        case "meta-llama/Llama-3.1-70B":
            # 70b_fp{4,8}_{b200,h100,h200}_*.sh
            engine = {"max_num_batched_tokens": 8192, "async_scheduling": True}
            if is_blackwell:
                return engine | {"max_num_seqs": 512, "cudagraph_mode": "FULL_DECODE_ONLY"}, (
                    FP8_CACHE | {"gpu_memory_utilization": 0.9}
                )
            # The two H100 rows that wait for memory fit neither 8 nor 16 bits; its script asks for
            # none.
            cache = {} if point.gpu == "H100-SXM" else FP8_CACHE
            return engine | {"max_num_seqs": point.concurrency}, (
                cache | {"gpu_memory_utilization": 0.9}
            )
        case "openai/gpt-oss-120b":
            # gptoss_fp4_{b200,h100,h200}.sh
            engine = {"max_num_batched_tokens": 8192, "max_cudagraph_capture_size": 2048}
            seqs = 512 if is_blackwell else point.concurrency
            cache = FP8_CACHE if is_blackwell else {}
            return engine | {"max_num_seqs": seqs}, cache | {"gpu_memory_utilization": 0.9}
        case "moonshotai/Kimi-K2.5":
            # kimik2.5_{fp4,int4}_*.sh; NVIDIA's checkpoint asks for 8-bit keys and values itself.
            share = 0.9 if point.precision == "fp4" else 0.95
            return {"max_num_seqs": point.concurrency}, {"gpu_memory_utilization": share}
        case "MiniMaxAI/MiniMax-M2.5":
            return _minimax(point, is_blackwell)
    return {}, {}


def _minimax(point: SiliconPoint, is_blackwell: bool) -> tuple[Options, Options]:
    """minimaxm2.5_fp{4,8}_*.sh; that of vLLM 0.17 on B200 had other options."""
    if is_blackwell and point.version != "0.17.0":
        engine = {"max_num_batched_tokens": 2 * point.isl, "max_cudagraph_capture_size": 2048}
        return engine, FP8_CACHE | {"block_size": 32, "gpu_memory_utilization": 0.9}
    if point.gpu == "H100-SXM":
        return {"max_num_seqs": 256, "cudagraph_mode": "PIECEWISE"}, {"gpu_memory_utilization": 0.9}
    return {}, {"gpu_memory_utilization": 0.95, "block_size": 32}


def _sglang(point: SiliconPoint) -> tuple[Options, Options]:
    """dsr1_*.sh, glm5_*.sh and qwen3.5_*.sh; other rows have the defaults of server_args.py."""
    chunk, seqs, share, cache, interval = 8192, 1024, 0.86, {}, 1
    if point.is_inference_x:
        is_hopper = point.gpu == "H200-SXM"
        match point.model.rpartition("/")[2]:
            case "DeepSeek-R1" | "DeepSeek-V3":
                chunk = 16384 if point.precision == "fp4" else 32768
                seqs, share = (512, 0.82) if is_hopper else (max(256, point.concurrency), 0.85)
                share = 0.95 if point.precision == "fp8" and point.tp == 4 else share
                cache = {} if is_hopper else FP8_CACHE
                interval = 1 if is_hopper else 30 if point.concurrency >= 16 else 10
            case "GLM-5":
                chunk = 8192 if is_hopper else 32768
                seqs, share = 1024 if is_hopper else point.concurrency, 0.85
                cache = {} if is_hopper else FP8_CACHE
            case "Qwen3.5-397B-A17B":
                chunk = 32768 if point.precision == "bf16" else 16384
                seqs, share = max(128, point.concurrency), 0.82
                interval = 1 if is_hopper else 30 if point.concurrency >= 16 else 10
                cache = {} if point.precision == "bf16" else FP8_CACHE
    engine = {
        "profile": PROFILES["sglang"],
        "scheduler": {
            "name": "sglang",
            "chunked_prefill_size": chunk,
            "scheduler_recv_interval": interval,
        },
        "max_num_batched_tokens": max(chunk, seqs),
        "max_num_seqs": seqs,
    }
    # mem_fraction_static leaves activations out, gpu_memory_utilization has them.
    return engine, cache | {"gpu_memory_utilization": min(share + _ACTIVATIONS, 0.97)}


def _trtllm(point: SiliconPoint) -> tuple[Options, Options]:
    """dsr1_*_trt.sh, gptoss_*_trt.sh and 70b_*_trt_slurm.sh; trtllm-serve's defaults else."""
    tokens, seqs = 8192, 2048
    # NVIDIA's 4-bit checkpoints ask for 8-bit keys and values.
    cache = FP8_CACHE if point.precision == "fp4" and "gpt-oss" not in point.model else {}
    if point.is_inference_x:
        match point.model.rpartition("/")[2]:
            case "DeepSeek-R1" | "DeepSeek-V3":
                tokens = max(8192, -(-(point.concurrency + point.isl + 64) // 64) * 64)
                cache = FP8_CACHE
            case "gpt-oss-120b":
                tokens = 20_000
                cache = FP8_CACHE if point.gpu.startswith("B") else {}
            case "Llama-3.1-70B":
                tokens = 16_384
                cache = FP8_CACHE
    engine: dict[str, Any] = {
        "profile": PROFILES["trtllm"],
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
    }
    if point.version in _MTP_VERSIONS and "DeepSeek" in point.model:
        drafts = 1 if point.tp == 1 else 3
        engine["speculative"] = {"method": "mtp", "num_speculative_tokens": drafts}
    # free_gpu_memory_fraction is of what weights leave.
    return engine, cache | {"gpu_memory_utilization": 0.94}
