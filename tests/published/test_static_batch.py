"""A static batch: bounded by bytes and FLOPs, monotone, for every kind of layer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gemm_paths import PATHS
from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model, model_names
from costmodels.models.kv_policies import snapkv
from costmodels.models.spec import ModelSpec, quantized
from tests.published.models.static_batch import StaticBatch

GPU = load_gpu("b300")


def batch_of(model: ModelSpec, path: str | None = None, gpu: str = "b300") -> StaticBatch:
    device = load_gpu(gpu)
    return StaticBatch(
        rank=shard(model, 1),
        gpu=device,
        efficiency=load_efficiency(device, generic_only=True),
        path=PATHS[path] if path else None,
    )


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(model_names()),
    batch=st.integers(1, 64),
    context=st.integers(1, 50_000),
    more=st.integers(1, 5_000),
)
def test_more_takes_no_less(name: str, batch: int, context: int, more: int) -> None:
    run = batch_of(load_model(name))
    step_s = run.decode_step_s(batch, context)
    assert run.decode_step_s(batch + more, context) >= step_s * (1 - 1e-9)
    assert run.decode_step_s(batch, context + more) >= step_s * (1 - 1e-9)
    prefill_s = run.prefill_s(batch, context)
    assert run.prefill_s(batch, context + more) >= prefill_s * (1 - 1e-9)
    # Nothing is faster than the datasheet: each sequence's growing state is read once a step.
    model = run.rank.model
    capped = run.rank.model.clip_tokens
    if not capped:
        read = batch * float(model.growing_state_bytes_per_token) * context
        assert step_s >= read / GPU.hbm_bytes_per_s


def test_a_batch_is_prefill_and_steps() -> None:
    run = batch_of(load_model("llama-3-8b"))
    prefill_s, decode_s = run.seconds(32, 1000, 201)
    assert prefill_s == run.prefill_s(32, 1000)
    # Steps grow evenly with the context, so the middle one is the mean.
    every = sum(run.decode_step_s(32, 1000 + token + 0.5) for token in range(201))
    assert decode_s == pytest.approx(every * 200 / 201, rel=1e-6)
    assert run.tokens_per_s(32, 1000, 201) == pytest.approx(32 * 201 / (prefill_s + decode_s))


def test_dropped_tokens_are_not_read() -> None:
    model = load_model("llama-3-8b")
    whole, kept = batch_of(model), batch_of(snapkv(model, 1024))
    assert kept.decode_step_s(64, 16_500, 16_000) < whole.decode_step_s(64, 16_500, 16_000)
    assert kept.prefill_s(8, 500) == pytest.approx(whole.prefill_s(8, 500), rel=0.2)


def test_cores_beside_the_tensor_cores_bind_grouped_heads_on_an_a100_alone() -> None:
    """QServe's decode attention unpacks a cache once a query head: 4 times with Llama-3-8B."""
    model = quantized(load_model("llama-3-8b"), linear="w4a8_channel", kv_cache="kv_int4")
    for gpu, is_bound in (("a100", True), ("l40s", False)):
        free, counted = (batch_of(model, path, gpu) for path in (None, "W4A8KV4"))
        ratio = counted.decode_step_s(128, 1280) / free.decode_step_s(128, 1280)
        assert (ratio > 1.3) == is_bound
