"""Latent attention through the whole step model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.memory.device import DevicePlan
from costmodels.models.catalog import load_model
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.steps.prices import step_seconds
from sim import accounts
from sim.shape import SUMS, StepShape, causal_pairs


@pytest.fixture(params=["deepseek-v2-lite", "kimi-k2", "deepseek-v3"])
def cost(request: pytest.FixtureRequest) -> StepCost:
    model, gpu = load_model(request.param), load_gpu("b300")
    ranks = 1 if "lite" in request.param else 8
    limits: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
    layout = Layout(tensor_parallel_size=ranks)
    plan = DevicePlan(model, gpu, layout=layout, **limits)
    # The latent is whole on every rank.
    assert plan.blocks.block_bytes == 16 * model.kv_bytes_per_token
    return compile_step_cost(model, gpu, StepOptions(layout=layout, **limits))


STEPS = [
    StepShape(decode_seqs=64, decode_context_tokens=64 * 3000, logits=64),
    StepShape(prefill_seqs=1, prefill_tokens=2000, prefill_pairs=causal_pairs(0, 2000), logits=1),
    StepShape(8, 80_000, 1, 512, 60_000, causal_pairs(60_000, 512), 9),
]


def test_a_price_is_its_operators_and_its_accounts(cost: StepCost) -> None:
    columns = {name: np.array([float(getattr(step, name)) for step in STEPS]) for name in SUMS}
    at_once, split = step_seconds(cost.kernels, cost.graph_sizes, columns), cost.split(columns)
    total_s = np.sum(list(split.values()), axis=0)
    for index, step in enumerate(STEPS):
        price_ns = cost.price(step).gpu_ns
        rows = cost.describe(step)
        assert sum(row.seconds for row in rows) * 1e9 == pytest.approx(price_ns, abs=1)
        assert at_once.gpu_s[index] * 1e9 == pytest.approx(price_ns, abs=2)
        assert total_s[index] * 1e9 == pytest.approx(price_ns, abs=1)
    absent = {accounts.ADAPTERS, accounts.SPECULATION_DRAFT, accounts.SPECULATION_WASTE}
    assert set(cost.evidence()) == set(accounts.GPU_ACCOUNTS) - absent
    assert "fitted" not in cost.evidence().values()


def test_latents_are_read_and_prefixes_expanded(cost: StepCost) -> None:
    model, local = cost.shard.model, cost.shard.local
    ((mixer, layers),) = local.mixers
    decode, chunk = cost.describe(STEPS[0]), cost.describe(STEPS[2])
    read = next(row for row in decode if row.name == "decode_attention")
    extra = cost.efficiency.decode_seq_tokens * 64
    assert read.state_bytes == model.kv_bytes_per_token * (64 * 3000 + extra)
    work = mixer.attention(local.precision)
    found = next(row for row in chunk if row.name == "prefill_attention")
    expected = work.prefill[0].flops * STEPS[2].prefill_pairs + work.prefix_flops * 60_000
    assert found.flops == pytest.approx(layers * expected)
