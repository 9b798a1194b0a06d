"""The memory plan: every byte counted once, and errors that show the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.hardware.gpus import gpu_names, load_gpu
from costmodels.layouts.layout import Layout
from costmodels.memory.device import DevicePlan
from costmodels.models.catalog import load_model, model_names
from sim.errors import ScenarioError
from sim.kv.layout import PLAIN


def plan(model: str, gpu: str = "h200", tp: int = 1, **options: Any) -> DevicePlan:
    limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    layout = Layout(tensor_parallel_size=tp)
    return DevicePlan(load_model(model), load_gpu(gpu), layout=layout, **(limits | options))


@pytest.mark.parametrize(
    ("model", "blocks", "tolerance"),
    [("llama-3.1-8b", 56_057, 0.02), ("qwen3-30b-a3b", 44_633, 0.04)],
)
def test_blocks_of_a_real_engine(model: str, blocks: int, tolerance: float) -> None:
    """vLLM 0.25.1 on one H200 with its default limits, block size 16, utilization 0.9."""
    planned = plan(model).blocks.num_gpu_blocks
    print(f"\n{model}: {planned} blocks planned, {blocks} allocated ({planned / blocks - 1:+.2%})")
    assert planned == pytest.approx(blocks, rel=tolerance)


@given(
    model=st.sampled_from(model_names()),
    gpu=st.sampled_from(gpu_names()),
    ranks=st.sampled_from([1, 2, 4, 8]),
    utilization=st.floats(0.3, 1.0),
    block_size=st.sampled_from([1, 16, 32, 128]),
    tokens=st.integers(512, 16_384),
)
def test_parts_add_up_to_the_device(
    model: str, gpu: str, ranks: int, utilization: float, block_size: int, tokens: int
) -> None:
    try:
        memory = plan(
            model,
            gpu,
            ranks,
            gpu_memory_utilization=utilization,
            block_size=block_size,
            max_num_batched_tokens=tokens,
            max_num_seqs=256,
        )
        blocks = memory.blocks
    except ScenarioError:
        return
    parts = (memory.weight_bytes, memory.workspace_bytes, blocks.num_bytes, blocks.free_bytes)
    assert all(isinstance(part, int) and part >= 0 for part in parts)
    assert sum(parts) == load_gpu(gpu).hbm_bytes
    assert blocks.num_bytes == blocks.num_gpu_blocks * blocks.block_bytes
    assert blocks.block_size % block_size == 0
    if blocks.layout == PLAIN:
        longest = blocks.layout.most_tokens(blocks.num_gpu_blocks, blocks.block_size)
        assert longest == blocks.num_gpu_blocks * blocks.block_size
    # One more block would not fit what the engine is granted.
    ungranted = memory.gpu.hbm_bytes - int(memory.gpu.hbm_bytes * utilization)
    assert blocks.free_bytes - ungranted < blocks.block_bytes


def test_given_number_of_blocks() -> None:
    blocks = plan("llama-3.1-8b", num_gpu_blocks=1000).blocks
    assert blocks.num_gpu_blocks == 1000
    assert blocks.num_bytes == 1000 * 16 * 131_072
    assert plan("llama-3.1-8b", num_gpu_blocks=60_000).blocks.free_bytes > 0
    with pytest.raises(ScenarioError, match=r"90000 KV blocks exceed 150\.11 GB"):
        _ = plan("llama-3.1-8b", num_gpu_blocks=90_000).blocks


def test_too_big_names_the_smallest_size_that_fits() -> None:
    with pytest.raises(ScenarioError) as caught:
        _ = plan("llama-3.1-405b").blocks
    message = str(caught.value)
    assert "811.71 GB weights" in message
    assert "exceed 135.10 GB" in message
    assert "smallest tensor_parallel_size that fits: 8" in message
    assert plan("llama-3.1-405b", tp=8).blocks.num_gpu_blocks > 1000
    with pytest.raises(ScenarioError, match="does not fit"):
        _ = plan("llama-3.1-405b", tp=4).blocks


def test_hopelessly_small_device() -> None:
    with pytest.raises(ScenarioError, match="tensor_parallel_size that fits: none"):
        _ = plan("opt-13b", "t4", gpu_memory_utilization=0.01).blocks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization"),
        ({"block_size": 0}, "block_size"),
        ({"num_gpu_blocks": 0}, "num_gpu_blocks must be at least 1"),
        ({"tp": 3}, "32 attention heads"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        _ = plan("llama-3.1-8b", **options).blocks


def test_given_blocks_are_the_pool() -> None:
    """A device with its number of blocks given is filled to the byte, as one with its own."""
    for number in (1_000, 20_000):
        given = plan("llama-3.1-8b", num_gpu_blocks=number)
        assert given.pool_bytes == number * given.block[1]
        entries = given.entries(1000, 100)
        assert sum(entry.num_bytes for entry in entries) == given.gpu.hbm_bytes
        assert all(entry.num_bytes >= 0 for entry in entries)
    # More than the device holds: the pool ends with the device, and `blocks` says why not.
    beyond = plan("llama-3.1-8b", num_gpu_blocks=10**9)
    room = beyond.gpu.hbm_bytes - beyond.weight_bytes - beyond.workspace_bytes
    assert beyond.pool_bytes == room
