"""A scenario written as a server command and read back is unchanged."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from scenarios.files.load import parse_scenario
from scenarios.schema import Scenario
from scenarios.server_flags.inverse import command_of, commands_of
from scenarios.server_flags.reading import read_command
from scenarios.server_flags.table import TABLES, load_table

WORKLOAD = {
    "generator": {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 10}},
    "rate_per_s": 1,
    "num_requests": 10,
}
DENSE = "meta-llama/Llama-3.1-8B"
EXPERTS = "deepseek-ai/DeepSeek-V3"
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limits": {
        "engine": {
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": 2,
            "max_num_batched_tokens": 4096,
            "max_num_seqs": 96,
            "max_model_len": 8192,
        }
    },
    "precision": {"engine": {"quantization": "fp8"}, "kv": {"cache_dtype": "fp8"}},
    "cache": {
        "kv": {"enable_prefix_caching": False, "block_size": 32, "gpu_memory_utilization": 0.85}
    },
    "blocks": {"kv": {"num_gpu_blocks": 5001}},
    "priority": {"engine": {"scheduler": "priority", "async_scheduling": False}},
    "graphs": {"engine": {"max_cudagraph_capture_size": 256, "cpu_offload_gb": 12.5}},
    "experts": {
        "model": EXPERTS,
        "engine": {
            "data_parallel_size": 8,
            "enable_expert_parallel": True,
            "enable_eplb": True,
            "num_redundant_experts": 32,
            "all2all_backend": "deepep_low_latency",
            "enable_dbo": True,
        },
        "hardware": {"gpu": "H200"},
    },
    "fleet": {"pool": {"replicas": 6, "router": "least_loaded"}, "hardware": {"gpu": "H100"}},
    "unsaid": {
        "engine": {
            "scheduler": {"name": "sarathi", "chunk_tokens": 512},
            "host_speed_factor": 1.5,
        },
        "kv": {"cache_dtype": "kivi4", "swap_space_gib": 8.0},
    },
}


def scenario(name: str) -> Scenario:
    values = {"model": DENSE, "workload": WORKLOAD} | SCENARIOS[name]
    return parse_scenario(values)


@pytest.mark.parametrize("engine", TABLES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_command_read_back_is_the_scenario(name: str, engine: str) -> None:
    """With what the command cannot say given beside it, by its path."""
    before = scenario(name)
    command = command_of(before, engine)
    beside = command.unsaid | {"workload": WORKLOAD}
    overrides = [f"{key}={yaml.safe_dump(value).strip()}" for key, value in beside.items()]
    overrides = [text.removesuffix("\n...") for text in overrides]
    reading = read_command(engine, [command.command], flags={}, overrides=overrides)
    after = parse_scenario(yaml.safe_load(reading.text))
    assert after.model_dump() == before.model_dump()


def test_a_flag_is_said_where_there_is_one() -> None:
    """Every setting that has a flag in the version is in the command, so none is left to the
    reader."""
    for name in ("limits", "precision", "cache", "blocks", "priority", "graphs", "experts"):
        command = command_of(scenario(name), "vllm")
        assert not [key for key in command.unsaid if key.startswith(("engine.", "kv."))], name


def test_commands_are_what_a_shell_takes() -> None:
    vllm = command_of(scenario("limits"), "vllm")
    words = shlex.split(vllm.command)
    assert words[:3] == ["vllm", "serve", DENSE]
    assert vllm.version == load_table("vllm").version
    assert words[words.index("--tensor-parallel-size") + 1] == "4"
    sglang = command_of(scenario("cache"), "sglang")
    assert sglang.command.startswith("python -m sglang.launch_server --model-path")
    assert "--disable-radix-cache" in shlex.split(sglang.command)
    eager = command_of(
        parse_scenario(
            {"model": DENSE, "workload": WORKLOAD, "kv": {"enable_prefix_caching": False}}
        ),
        "vllm",
    )
    assert "--no-enable-prefix-caching" in shlex.split(eager.command)


def test_each_pool_has_commands_of_its_own() -> None:
    pools = [
        {"name": "p", "role": "prefill", "replicas": 2, "engine": {"tensor_parallel_size": 2}},
        {"name": "d", "role": "decode", "replicas": 5, "hardware": {"gpu": "H200"}},
    ]
    rows = commands_of(parse_scenario({"model": DENSE, "workload": WORKLOAD, "pools": pools}))
    told = [(row["pool"], row["engine"], row["replicas"], row["gpu"]) for row in rows]
    assert told == [
        ("p", "vllm", 2, "H200"),
        ("p", "sglang", 2, "H200"),
        ("d", "vllm", 5, "H200"),
        ("d", "sglang", 5, "H200"),
    ]
    assert "--tensor-parallel-size 2" in rows[0]["command"]


def test_longer_positions_are_written_and_read_back() -> None:
    values = {"model": "Qwen/Qwen3-32B", "workload": WORKLOAD}
    engine = {"max_position_embeddings": 131_072, "max_model_len": 131_072}
    for name in TABLES:
        command = command_of(parse_scenario(values | {"engine": engine}), name)
        assert "engine.max_position_embeddings" not in command.unsaid
        read = yaml.safe_load(read_command(name, [command.command], flags={}).text)
        assert read["engine"]["max_position_embeddings"] == 131_072
