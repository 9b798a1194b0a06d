"""The explanation of a step: its rows add up to the step, and every figure is in text, JSON and
page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.models.catalog import load_model
from costmodels.models.spec import quantized
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.steps.describe import ridge_points, simple_step
from scenarios.commands import app

LIMITS: dict[str, Any] = {"max_num_batched_tokens": 4096, "max_num_seqs": 256}
H100 = ["--gpu", "h100", "--model"]


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["explain", *arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.fixture(
    scope="module",
    params=[
        ("llama-3-8b", 1),
        ("qwen3-30b-a3b", 2),
        ("gemma-3-27b", 1),
        ("kimi-linear-48b-a3b", 2),
    ],
)
def cost(request: pytest.FixtureRequest) -> StepCost:
    name, ranks = request.param
    return compile_step_cost(
        load_model(name),
        load_gpu("h200"),
        StepOptions(layout=Layout(tensor_parallel_size=ranks), **LIMITS),
    )


@pytest.mark.parametrize("step", [(64, 2000, 0, 0), (0, 0, 700, 3000), (64, 2000, 512, 100)])
def test_rows_are_the_step(cost: StepCost, step: tuple[int, int, int, int]) -> None:
    shape = simple_step(*step, clip_tokens=cost.shard.model.clip_tokens)
    rows = cost.describe(shape)
    assert sum(row.seconds for row in rows) * 1e9 == pytest.approx(cost.price(shape).gpu_ns, abs=1)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert sum(cost.split_step(shape).values()) == pytest.approx(sum(r.seconds for r in rows))
    for row in rows:
        assert row.accounts
        # Either constants price it, or the rates of the kernel that the engine chooses.
        assert bool(row.constants) != row.kernel.startswith("triton_default")
        assert row.bound in ("compute", "memory", "network", "launch")
        # No operator beats the datasheet.
        seconds_of_bytes = row.weight_bytes + row.state_bytes + row.activation_bytes
        assert row.seconds >= seconds_of_bytes / cost.gpu.hbm_bytes_per_s
        assert row.seconds >= row.flops / getattr(cost.gpu, row.peak)


def test_a_bound_is_where_the_ridge_says() -> None:
    ridge = ridge_points(load_gpu("h200"))["bf16_flop_per_s"]
    rows = run(*H100[2:], "llama-3-8b", "--gpu", "h200", "--prefill-tokens", "4096")["operators"]
    gemms = [row for row in rows if row["name"] in ("qkv", "o", "gate_up", "down")]
    assert all(row["intensity"] > ridge and row["bound"] == "compute" for row in gemms)
    rows = run(*H100[2:], "llama-3-8b", "--gpu", "h200", "--decode-seqs", "16")["operators"]
    gemms = [row for row in rows if row["name"] in ("gate_up", "down")]
    assert all(row["intensity"] < ridge and row["bound"] == "memory" for row in gemms)


@settings(deadline=None, max_examples=15)
@given(
    seqs=st.integers(1, 120),
    more=st.integers(1, 100),
    context=st.integers(1, 20_000),
    longer=st.integers(1, 20_000),
    name=st.sampled_from(["llama-2-7b", "qwen3-30b-a3b"]),
    weights=st.sampled_from(["fp8", "int4_g128", "nvfp4_w4a16"]),
)
def test_more_work_takes_no_less_and_fewer_bits_move_no_more(
    seqs: int, more: int, context: int, longer: int, name: str, weights: str
) -> None:
    """With datasheet constants: in sequences, in context, in bits."""
    gpu, model = load_gpu("h100"), load_model(name)
    efficiency = load_efficiency(gpu, generic_only=True)

    def cost_of(kv: str, linear: str | None) -> StepCost:
        stored = quantized(model, linear=linear, kv_cache=kv)
        return compile_step_cost(stored, gpu, StepOptions(efficiency=efficiency, **LIMITS))

    def total(
        cost: StepCost, seqs: int, context: int, chunk: int = 0, prefix: int = 0
    ) -> tuple[float, float]:
        rows = cost.describe(simple_step(seqs, context, chunk, prefix))
        moved = sum(row.weight_bytes + row.state_bytes + row.activation_bytes for row in rows)
        return sum(row.seconds for row in rows), moved

    wide = cost_of("auto", None)
    base = total(wide, seqs, context)
    for larger in (total(wide, seqs + more, context), total(wide, seqs, context + longer)):
        assert larger[0] >= base[0] * (1 - 1e-9)
        assert larger[1] >= base[1]
    chunk = total(wide, 0, 0, 100 + seqs, context)
    assert total(wide, 0, 0, 100 + seqs + more, context)[0] >= chunk[0] * (1 - 1e-9)
    assert total(wide, 0, 0, 100 + seqs, context + longer)[1] >= chunk[1]
    narrow = cost_of("fp8", weights)
    for row, other in zip(
        wide.describe(simple_step(seqs, context)),
        (r for r in narrow.describe(simple_step(seqs, context)) if r.name != "quantise"),
        strict=True,
    ):
        assert other.weight_bytes <= row.weight_bytes
        assert other.state_bytes <= row.state_bytes


def test_the_page_shows_what_the_text_says(tmp_path: Path) -> None:
    page = tmp_path / "step.html"
    arguments = ["explain", *H100, "llama-3-8b", "--tp", "2", "--out", str(page)]
    text = CliRunner().invoke(app, arguments).output
    html = page.read_text()
    assert "ridge at 295" in html
    for words in ("gate_up", "decode_attention", "all_reduce", "gemm_memory", "launch and host"):
        assert words in text
        assert words in html
    assert "prepare and launch" in text
    assert str(page) in text


def test_a_scenario_file_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(
        "model: llama-3-8b\nhardware: {gpu: h100}\nengine: {tensor_parallel_size: 2}\n"
        "workload: {preset: azure-conv, rate_per_s: 1}\n"
    )
    by_file = run(str(file), "--decode-seqs", "32")
    assert by_file == run(*H100, "llama-3-8b", "--tp", "2", "--decode-seqs", "32")
    fp8 = run(str(file), "--decode-seqs", "32", "--set", "engine.quantization=fp8")
    assert fp8["weights"] == "fp8"
    assert fp8["totals"]["weight_bytes"] < 0.6 * by_file["totals"]["weight_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*H100, "llama-3-8b", "--decode-seqs", "5000"], "max_num_seqs"),
        ([*H100, "llama-3-8b", "--prefill-tokens", "90000"], "max_num_batched_tokens"),
        ([*H100, "llama-3-8b", "--decode-seqs", "0"], "empty step"),
        ([*H100, "llama-3-8b", "--context", "-1"], "negative"),
        ([*H100, "llama-3-8b", "--quantization", "nvfp4"], "no known fp4 peak"),
        ([*H100, "llama-3-8b", "--out", "/nowhere/x.html"], "/nowhere/x.html"),
    ],
)
def test_what_cannot_be_explained(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code == 2
    assert message in result.output
