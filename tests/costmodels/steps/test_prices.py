"""The integer prices that engines ask for agree with the vectorized prices and their readings."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gpus import load_gpu
from costmodels.hardware.links import host_link
from costmodels.layouts.layout import Layout
from costmodels.memory.streaming import Offload
from costmodels.models.catalog import load_model, model_names
from costmodels.operators.sources import load_operators
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.steps.prices import step_seconds
from sim.shape import Clip, StepShape, chunk_shape, decode_shape, joined, shape_values
from tests.properties.priced_steps import columns_of

H200 = load_gpu("h200")
LIMITS: dict[str, Any] = {"max_num_batched_tokens": 1024, "max_num_seqs": 64}
EP = Layout(data_parallel_size=4, enable_expert_parallel=True, gpus_per_node=2)
OFFLOAD = Offload(
    link=host_link(H200),
    weights_disk=Fraction(1, 4),
    kv_host=Fraction(1, 2),
    host_bytes=4 << 40,
)
ONE_RANK: dict[str, dict[str, Any]] = {
    "tp8": {"layout": Layout(tensor_parallel_size=8, gpus_per_node=4)},
    "three tokens a sequence": {"tokens_per_seq": 3},
    "equal contexts": {"equal_contexts": True},
    "offload": {"offload": OFFLOAD},
    "prompts on 4 ranks": {
        "layout": Layout(prefill_context_parallel_size=4, prefill_context_parallel_mode="ring")
    },
}
RANKS = {
    "ep": EP,
    "halves": Layout(
        data_parallel_size=4,
        enable_expert_parallel=True,
        all2all_backend="deepep_high_throughput",
        enable_dbo=True,
        dbo_decode_token_threshold=8,
        dbo_prefill_token_threshold=64,
    ),
    "stages": Layout(pipeline_parallel_size=4, tensor_parallel_size=2),
}
ROUNDED_NS = 0.51
"""A price is rounded once."""


def random_steps(clips: tuple[Clip, ...], count: int) -> list[StepShape]:
    """Steps of up to 60 decodes with a few contexts, and up to three chunks of prompts."""
    draws = random.Random(f"{clips} {count}")
    found = []
    for _ in range(count):
        decodes = [
            decode_shape(draws.randint(1, 20), int(2 ** draws.uniform(0, 17)), clips)
            for _ in range(draws.randint(0, 3))
        ]
        chunks = [
            chunk_shape(draws.choice((0, 1, 900, 50_000)), draws.randint(1, 280), clips)
            for _ in range(draws.randint(0 if decodes else 1, 3))
        ]
        found.append(joined([*decodes, *chunks]))
    return found


def columns(shapes: list[StepShape], clips: tuple[Clip, ...]) -> dict[str, Any]:
    values = np.array([shape_values(shape) for shape in shapes], dtype=float)
    return dict(zip(columns_of(shapes[0], clips), values.T, strict=True))


def off_ns(cost: StepCost, shapes: list[StepShape]) -> np.ndarray:
    """Return how far the accounts of each step are from its price, in nanoseconds."""
    split = cost.split(columns(shapes, cost.shard.model.clips))
    prices = np.array([cost.price(shape).gpu_ns for shape in shapes])
    off: np.ndarray = np.sum(list(split.values()), axis=0) * 1e9 - prices
    return off


@pytest.mark.parametrize("name", model_names())
def test_every_model(name: str) -> None:
    """One rank: the accounts, the description and the price at the steps' own sizes are one."""
    cost = compile_step_cost(load_model(name), H200, StepOptions(**LIMITS))
    clips = cost.shard.model.clips
    shapes = random_steps(clips, 60)
    assert np.abs(off_ns(cost, shapes)).max() < ROUNDED_NS
    own = step_seconds(cost.kernels, cost.graph_sizes, columns(shapes, clips))
    prices = [cost.price(shape) for shape in shapes]
    assert own.gpu_s * 1e9 == pytest.approx([price.gpu_ns for price in prices], abs=ROUNDED_NS)
    assert own.compute_s * 1e9 == pytest.approx([p.compute_ns for p in prices], abs=2)
    for shape, price in zip(shapes[:10], prices, strict=False):
        described_ns = 1e9 * sum(row.seconds for row in cost.describe(shape))
        assert described_ns == pytest.approx(price.gpu_ns, abs=ROUNDED_NS)


@pytest.mark.parametrize("name", ONE_RANK)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3"])
def test_every_option_of_one_rank(model: str, name: str) -> None:
    options = StepOptions(**LIMITS, **ONE_RANK[name])
    cost = compile_step_cost(load_model(model), H200, options)
    shapes = random_steps(cost.shard.model.clips, 100)
    # Each term is rounded too.
    rounded_ns = 5 if cost.terms else ROUNDED_NS
    assert np.abs(off_ns(cost, shapes)).max() < rounded_ns
    for shape in shapes[:20]:
        rows = cost.describe(shape)
        assert 1e9 * sum(row.seconds for row in rows) == pytest.approx(
            cost.price(shape).gpu_ns, abs=rounded_ns
        )
        assert sum(row.share for row in rows) == pytest.approx(1)


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"])
def test_measured_tables(model: str) -> None:
    spec = load_model(model)
    operators = load_operators("ours", H200, spec, load_efficiency(H200))
    cost = compile_step_cost(spec, H200, StepOptions(**LIMITS, operators=operators))
    shapes = random_steps(spec.clips, 100)
    assert np.abs(off_ns(cost, shapes)).max() < ROUNDED_NS
    for shape in shapes[:20]:
        described_ns = 1e9 * sum(row.seconds for row in cost.describe(shape))
        assert described_ns == pytest.approx(cost.price(shape).gpu_ns, abs=ROUNDED_NS)


@pytest.mark.parametrize("name", RANKS)
@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"])
def test_every_way_to_share_a_batch(model: str, name: str) -> None:
    """The parts of sums that ranks take are rounded to whole tokens in the price alone."""
    cost = compile_step_cost(load_model(model), H200, StepOptions(**LIMITS, layout=RANKS[name]))
    shapes = random_steps(cost.shard.model.clips, 100)
    prices = np.array([cost.price(shape).gpu_ns for shape in shapes])
    assert (np.abs(off_ns(cost, shapes)) < 3000 + 3e-4 * prices).all()
