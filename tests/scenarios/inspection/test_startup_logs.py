"""Start-up logs: what is read from them, and the KV cache against what real servers reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from typer.testing import CliRunner

from calibrate.servers.startup_log import parse_startup_log
from costmodels.hardware.gpus import GIB
from scenarios.build.resolve import resolve
from scenarios.commands import app
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import parse_scenario
from sim.errors import ScenarioError


class Reported(NamedTuple):
    """A server's KV cache as its log had it: GiB a rank."""

    model: str
    version: str
    kv_cache_gib: float
    gpu: str = "H100"
    tp: int = 1
    utilization: float = 0.95
    quantization: str | None = None
    max_model_len: int = 8192


# llm-d-planner docs/empirical-vllm-memory-results.md: H100, blocks of 128, 0.9 of the device.
_ELEVEN: dict[str, Any] = {"utilization": 0.9, "max_model_len": 16_000}
REPORTED = [
    Reported("openai/gpt-oss-20b", "0.11.0", 50.28, **_ELEVEN),
    Reported(
        "meta-llama/Llama-3.3-70B-Instruct", "0.11.0", 32.00, tp=2, quantization="fp8"
    )._replace(**_ELEVEN),
    Reported("meta-llama/Llama-3.1-8B", "0.11.0", 51.38, **_ELEVEN),
    Reported("Qwen/Qwen3-0.6B", "0.11.0", 64.45, **_ELEVEN),
    Reported("Qwen/Qwen3-32B", "0.11.0", 4.45, **_ELEVEN),
    Reported("Qwen/Qwen3-32B", "0.11.0", 34.49, tp=2, **_ELEVEN),
    # A user's server, from its log: two H200.
    Reported("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.10.2", 44.59, "H200", 2, 0.9),
    # A blog's, from its log: one A100 of 80 GB.
    Reported("openai/gpt-oss-20b", "0.19.0", 36.56, "A100-SXM-80GB", 1, 0.65),
    # A user's, from its log: one H100.
    Reported("Qwen/Qwen3-8B", "0.19.1", 53.54, utilization=0.9),
    # llm-d-planner, accuracy report: H100, 0.95 of the device. Where it prints no cache, it is the
    # granted share less the weights, the peak and what is outside torch that it prints.
    Reported("Qwen/Qwen3-14B", "0.15.0", 41.94),
    Reported("Qwen/Qwen3-14B", "0.16.0", 41.94),
    Reported("Qwen/Qwen3-14B", "0.17.0", 45.34),
    Reported("Qwen/Qwen3-14B", "0.18.0", 45.23),
    Reported("meta-llama/Llama-3.1-8B", "0.19.0", 58.11),
    Reported("meta-llama/Llama-3.1-8B", "0.19.0", 64.61, quantization="fp8"),
    Reported("meta-llama/Llama-3.1-8B", "0.19.0", 63.76, tp=2),
    Reported("meta-llama/Llama-3.1-8B", "0.19.0", 67.44, tp=4),
    Reported("Qwen/Qwen2.5-7B", "0.19.0", 58.53),
    Reported("Qwen/Qwen2.5-7B", "0.19.0", 63.84, tp=2),
    Reported("Qwen/Qwen2.5-7B", "0.19.0", 67.34, tp=4),
    Reported("Qwen/Qwen3-8B", "0.19.0", 57.51),
    Reported("Qwen/Qwen3-30B-A3B", "0.19.0", 15.41),
    Reported("deepseek-ai/DeepSeek-V2-Lite", "0.19.0", 43.6),
    Reported("google/gemma-2-9b", "0.19.0", 54.1),
    Reported("google/gemma-2-27b", "0.19.0", 20.6),
    Reported("mistralai/Mixtral-8x7B-v0.1", "0.19.0", 28.45, tp=2),
    Reported("Qwen/Qwen2.5-72B", "0.19.0", 3.05, tp=2),
    Reported("meta-llama/Llama-3.3-70B-Instruct", "0.19.0", 37.3, tp=2, quantization="fp8"),
    Reported("meta-llama/Llama-3.3-70B-Instruct", "0.19.0", 54.1, tp=4, quantization="fp8"),
    Reported("google/gemma-3-12b-it", "0.19.0", 48.3),
    Reported("google/gemma-3-27b-it", "0.19.0", 19.6),
]
WITHIN, MOST = 0.03, 0.10


def predicted_gib(row: Reported) -> float:
    values = {
        "model": row.model,
        "hardware": {"gpu": row.gpu},
        "engine": {
            "version": row.version,
            "tensor_parallel_size": row.tp,
            "max_model_len": row.max_model_len,
            "quantization": row.quantization,
        },
        "kv": {"gpu_memory_utilization": row.utilization},
        "workload": ANY_WORKLOAD,
    }
    return resolve(parse_scenario(values)).memory.pool_bytes / GIB


def test_the_kv_cache_is_that_of_reported_servers() -> None:
    errors = {row: predicted_gib(row) / row.kv_cache_gib - 1 for row in REPORTED}
    worst = {row: error for row, error in errors.items() if abs(error) > MOST}
    assert not worst
    near = sum(abs(error) <= WITHIN for error in errors.values())
    assert near >= len(REPORTED) * 20 / 26, errors


def test_the_default_share_is_that_of_the_version() -> None:
    def share(**engine: Any) -> float:
        values = {"model": "Qwen/Qwen3-8B", "engine": engine, "workload": ANY_WORKLOAD}
        return resolve(parse_scenario(values)).memory.gpu_memory_utilization

    assert share() == 0.92
    assert share(version="0.19.1") == share(version="0.11") == share(version=0.1) == 0.9


VLLM = """\
(APIServer pid=1) INFO 10-06 15:56:26 [api_server.py:1839] vLLM API server version 0.11.0
(APIServer pid=1) INFO 10-06 15:56:26 [utils.py:233] non-default args: {'model_tag': \
'/models/Llama-3.1-8B', 'host': '0.0.0.0', 'api_key': ['secret'], 'model': '/models/Llama-3.1-8B', \
'max_model_len': 16000, 'block_size': 128, 'enable_prefix_caching': True, \
'no_such_flag': 3, 'tensor_parallel_size': 1}
(EngineCore pid=2) INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: \
model='/models/Llama-3.1-8B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=16000, \
tensor_parallel_size=1, pipeline_parallel_size=1, enforce_eager=False, kv_cache_dtype=auto
(Worker pid=2) INFO [gpu_model_runner.py:2653] Model loading took 14.9900 GiB and 25.5 seconds
(Worker pid=2) INFO [fused_moe.py:720] configs/E=512,N=256,device_name=NVIDIA_H100_80GB_HBM3.json
(Worker pid=2) INFO [gpu_worker.py:298] Available KV cache memory: 51.38 GiB
(EngineCore pid=2) INFO [kv_cache_utils.py:1087] GPU KV cache size: 420,864 tokens
(EngineCore pid=2) INFO [kv_cache_utils.py:1091] Maximum concurrency for 16,000 tokens per \
request: 26.30x
(Worker pid=2) INFO [gpu_model_runner.py:3480] Graph capturing finished in 19 secs, took 0.55 GiB
(Worker pid=2) INFO [gpu_worker.py:391] Free memory on device (78.66/79.18 GiB) on startup. \
Desired GPU memory utilization is (0.9, 71.26 GiB). Actual usage is 14.99 GiB for weight, 4.76 GiB \
for peak activation, 0.13 GiB for non-torch memory, and 0.55 GiB for CUDAGraph memory.
"""
SGLANG = """\
[2026-08-15 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=2, \
mem_fraction_static=0.85, chunked_prefill_size=8192, page_size=1, schedule_policy='fcfs')
[2026-08-15 10:00:20 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail \
mem=70.85 GB, mem usage=7.70 GB.
[2026-08-15 10:00:21 TP0] KV Cache is allocated. #tokens: 830913, K size: 28.53 GB, V size: 28.53 GB
[2026-08-15 10:00:40 TP0] Capture cuda graph end. Time elapsed: 8.04 s. mem usage=1.20 GB.
[2026-08-15 10:00:41 TP0] max_total_num_tokens=830913, chunked_prefill_size=8192, \
max_running_requests=2048, context_len=40960
"""


def test_a_vllm_log_is_read() -> None:
    log = parse_startup_log(VLLM)
    assert (log.engine, log.version, log.device) == ("vllm", "0.11.0", "NVIDIA H100 80GB HBM3")
    assert log.arguments["model"] == "/models/Llama-3.1-8B"
    assert log.figures == {
        "weights_gib": 14.99,
        "activation_gib": 4.76,
        "other_gib": 0.13,
        "graphs_gib": 0.55,
        "kv_cache_gib": 51.38,
        "kv_cache_tokens": 420_864,
        "max_concurrency": 26.3,
        "max_model_len": 16_000,
        "device_gib": 79.18,
    }


def test_an_sglang_log_is_read() -> None:
    log = parse_startup_log(SGLANG)
    assert log.engine == "sglang"
    assert log.arguments["model_path"] == "Qwen/Qwen3-8B"
    assert log.arguments["tp_size"] == 2
    assert log.figures["kv_cache_gib"] == pytest.approx(57.06)
    assert log.figures["kv_cache_tokens"] == 830_913
    assert log.figures["graphs_gib"] == 1.2


def test_older_engines_printed_the_same_sums() -> None:
    log = parse_startup_log(
        "model weights take 12.55GiB; non_torch_memory takes 0.16GiB; PyTorch activation peak "
        "memory takes 2.38GiB; the rest of the memory reserved for KV Cache is 56.18GiB.\n"
        "# cuda blocks: 7191, # CPU blocks: 512"
    )
    assert log.figures["kv_cache_gib"] == 56.18
    assert log.figures["num_gpu_blocks"] == 7191


def test_another_file_is_refused() -> None:
    with pytest.raises(ScenarioError, match="no start-up log of vLLM or SGLang"):
        _ = parse_startup_log("INFO nothing of interest")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_log_becomes_a_scenario_and_memory_shows_both(tmp_path: Path) -> None:
    log, out = tmp_path / "server.log", tmp_path / "s.yaml"
    log.write_text(VLLM)
    told = run("scenario", "from-log", str(log), "--out", str(out))
    assert "start-up log of vLLM 0.11.0" in told
    assert "--no-such-flag" in told
    assert "secret" not in told + out.read_text()
    values = yaml.safe_load(out.read_text())
    assert values["hardware"]["gpu"] == "H100-SXM"
    assert values["engine"]["version"] == "0.11.0"
    assert values["kv"]["gpu_memory_utilization"] == 0.9
    assert values["kv"]["num_gpu_blocks"] == 420_864 // 128
    shown = run("memory", str(out))
    assert "What the server's start-up log said" in shown
    assert "420,864" in shown


HYBRID = """\
(APIServer pid=1) INFO [api_server.py:1896] vLLM API server version 0.10.2
(APIServer pid=1) INFO [utils.py:328] non-default args: {'model': \
'/data/models/Qwen3-Next-80B-A3B-Instruct', 'tensor_parallel_size': 2}
(APIServer pid=1) INFO [config.py:390] Setting attention block size to 544 tokens
(Worker_TP0 pid=2) INFO [fused_moe.py:720] Using E=512,N=256,device_name=NVIDIA_H200.json
(Worker_TP0 pid=2) INFO [gpu_worker.py:298] Available KV cache memory: 44.59 GiB
(EngineCore pid=2) INFO [kv_cache_utils.py:1028] GPU KV cache size: 973,760 tokens
(EngineCore pid=2) INFO [kv_cache_utils.py:1032] Maximum concurrency for 262,144 tokens per \
request: 14.77x
"""


def test_the_cache_of_a_hybrid_is_taken_by_its_bytes(tmp_path: Path) -> None:
    log, out = tmp_path / "server.log", tmp_path / "s.yaml"
    log.write_text(HYBRID)
    _ = run("scenario", "from-log", str(log), "--out", str(out))
    values = yaml.safe_load(out.read_text())
    assert values["model"].endswith("Qwen3-Next-80B-A3B-Instruct")
    assert (values["hardware"]["gpu"], values["engine"]["tensor_parallel_size"]) == ("H200-SXM", 2)
    plan = resolve(parse_scenario(values | {"workload": ANY_WORKLOAD})).memory
    assert plan.pool_bytes / GIB == pytest.approx(44.59, rel=1e-3)
    assert "44.59" in run("memory", str(out))


def test_an_sglang_log_becomes_a_scenario(tmp_path: Path) -> None:
    log, out = tmp_path / "server.log", tmp_path / "s.yaml"
    log.write_text(SGLANG)
    refused = CliRunner().invoke(app, ["scenario", "from-log", str(log)])
    assert refused.exit_code == 2
    assert "does not name its GPU" in refused.output
    _ = run("scenario", "from-log", str(log), "--gpu", "H100", "--out", str(out))
    values = yaml.safe_load(out.read_text())
    assert values["engine"]["profile"] == "sglang-0.5"
    assert values["engine"]["tensor_parallel_size"] == 2
    blocks = values["kv"]["num_gpu_blocks"] * values["kv"].get("block_size", 16)
    assert blocks == pytest.approx(830_913, rel=1e-3)
