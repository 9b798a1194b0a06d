"""The kernel of attention that the engine chooses, and what it computes beyond the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodels.engines.attention_kernels import AttentionKernel, attention_kernels
from costmodels.engines.profile import load_profile
from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.models.layers.dsa import Dsa
from costmodels.models.spec import quantized
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from sim.shape import StepShape, chunk_shape, decode_shape, joined

PROFILE = load_profile()


def kernels(model: str, gpu: str, kv: str = "auto", **layout: Any) -> list[AttentionKernel]:
    rank = shard(quantized(load_model(model), kv_cache=kv), Layout(**layout))
    return list(attention_kernels(rank, load_gpu(gpu), PROFILE).values())


@pytest.mark.parametrize(
    ("model", "gpu", "name"),
    [
        ("llama-3.1-8b", "h100", "flash_attn_3"),
        ("llama-3.1-8b", "a100", "flash_attn_2"),
        ("llama-3.1-8b", "b200", "flashinfer"),
        ("gpt-oss-20b", "a100", "triton_attn"),  # sinks
        ("gpt-oss-20b", "h100", "flash_attn_3"),
        ("deepseek-v2-lite", "h200", "flash_attn_mla"),
        ("deepseek-v2-lite", "a100", "triton_mla"),
        ("deepseek-v3.2", "h200", "flashmla_sparse"),
    ],
)
def test_choice(model: str, gpu: str, name: str) -> None:
    assert {kernel.name for kernel in kernels(model, gpu)} == {name}


def cost(gpu: str, model: str = "llama-3.1-8b", **options: Any) -> StepCost:
    limits: dict[str, Any] = {"max_num_batched_tokens": 4096, "max_num_seqs": 256}
    return compile_step_cost(load_model(model), load_gpu(gpu), StepOptions(**limits, **options))


def beside(found: StepCost, clips: Any = ()) -> tuple[int, int]:
    """Nanoseconds that 64 decodes of 4,000 tokens cost alone, and beside a prompt."""
    decodes, chunk = decode_shape(64, 4000, clips), chunk_shape(0, 2048, clips)
    mixed = found.price(joined([decodes, chunk])).gpu_ns - found.price(chunk).gpu_ns
    empty = decode_shape(64, 1, clips)
    short = found.price(joined([empty, chunk])).gpu_ns - found.price(chunk).gpu_ns
    return found.price(decodes).gpu_ns - found.price(empty).gpu_ns, mixed - short


def test_decodes_beside_prompts_fill_tiles_of_their_own_before_hopper() -> None:
    """FlashAttention 2 shares a tile among grouped heads only where nobody has two queries."""
    alone, mixed = beside(cost("a100"))
    gpu, model = load_gpu("a100"), load_model("llama-3.1-8b")
    tile_flops = 64 * 4 * 32 * 128 * model.num_layers * 64 * 4000
    assert mixed - alone == pytest.approx(tile_flops / (0.5 * gpu.bf16_flop_per_s) * 1e9, rel=0.01)
    alone, mixed = beside(cost("h200"))
    assert mixed == pytest.approx(alone, rel=0.01)


def test_the_books_hold_the_tiles_of_decodes() -> None:
    found = cost("a100")
    shape = joined([decode_shape(9, 3000), chunk_shape(100, 700)])
    split_s = sum(found.split_step(shape).values())
    assert split_s * 1e9 == pytest.approx(found.price(shape).gpu_ns, abs=1)
    rows = found.describe(shape)
    assert sum(row.seconds for row in rows) == pytest.approx(split_s)
    assert {row.kernel for row in rows if row.name.endswith("_attention")} == {"flash_attn_2"}


def test_windows_fill_tiles_too() -> None:
    found, clips = cost("a100", "gemma-3-4b"), load_model("gemma-3-4b").clips
    alone, mixed = beside(found, clips)
    assert mixed > alone


def sparse(profile: str, kv: str, ranks: int, gpu: str = "h200") -> tuple[Dsa, AttentionKernel]:
    rank = shard(
        quantized(load_model("deepseek-v3.2"), kv_cache=kv), Layout(tensor_parallel_size=ranks)
    )
    (kernel,) = attention_kernels(rank, load_gpu(gpu), load_profile(profile)).values()
    assert isinstance(kernel.served, Dsa)
    return kernel.served, kernel


def test_sparse_attention_computes_filled_up_heads() -> None:
    served, kernel = sparse("vllm-0.13", "fp8_ds_mla", 8)
    assert (served.mla.heads, served.query_heads) == (16, 64)
    # With an 8-bit cache and few heads, prompts run on the decode kernel, and on all of topk.
    assert served.computes_all
    assert kernel.prefill_flop_per_s == kernel.decode_flop_per_s == pytest.approx(410e12)
    served, kernel = sparse("vllm-0.13", "fp8_ds_mla", 2)
    assert (served.query_heads, served.computes_all) == (64, False)
    assert kernel.prefill_flop_per_s == pytest.approx(640e12)
    assert not sparse("vllm-0.25", "auto", 8)[0].dense_prompts


def test_a_short_prompt_of_sparse_attention_is_not_cheaper_a_token() -> None:
    """Where the kernel computes all of topk, tokens at the start of a context cost the same."""
    options: dict[str, Any] = {
        "layout": Layout(tensor_parallel_size=8),
        "profile": load_profile("vllm-0.13"),
    }
    model = quantized(load_model("deepseek-v3.2"), kv_cache="fp8_ds_mla")
    limits: dict[str, Any] = {"max_num_batched_tokens": 4096, "max_num_seqs": 64}
    found = compile_step_cost(model, load_gpu("h200"), StepOptions(**limits, **options))

    def attention_s(shape: StepShape) -> float:
        return next(r.seconds for r in found.describe(shape) if r.name == "prefill_attention")

    first, later = (attention_s(chunk_shape(start, 512, model.clips)) for start in (0, 2048))
    assert first > 0.85 * later


def test_another_engine_has_no_rules() -> None:
    rank = shard(load_model("llama-3.1-8b"), Layout())
    assert attention_kernels(rank, load_gpu("a100"), replace(PROFILE, engine="another")) == {}
