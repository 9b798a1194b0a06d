"""The kernel of routed experts: the engine's choice, and its time by tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodels.engines.expert_kernels import ExpertKernel, expert_kernel, version_key
from costmodels.engines.profile import load_profile
from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.memory.device import DevicePlan
from costmodels.models.catalog import load_model
from costmodels.models.quantization import quantize
from costmodels.models.spec import quantized
from costmodels.operators.chosen_kernels import ChosenKernels
from costmodels.operators.operators import token_operators
from costmodels.steps.compile import StepOptions, compile_step_cost
from sim.shape import chunk_shape, decode_shape

OLD = load_profile("vllm-0.11")


def kernel(
    model: str,
    gpu: str,
    *,
    ranks: int = 1,
    profile: str = "vllm-0.25",
    weights: str | None = None,
    whole: bool = False,
) -> ExpertKernel:
    served = quantized(load_model(model), linear=weights)
    rank = shard(served, Layout(tensor_parallel_size=ranks, enable_expert_parallel=whole))
    found = expert_kernel(rank, load_gpu(gpu), load_profile(profile))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "gpu", "options", "name"),
    [
        # In vLLM's own logs of our recordings: m2 ran tuned, m5 and m7 on the default.
        ("qwen3-30b-a3b", "h200", {}, "triton_tuned"),
        ("deepseek-v2-lite", "h200", {}, "triton_default_128"),
        ("kimi-linear-48b-a3b", "h200", {}, "triton_default_128"),
        ("gpt-oss-20b", "h200", {}, "triton_mxfp4"),
        ("qwen3-235b-a22b", "a100", {"ranks": 8}, "triton_tuned"),
        ("glm-4.5-air", "a100", {"ranks": 4}, "triton_default_128"),
        ("glm-4.5-air", "a100", {"ranks": 4, "profile": "vllm-0.11"}, "triton_default_64"),
        ("gpt-oss-20b", "h100", {"profile": "vllm-0.11"}, "marlin_mxfp4"),
        ("gpt-oss-20b", "h100", {"profile": "vllm-0.13"}, "triton_mxfp4"),
        ("gpt-oss-20b", "a100", {}, "marlin_mxfp4"),
        ("gpt-oss-20b", "b200", {}, "flashinfer_trtllm_mxfp4"),
        ("deepseek-v3", "h200", {"ranks": 8}, "triton_block_tuned"),
        ("deepseek-v3", "h200", {"ranks": 8, "whole": True}, "flashinfer_cutlass"),
        ("qwen3-30b-a3b", "h200", {"weights": "int4_g128"}, "marlin"),
        ("qwen3-30b-a3b", "a100", {"weights": "w8a16"}, "marlin"),
    ],
)
def test_choice(model: str, gpu: str, options: dict[str, object], name: str) -> None:
    assert kernel(model, gpu, **options).name == name  # type: ignore[arg-type]


def test_no_rule_no_kernel() -> None:
    rank = shard(load_model("llama-3.1-8b"), Layout())
    assert expert_kernel(rank, load_gpu("h200"), OLD) is None
    rank = shard(load_model("qwen3-30b-a3b"), Layout())
    assert expert_kernel(rank, load_gpu("h200"), replace(OLD, kernel_rules="")) is None


def test_other_engines_go_by_the_rules_they_are_nearest_to() -> None:
    for profile in ("sglang-0.5", "trtllm-1.2"):
        found = kernel("qwen3-30b-a3b", "b200", profile=profile)
        assert found.name == "flashinfer_trtllm"
        assert load_profile(profile).engine != "vLLM"
        assert not load_profile(profile).piecewise_graphs


def test_each_expert_begins_anew() -> None:
    """A step of few tokens reads few experts: it takes less than one that begins them all."""
    found = kernel("qwen3-30b-a3b", "b200")
    assert found.rates is not None
    assert found.rates.expert_s > 0
    rank = shard(load_model("qwen3-30b-a3b"), Layout())
    (gate_up,) = (
        one for one in token_operators(rank, np.array([1.0, 512.0])) if one.name == "expert_gate_up"
    )
    b200 = load_gpu("b200")
    free = replace(found, rates=found.rates._replace(expert_s=0.0))
    more = found.parts(gate_up, b200, 1e15).weights_s - free.parts(gate_up, b200, 1e15).weights_s
    assert more[0] == pytest.approx(8 * found.rates.expert_s, rel=0.01)
    assert more[1] == pytest.approx(128 * found.rates.expert_s, rel=0.01)


def test_versions_compare_as_numbers() -> None:
    assert version_key("0.9.2") < version_key("0.11.0") < version_key("0.11.1")


def test_rows_of_an_expert_fill_whole_tiles() -> None:
    """From 32 to 64 rows an expert, the products of a tile of 64 rows cost nothing more."""
    gpu = load_gpu("a100")
    found = kernel("qwen3-30b-a3b", "a100", profile="vllm-0.11")
    tokens = np.array([512.0, 1024.0, 16384.0])  # 32, 64 and 1,024 rows an expert
    rank = shard(load_model("qwen3-30b-a3b"), Layout())
    gate_up = next(one for one in token_operators(rank, tokens) if one.name == "expert_gate_up")
    parts = found.parts(gate_up, gpu, gpu.bf16_flop_per_s)
    share = gate_up.flops / parts.compute_s / gpu.bf16_flop_per_s
    # 64, 96 and 1,056 rows are computed: half a tile more than there are on average.
    assert share == pytest.approx([0.337 / 2, 0.337 / 1.5, 0.337 / 1.031], rel=0.02)
    assert (np.diff(parts.work_s) > 0).all()


def test_unknown_rates_leave_the_constants() -> None:
    rank = shard(load_model("qwen3-30b-a3b"), Layout())
    operators = token_operators(rank, np.array([8.0]))
    gate_up = next(one for one in operators if one.name == "expert_gate_up")
    tuned = ChosenKernels(experts=kernel("qwen3-30b-a3b", "h200"))
    assert not tuned.prices(gate_up)
    assert tuned.name_of(gate_up) == "triton_tuned"
    assert tuned.sources() == []


def test_an_untuned_configuration_is_slower() -> None:
    chunk = chunk_shape(0, 2048)
    shares = {}
    for name in ("qwen3-235b-a22b", "glm-4.5-air"):
        found = kernel(name, "a100", ranks=8, profile="vllm-0.11")
        assert found.rates is not None
        shares[found.is_untuned] = found.rates.compute
    assert shares[True] < shares[False]
    limits: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
    layout = Layout(tensor_parallel_size=4)
    model, gpu = load_model("glm-4.5-air"), load_gpu("a100")
    times = [
        compile_step_cost(model, gpu, StepOptions(layout=layout, profile=profile, **limits))
        .price(chunk)
        .gpu_ns
        for profile in (load_profile("vllm-0.11"), load_profile("vllm-0.25"))
    ]
    assert times[0] > times[1]


def test_a_newer_gpu_is_never_slower() -> None:
    """Marlin's rates are of SMs: a card with more of them, or faster memory, is not slower."""
    limits: dict[str, Any] = {"max_num_batched_tokens": 4096, "max_num_seqs": 256}
    model = load_model("gpt-oss-20b")
    for shape in (chunk_shape(0, 2048, model.clips), decode_shape(64, 1000, model.clips)):
        times = [
            compile_step_cost(model, load_gpu(gpu), StepOptions(profile=OLD, **limits))
            .price(shape)
            .gpu_ns
            for gpu in ("a100", "h100", "h200")
        ]
        assert times == sorted(times, reverse=True)


def test_marlin_fills_matrices_up() -> None:
    """gpt-oss: 2,880 features are filled up to 3,072, an expert's width to 2,944."""
    found = kernel("gpt-oss-120b", "a100")
    assert found.filled == pytest.approx(3072 * 2944 / 2880**2)
    model, _ = quantize(load_model("gpt-oss-120b"), load_gpu("a100"), weights=None)
    limits: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
    plans = {
        name: DevicePlan(model, load_gpu(name), **limits).weight_bytes for name in ("a100", "h200")
    }
    experts = model.params().experts * 4.25 / 8
    assert (found.stored, kernel("gpt-oss-120b", "h200").stored) == (found.filled, 3072 / 2880)
    more = (found.filled - 3072 / 2880) * experts
    assert plans["a100"] - plans["h200"] == pytest.approx(more, rel=1e-6)


def test_4_bit_experts_take_what_start_up_logs_say() -> None:
    """gpt-oss-120b takes 64.38 GiB on an H100 in vLLM 0.11 to 0.14."""
    model, _ = quantize(load_model("gpt-oss-120b"), load_gpu("h100"), weights=None)
    plan = DevicePlan(model, load_gpu("h100"), max_num_batched_tokens=1024, max_num_seqs=256)
    assert plan.weight_bytes / 2**30 == pytest.approx(64.38, rel=0.005)
