"""Launches of a layer are counted by its kind, and priced on the host's path of a step."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodels.datafile import read_data
from costmodels.engines.launches import (
    contexts_gathered,
    decodes_beside,
    eager_launches,
    piecewise_launches,
)
from costmodels.engines.profile import load_profile
from costmodels.hardware.gpus import load_gpu
from costmodels.models.catalog import load_model
from costmodels.models.layers.kinds import FFNS, MIXERS
from costmodels.models.spec import quantized
from costmodels.steps.compile import StepOptions, compile_step_cost
from sim.shape import StepShape


def test_every_kind_of_layer_has_counts() -> None:
    rows = read_data("engines/launches.yaml")
    assert set(rows["mixers"]) == set(MIXERS)
    assert set(rows["ffns"]) == set(FFNS)


def measured() -> dict[tuple[str, int, str], float]:
    """Launches a step of a few layers, in PyTorch's profiler: vLLM 0.25.1 on one H200, random
    weights, prompts of 128 and 600 tokens, one with 2,048 of context, 8 and 600 decodes."""
    with Path(__file__).with_name("h200_launches.csv").open(encoding="utf-8") as file:
        return {
            (row["model"], int(row["layers"]), row["path"]): float(row["launches"])
            for row in csv.DictReader(file)
        }


def test_a_dense_layer_launches_what_the_profiler_saw() -> None:
    rows, dense = measured(), load_model("llama-3.1-8b")
    of_layer = [
        (rows["llama-3.1-8b", 8, path] - rows["llama-3.1-8b", 2, path]) / 6
        for path in ("prefill_P600", "prefill_P128")
    ]
    eager, piecewise = eager_launches(dense), piecewise_launches(dense)
    counted = [(one.compiled + one.called) / dense.num_layers for one in (eager, piecewise)]
    assert counted == of_layer == [11, 3]


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v2-lite"])
def test_layers_with_experts_launch_what_the_profiler_saw(name: str) -> None:
    """Beside the layers a step launches what a dense one does."""
    rows, model = measured(), load_model(name)
    beside = rows["llama-3.1-8b", 8, "prefill_P600"] - 8 * 11
    counts = eager_launches(model)
    kernels = (counts.compiled + counts.called) / model.num_layers
    assert kernels == pytest.approx((rows[name, 8, "prefill_P600"] - beside) / 8, abs=1.0)


def test_a_gathered_context_launches_what_the_profiler_saw() -> None:
    rows, model = measured(), load_model("deepseek-v2-lite")
    more = [
        (rows[one, 8, "extend_P600_C2048"] - rows[one, 8, "prefill_P600"]) / 8
        for one in ("deepseek-v2-lite", "deepseek-v2-lite dense")
    ]
    assert contexts_gathered(model).called / model.num_layers == more[0] == more[1]


def test_prompts_leave_graphs_only_with_attention() -> None:
    dense, hybrid = load_model("llama-3.1-8b"), load_model("kimi-linear-48b-a3b")
    assert piecewise_launches(dense)[:3] == (0, 96, 32)
    kda, mla = (sum(n for mixer, n in hybrid.mixers if mixer.kind == k) for k in ("kda", "mla"))
    assert piecewise_launches(hybrid).called == 22 * kda + 5 * mla


def test_quantized_activations_add_a_kernel_a_layer() -> None:
    model = load_model("llama-3.1-8b")
    more = eager_launches(quantized(model, linear="fp8", kv_cache="auto")).compiled
    assert more - eager_launches(model).compiled == model.num_layers


def test_latent_attention_launches_more_beside_decodes_and_for_contexts() -> None:
    model = load_model("deepseek-v2-lite")
    profile = load_profile()
    cost = compile_step_cost(
        model, load_gpu("h200"), StepOptions(max_num_batched_tokens=2048, max_num_seqs=16)
    )
    alone = StepShape(prefill_seqs=1, prefill_tokens=1000, prefill_pairs=500_500, logits=1)
    mixed = alone._replace(decode_seqs=8, decode_context_tokens=800, logits=9)
    extended = alone._replace(prefill_context_tokens=1000, prefill_pairs=1_500_500)
    for shape, more in ((mixed, decodes_beside(model)), (extended, contexts_gathered(model))):
        longer_ns = cost.price(shape).launch_ns - cost.price(alone).launch_ns
        assert longer_ns == pytest.approx(profile.launches_s(more) * 1e9, abs=2)
        assert more.called >= 4 * model.num_layers
