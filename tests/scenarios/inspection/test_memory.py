"""What fills a device, and how many sequences fit: exact sums, and figures from papers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from costmodels.hardware.gpus import gpu_names, load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import valid_sizes
from costmodels.memory.device import DevicePlan
from costmodels.memory.entries import STATE, WEIGHTS
from costmodels.memory.fitting import MAX, ORACLE, PAGED, POW2, reserve
from costmodels.models.catalog import load_model, model_names
from costmodels.models.spec import quantized
from scenarios.commands import app

LIMITS: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["memory", *arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(model_names()),
    gpu=st.sampled_from(gpu_names()),
    ranks=st.sampled_from([1, 2, 4, 8]),
    block=st.sampled_from([16, 64, 256]),
    prompt=st.integers(1, 200_000),
    output=st.integers(1, 5_000),
    utilization=st.floats(0.3, 1.0),
)
def test_every_byte_of_any_model_is_accounted_for(
    name: str, gpu: str, ranks: int, block: int, prompt: int, output: int, utilization: float
) -> None:
    model = load_model(name)
    ranks = max(size for size in valid_sizes(model, 8) if size <= ranks)
    plan = DevicePlan(
        model,
        load_gpu(gpu),
        layout=Layout(tensor_parallel_size=ranks),
        block_size=block,
        gpu_memory_utilization=utilization,
        **LIMITS,
    )
    entries = plan.entries(prompt, output)
    assert sum(entry.num_bytes for entry in entries) == plan.gpu.hbm_bytes
    weights = [e for e in entries if e.group == WEIGHTS]
    filling = sum(e.num_bytes for e in weights if "filled up" in e.what)
    assert sum(e.num_bytes for e in weights) == plan.rank.weight_bytes + filling
    assert filling == 0 or plan.rank.local.precision.experts in ("mxfp4", "nvfp4")
    if not plan.missing_bytes:
        assert all(entry.num_bytes >= 0 for entry in entries)
    for row in reserve(plan, prompt, output, 262_144):
        assert row.used + row.later + row.wasted == pytest.approx(1)
        # Set-aside memory holds the whole sequence, and no more sequences than bytes.
        assert row.sequence_bytes >= plan.rank.local.state_bytes(prompt + output)
        assert row.sequences * row.sequence_bytes <= plan.pool_bytes
        assert row.mean_sequences >= row.sequences
        assert row.wasted >= -1e-9


@pytest.mark.parametrize(("name", "ranks"), [("llama-3-8b", 1), ("qwen3-30b-a3b", 2)])
def test_it_is_what_the_engine_plans(name: str, ranks: int) -> None:
    model, gpu = load_model(name), load_gpu("h200")
    plan = DevicePlan(model, gpu, layout=Layout(tensor_parallel_size=ranks), **LIMITS)
    assert plan.pool_bytes // plan.blocks.block_bytes == plan.blocks.num_gpu_blocks
    sequences = reserve(plan, 3000, 500, 8192)[-1].sequences
    assert sequences == plan.blocks.num_gpu_blocks // -(-3500 // 16)


@pytest.mark.parametrize(
    ("name", "pool_gib", "slots_in_thousands"), [("opt-13b", 12, 15.7), ("opt-175b", 264, 60.1)]
)
def test_kv_slots_of_the_vllm_paper(name: str, pool_gib: int, slots_in_thousands: float) -> None:
    """PagedAttention, table 1: memory for KV over bytes a token."""
    slots = (pool_gib << 30) / load_model(name).kv_bytes_per_token
    assert round(slots / 1000, 1) == slots_in_thousands


def test_orca_max_batches_seven_requests() -> None:
    """PagedAttention, figure 13: 15.7K slots of OPT-13B, 2,048 a request: 7.00 at once."""
    model = load_model("opt-13b")
    plan = DevicePlan(model, load_gpu("a100-40g"), gpu_memory_utilization=1.0, **LIMITS)
    rows = {row.scheme: row for row in reserve(plan, 161, 338, 2048)}
    # The paper's 12 GiB pool in place of ours, whose device is smaller by what is not said.
    assert (12 << 30) // rows[MAX].sequence_bytes == 7
    counts = [rows[scheme].sequences for scheme in (MAX, POW2, ORACLE)]
    assert counts == sorted(counts)
    assert rows[PAGED].mean_sequences > rows[ORACLE].sequences
    assert rows[PAGED].used > 0.96


def test_windows_and_fixed_states_stop_growing() -> None:
    gpu = load_gpu("h200")
    for name, part in (("gemma-3-27b", "windows"), ("kimi-linear-48b-a3b", "fixed")):
        plan = DevicePlan(load_model(name), gpu, **LIMITS)
        sizes = []
        for prompt in (20_000, 40_000):
            per_sequence = plan.paged_bytes(prompt, 0)
            state = [e for e in plan.entries(prompt, 0) if e.group == STATE and part in e.what]
            sizes.append(state[0].num_bytes // (plan.pool_bytes // per_sequence))
        assert sizes[0] == sizes[1] > 0


QSERVE = {
    "a100": {
        "float16": "llama-2-70b qwen1.5-72b",
        "int4_g128": "",
        "int8": "",
        "w4a8_g128": "",
    },
    "l40s": {
        "float16": "llama-30b yi-34b llama-2-70b qwen1.5-72b",
        "int4_g128": "",
        "int8": "llama-2-70b qwen1.5-72b",
        "w4a8_g128": "",
    },
}
MODELS = (
    "llama-3-8b llama-2-7b mistral-7b-v0.2 llama-2-13b llama-30b yi-34b llama-2-70b qwen1.5-72b"
)


@pytest.mark.parametrize("gpu", QSERVE)
@pytest.mark.parametrize("weights", ["float16", "int4_g128", "int8", "w4a8_g128"])
def test_what_runs_out_of_memory_in_qserve_s_table(gpu: str, weights: str) -> None:
    """QServe, throughput table: one request of 1,024 + 512 tokens fits, or OOM is printed."""
    missing = []
    for name in MODELS.split():
        model = quantized(load_model(name), linear=weights, kv_cache="auto")
        plan = DevicePlan(
            model,
            load_gpu(gpu),
            gpu_memory_utilization=1.0,
            max_num_batched_tokens=1024,
            max_num_seqs=1,
        )
        if not plan.pool_bytes // plan.paged_bytes(1024, 512):
            missing.append(name)
    assert " ".join(missing) == QSERVE[gpu][weights]


def test_the_command_names_layouts_that_fit() -> None:
    facts = run("--model", "llama-3-70b", "--gpu", "h100")
    assert facts["missing_bytes"] > 0
    assert sum(entry["num_bytes"] for entry in facts["entries"]) == facts["device_bytes"]
    sizes = {row["weights"]: row["tensor_parallel_size"] for row in facts["layouts"]}
    assert sizes == {"bfloat16": 2, "fp8": 1, "int4_g128": 1}
    for weights, ranks in sizes.items():
        fits = run(
            "--model=llama-3-70b", "--gpu=h100", f"--tp={ranks}", f"--quantization={weights}"
        )
        assert fits["schemes"][-1]["sequences"] >= 1


def test_the_command_in_words() -> None:
    result = CliRunner().invoke(app, ["memory", "--model", "kimi-k3", "--gpu", "b300", "--tp", "8"])
    assert "sequences of 8,192 + 512 tokens fit" in result.output
    assert "fixed states of sequences" in result.output
    result = CliRunner().invoke(app, ["memory", "--model", "kimi-k3", "--gpu", "h100"])
    assert "It does not fit" in result.output
    assert "smallest TP" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "h100"], "no model"),
        (["--model", "llama-3-8b", "--context", "0"], "at least 1 token"),
        (["--model", "llama-3-8b", "--context", "9000"], "max_model_len 8,192"),
        (["--model", "llama-3-8b", "--quantization", "int5"], "unknown number format"),
        (["--model", "llama-3-8b", "--tp", "3"], "does not fit"),
    ],
)
def test_what_cannot_be_answered(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["memory", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_a_hybrid_says_the_blocks_that_its_states_ask_for() -> None:
    """Qwen3-Next keeps its states in the model's own 16 bits, as vLLM does by default."""
    command = ["memory", "--model", "qwen3-next-80b-a3b", "--gpu", "H200", "--tp", "2"]
    result = CliRunner().invoke(app, [*command, "--format", "json"])
    assert json.loads(result.output)["block_size"] == 544
