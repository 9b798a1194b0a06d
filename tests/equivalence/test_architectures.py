"""Small runs of every architecture end, are equal in jumps and steps, and have balanced
accounts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodels.models.catalog import model_names
from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError
from sim.shape import shape_columns
from tests.equivalence.runs import check_audited_jumps

# model and what is odd about it, tensor-parallel size, more options of the engine.
SERVED: dict[str, tuple[int, dict[str, Any]]] = {
    "deepseek-v3": (8, {}),
    "gpt-oss-120b": (1, {}),
    "gemma-3-27b": (1, {}),
    "qwen3-next-80b-a3b": (2, {}),
    "kimi-linear-48b-a3b": (1, {}),
    "deepseek-v3.2": (8, {}),
    "deepseek-v3.2 dp": (1, {"data_parallel_size": 16, "enable_expert_parallel": True}),
    "gpt-oss-120b pp": (2, {"pipeline_parallel_size": 2}),
    "deepseek-v4-flash": (4, {}),
    "minimax-m1": (8, {"quantization": "fp8"}),
    "minimax-m3": (8, {"quantization": "fp8"}),
    "Mistral-7B-v0.1": (1, {}),
}


def scenario(model: str, **more: Any) -> Scenario:
    ranks, options = SERVED[model]
    content: dict[str, Any] = {
        "model": model.partition(" ")[0],
        "hardware": {"gpu": "h200"},
        "engine": {"tensor_parallel_size": ranks, **options},
        "workload": {"preset": "azure-conv", "num_requests": 50, "rate_per_s": 3.0},
        "bands": False,
    }
    return parse_scenario(content | more)


@pytest.mark.parametrize("model", SERVED)
@pytest.mark.parametrize("blocks", [None, 1.0], ids=["roomy", "tight"])
def test_a_small_run(model: str, blocks: float | None) -> None:
    """``tight``: a pool that holds little more than the longest request."""
    asked = scenario(model)
    built, table = build(asked), build_table(asked)
    engine = built.pool.engine
    if blocks is not None:
        longest = int((table.prompt_tokens + table.output_tokens).max())
        pages = engine.kv_layout.pages(longest, engine.block_size)
        engine = replace(engine, replica_blocks=1 + pages)
    check_audited_jumps(table, replace(built.pool, engine=engine))


@pytest.mark.parametrize("model", SERVED)
def test_its_summary(model: str) -> None:
    asked = scenario(model)
    result = simulate(asked)
    summary, clips = result.summary, result.build.replica.model.clip_tokens
    assert summary["requests"]["finished"] == 50
    device = dict(summary["device_bytes"])
    assert device.pop("total") == sum(device.values())
    assert not {"measured", "fitted"} & set(summary["evidence"])
    assert any("unfitted" in source["source"] for source in summary["sources"])
    # Time by account is all of the engines' time; the steps have the sums that were priced.
    (steps,) = result.log.steps
    gpu_s = int(steps.column("gpu_ns").sum()) / 1e9
    assert sum(summary["step_accounts_s"].values()) == pytest.approx(gpu_s)
    assert set(shape_columns(clips)) <= set(result.steps.columns)
    for cap in clips:
        clipped = result.steps[f"decode_clipped_tokens_{cap}"]
        most = np.minimum(result.steps["decode_context_tokens"], cap * result.steps["decode_seqs"])
        assert (clipped <= most).all()
        assert clipped.max() > 0
    again = simulate(asked)
    assert again.summary["figures"] == summary["figures"]


def test_recurrent_models_say_that_prefixes_are_not_cached() -> None:
    for model in ("qwen3-next-80b-a3b", "Mistral-7B-v0.1"):
        built = build(scenario(model))
        assert not built.pool.engine.enable_prefix_caching
        assert any("prefix caching is off" in note for note in built.notes)
    built = build(scenario("gpt-oss-120b"))
    assert built.pool.engine.enable_prefix_caching
    assert not any("prefix" in note for note in built.notes)


def test_overload_meets_the_estimate() -> None:
    """The fluid estimate uses the same clipped sums and pages as the steps; it is least near where
    the host's launches of recurrent layers decide."""
    for model in ("gpt-oss-120b", "kimi-linear-48b-a3b", "gemma-3-27b"):
        load = {"preset": "azure-conv", "num_requests": 2500, "rate_per_s": 500.0}
        result = simulate(scenario(model, workload=load))
        estimate = result.summary["saturation"]["saturation_per_s"]
        measured = result.figure("request_throughput", "value")
        print(f"\n{model}: {estimate:.2f} estimated, {measured:.2f} requests/s simulated")
        assert measured == pytest.approx(estimate, rel=0.3)


@pytest.mark.parametrize("name", model_names())
def test_every_model_that_is_listed_can_be_simulated(name: str) -> None:
    """On as few of the largest GPUs as hold it."""
    lengths = {"input_tokens": {"fixed": 500}, "output_tokens": {"fixed": 20}}
    content = {
        "model": name,
        "hardware": {"gpu": "B300"},
        "workload": {"generator": lengths, "rate_per_s": 2, "num_requests": 10},
        "bands": False,
    }
    for ranks in (1, 2, 4, 8, 16):
        engine = {"engine": {"tensor_parallel_size": ranks}}
        try:
            result = simulate(parse_scenario(content | engine))
        except ScenarioError as error:
            refused = str(error)
            continue
        assert result.summary["requests"]["finished"] == 10
        return
    pytest.fail(refused)
