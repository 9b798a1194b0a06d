"""Memory and steps of whole layouts: what each rank holds, and the cost of exchanges between
ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.memory.device import DevicePlan
from costmodels.memory.entries import communication_buffers, low_latency_bytes
from costmodels.models.catalog import load_model
from scenarios.commands import app
from scenarios.files.load import load_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError
from tests.properties.scenarios import small

LIMITS: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}
LAYOUTS = [
    ("llama-3.1-70b", Layout(tensor_parallel_size=2)),
    ("llama-3.1-70b", Layout(pipeline_parallel_size=2)),
    ("llama-3.1-70b", Layout(tensor_parallel_size=2, pipeline_parallel_size=3)),
    ("gpt-oss-120b", Layout(pipeline_parallel_size=4)),
    ("kimi-linear-48b-a3b", Layout(tensor_parallel_size=2, pipeline_parallel_size=2)),
    ("deepseek-v3", Layout(data_parallel_size=8, enable_expert_parallel=True)),
    (
        "deepseek-v3",
        Layout(
            tensor_parallel_size=2,
            data_parallel_size=8,
            enable_expert_parallel=True,
            all2all_backend="deepep_low_latency",
        ),
    ),
]


def run(command: str, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [command, *arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=lambda value: str(value)[:60])
def test_books_of_a_rank(name: str, layout: Layout) -> None:
    model, gpu = load_model(name), load_gpu("h200")
    plan = DevicePlan(model, gpu, layout=layout, **LIMITS)
    filled = sum(entry.num_bytes for entry in plan.weights if "filled up" in entry.what)
    assert plan.weight_bytes == plan.rank.weight_bytes + filled
    assert sum(entry.num_bytes for entry in plan.entries(3000, 500)) == gpu.hbm_bytes
    buffers = communication_buffers(plan.rank, LIMITS["max_num_batched_tokens"])
    assert plan.communication_bytes == sum(buffer.num_bytes for buffer in buffers) > 0
    blocks = plan.blocks
    # What blocks hold beyond their tokens: half a block a group, and the padding of groups.
    wasted = blocks.fragmentation_bytes(plan.rank, 3000)
    groups = 1 + sum(groups for _, groups in blocks.layout.windows) + blocks.layout.fixed_pages
    assert 0 < wasted < 2 * groups * blocks.block_bytes


def test_stages_hold_their_part_of_the_state() -> None:
    """Half of 80 layers, or half of the heads: a block of either is half as large."""
    model, gpu = load_model("llama-3.1-70b"), load_gpu("h200")
    whole, split, staged = (
        DevicePlan(model, gpu, layout=layout, num_gpu_blocks=100, **LIMITS).blocks
        for layout in (
            Layout(tensor_parallel_size=2),
            Layout(tensor_parallel_size=4),
            Layout(tensor_parallel_size=2, pipeline_parallel_size=2),
        )
    )
    assert whole.block_bytes == 2 * split.block_bytes == 2 * staged.block_bytes
    rank = shard(model, Layout(pipeline_parallel_size=3))  # 27 of 80 layers
    assert rank.state_bytes(1000) == 1000 * 27 * 4096


def test_a_deepep_buffer() -> None:
    """128 tokens a rank, 7,168 wide, 256 experts: two sets of 256 x 128 messages out and in."""
    message = 7168 * 2 + 7168 // 128 * 4
    assert low_latency_bytes(128, 7168, 256) == 2 * (2 * 256 * 128 * message + 1024)
    assert low_latency_bytes(256, 7168, 256) == pytest.approx(3.8e9, rel=0.01)


def test_who_has_which_buffers() -> None:
    def of(name: str, **layout: Any) -> list[str]:
        rank = shard(load_model(name), Layout(**layout))
        return [buffer.what for buffer in communication_buffers(rank, 8192)]

    assert of("llama-3.1-8b") == []
    assert of("llama-3.1-8b", tensor_parallel_size=4) == [
        "NCCL, a group (assumed)",
        "custom all-reduce",
    ]
    assert of("llama-3.1-8b", tensor_parallel_size=8, gpus_per_node=4) == [
        "NCCL, a group (assumed)"
    ]
    deepep: dict[str, Any] = {"data_parallel_size": 16, "enable_expert_parallel": True}
    assert of("deepseek-v3", **deepep) == ["NCCL, 2 groups (assumed)"]
    ours = of("deepseek-v3", **deepep, all2all_backend="deepep_low_latency")
    assert ours[1:] == ["DeepEP, fabric", "DeepEP, 256 tokens a rank"]
    ours = of("deepseek-v3", **deepep, all2all_backend="deepep_high_throughput", gpus_per_node=8)
    assert ours[1:] == ["DeepEP, fabric", "DeepEP, network"]


def test_memory_of_a_layout() -> None:
    facts = run("memory", "--model=deepseek-v3", "--gpu=h200", "--dp=8", "--enable-expert-parallel")
    assert (facts["gpus"], facts["layout"]) == (8, "TP 1, DP 8 with experts whole on ranks")
    assert sum(entry["num_bytes"] for entry in facts["entries"]) == facts["device_bytes"]
    assert facts["fragmentation_bytes_per_sequence"] == 70_272 * 7.5
    odd = run("memory", "--model=llama-3.1-8b", "--gpu=h200", "--context=1001", "--output=10")
    (wasted,) = (e for e in odd["entries"] if e["what"] == "fragmentation in blocks")
    assert wasted["num_bytes"] == odd["schemes"][-1]["sequences"] * 13 * 131_072
    stages = run("memory", "--model=llama-3.1-70b", "--gpu=h200", "--pp=2", "--context=1000")
    ranks = run("memory", "--model=llama-3.1-70b", "--gpu=h200", "--tp=2", "--context=1000")
    for size in ("sequence_bytes", "growing_state_bytes_per_token"):
        assert stages[size] == ranks[size]


def test_explain_of_a_layout() -> None:
    alone = run("explain", "--model=llama-3.1-70b", "--gpu=h200", "--tp=2", "--decode-seqs=32")
    staged = run(
        "explain", "--model=llama-3.1-70b", "--gpu=h200", "--tp=2", "--pp=2", "--decode-seqs=64"
    )
    # A micro-batch of half of the sequences passes all layers, as alone; two are on their way.
    assert staged["step"]["rank_decode_seqs"] == 32
    assert staged["totals"]["seconds"] == pytest.approx(alone["totals"]["seconds"], rel=1e-6)
    assert staged["replica_s"] == pytest.approx(staged["totals"]["seconds"], rel=0.05)
    assert sum(staged["accounts_s"].values()) == pytest.approx(staged["replica_s"], rel=0.02)
    experts = run(
        *("explain", "--model=deepseek-v3", "--gpu=h200", "--dp=16", "--decode-seqs=640"),
        *("--enable-expert-parallel", "--all2all-backend=deepep_low_latency"),
    )
    names = [row["name"] for row in experts["operators"]]
    assert {"dispatch", "combine", "expert_gate_up"} <= set(names)
    assert experts["totals"]["seconds"] == pytest.approx(experts["replica_s"], rel=0.01)
    assert sum(row["share"] for row in experts["operators"]) == pytest.approx(1)
    text = (
        CliRunner()
        .invoke(app, ["explain", "--model", "llama-3.1-70b", "--gpu", "h200", "--pp", "2"])
        .output
    )
    assert "A step of all 2 GPUs takes" in text
    refused = CliRunner().invoke(
        app, ["explain", "--model", "llama-3.1-8b", "--gpu", "h200", "--dp", "2"]
    )
    assert "data_parallel_size must be 1" in refused.output


def test_books_of_a_run() -> None:
    """Half a block of 16 tokens a running sequence, and the links of two ranks."""
    values = small(rate_per_s=20, num_requests=60)
    summary = simulate(Scenario(**values, engine={"tensor_parallel_size": 2})).summary
    device = dict(summary["device_bytes"])
    assert device.pop("total") == sum(device.values())
    assert device["communication_buffers"] > 100 << 20
    running = next(
        figure["value"]
        for figure in summary["figures"]
        if (figure["name"], figure["statistic"]) == ("running", "mean")
    )
    # 100 tokens and up to 15 more: 7 blocks of 16, then 8; 7.5 tokens are free in the mean.
    assert device["kv_cache_fragmentation"] == pytest.approx(running * 65_536 * 7.5, rel=1e-3)
    assert "communication_buffers" not in simulate(Scenario(**values)).summary["device_bytes"]


def test_it_still_does_not_fit(tmp_path: Any) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(small() | {"model": "llama-3.1-405b"}))
    with pytest.raises(ScenarioError, match="smallest tensor_parallel_size that fits"):
        simulate(load_scenario(path, []))
