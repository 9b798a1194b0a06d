"""An engine's version decides what it does: throughput that was measured with older ones."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError


def tokens_per_s(version: str | None, model: str, gpu: str, ranks: int, length: int) -> float:
    """Return prompt and output tokens per second of 500 prompts at once."""
    output = 105 if ranks == 1 else 100
    values: dict[str, Any] = {
        "model": model,
        "hardware": {"gpu": gpu},
        "engine": {"tensor_parallel_size": ranks, "version": version},
        "kv": {"gpu_memory_utilization": 0.9},
        "workload": {
            "generator": {
                "input_tokens": {"fixed": length},
                "output_tokens": {"fixed": output},
                "arrivals": "all-at-once",
            },
            "num_requests": 500,
        },
        "bands": False,
    }
    found = simulate(parse_scenario(values)).figure("total_throughput_per_gpu")
    assert found is not None
    return found * ranks


@pytest.mark.parametrize(
    ("version", "model", "gpu", "ranks", "length", "measured"),
    [
        # gpustack docs/performance-lab: gpt-oss-20b/h100.md and deepseek-v3.2/h200.md.
        ("0.11.0", "openai/gpt-oss-20b", "H100", 1, 3998, 33_236),
        ("0.13.0", "deepseek-ai/DeepSeek-V3.2", "H200", 8, 2000, 10_926),
    ],
)
def test_an_older_engine_is_as_slow_as_it_was(
    version: str, model: str, gpu: str, ranks: int, length: int, measured: float
) -> None:
    assert tokens_per_s(version, model, gpu, ranks, length) == pytest.approx(measured, rel=0.2)
    assert tokens_per_s(None, model, gpu, ranks, length) > 1.2 * measured


def test_an_unknown_version_says_which_profile_stands_for_it() -> None:
    values: dict[str, Any] = {
        "model": "Qwen/Qwen3-8B",
        "engine": {"version": "0.22.1"},
        "workload": {"preset": "azure-conv", "rate_per_s": 1, "num_requests": 20},
        "bands": False,
    }
    notes = simulate(parse_scenario(values)).summary["conditions"]["notes"]
    assert any("no profile of vLLM 0.22.1" in note and "vllm-0.25" in note for note in notes)
    with pytest.raises(ScenarioError, match=r"write it as 0\.11"):
        _ = simulate(parse_scenario(values | {"engine": {"version": "newest"}}))
