"""Launches of a layer are counted by its kind, and priced on the host's path of a step."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("name", "a_layer"),
    [("llama-3.1-8b", 11), ("qwen3-30b-a3b", 16), ("deepseek-v2-lite", 30)],
)
def test_counts_of_a_layer_are_those_in_the_profiler(name: str, a_layer: int) -> None:
    """8 layers of each launched 11, 17 and 30 kernels a layer beyond the graphs (a copy of the
    second is no kernel)."""
    model = load_model(name)
    counts = eager_launches(model)
    kernels = (counts.compiled + counts.called) / model.num_layers
    assert kernels == pytest.approx(a_layer, abs=0.5)


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
