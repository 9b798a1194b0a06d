"""Attention by kernel generation: published curves, written scores, and supported devices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.datafile import read_data
from costmodels.engines.attention_backends import BackendName, architecture, attention_backend
from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gpus import gpu_names, load_gpu
from costmodels.hardware.kernel_curves import attention_curve, attention_shares
from costmodels.models.catalog import load_model
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from scenarios.build.resolve import resolve
from scenarios.files.load import parse_scenario
from sim.errors import ScenarioError
from sim.shape import StepShape, chunk_shape, decode_shape, grown
from tests.properties.priced_steps import columns_of, longer, mixed_steps
from tests.published.models.kernels import unfused_attention_s

LAYERS = 32
LLAMA = load_model("llama-3.1-8b")


def compiled(name: BackendName, gpu: str, model: str = "llama-3.1-8b") -> StepCost:
    spec, device = load_model(model), load_gpu(gpu)
    efficiency = load_efficiency(device)
    return compile_step_cost(
        spec,
        device,
        StepOptions(
            max_num_batched_tokens=16_384,
            max_num_seqs=256,
            efficiency=efficiency,
            backend=attention_backend(name, device, spec, efficiency),
        ),
    )


COSTS = {
    f"{gpu} {name}": compiled(name, gpu)  # type: ignore[arg-type]
    for gpu, names in {
        "h100": ("auto", "unfused", "fa2", "fa3"),
        "a100": ("auto", "unfused", "fa1", "fa2"),
    }.items()
    for name in names
}


def attention_s(cost: StepCost, shape: StepShape) -> float:
    return next(row.seconds for row in cost.describe(shape) if row.name.endswith("_attention"))


def test_auto_is_todays_price() -> None:
    plain = compile_step_cost(
        LLAMA, load_gpu("h100"), StepOptions(max_num_batched_tokens=16_384, max_num_seqs=256)
    )
    for shape in (decode_shape(64, 900), chunk_shape(1000, 4000)):
        assert COSTS["h100 auto"].price(shape) == plain.price(shape)
        assert COSTS["h100 auto"].evidence() == plain.evidence()


@pytest.mark.parametrize("generation", ["fa2", "fa3"])
@pytest.mark.parametrize("tokens", [512, 1024, 2048, 4096, 8192, 16_384])
def test_a_prompt_runs_at_the_curves_share(generation: str, tokens: int) -> None:
    """Half the FLOPs of the full square, at the share that the curve has for so many tokens."""
    curve, gpu = attention_curve(generation), load_gpu("h100")
    share, _ = curve.share(tokens)
    flops = LAYERS * 4 * 32 * 128 * tokens**2 / 2
    cost = COSTS[f"h100 {generation}"]
    ours = attention_s(cost, chunk_shape(0, tokens))
    assert ours == pytest.approx(flops / (gpu.bf16_flop_per_s * share), rel=0.01)
    # Decodes are not what the curve was measured on: they stay as they were.
    step = decode_shape(64, 3000)
    assert cost.price(step) == COSTS["h100 auto"].price(step)


def test_older_generations_are_slower() -> None:
    long = chunk_shape(0, 8192)
    for gpu, order in (("h100", ("fa3", "fa2", "unfused")), ("a100", ("fa2", "fa1", "unfused"))):
        times = [attention_s(COSTS[f"{gpu} {name}"], long) for name in order]
        assert times == sorted(times)
        assert times[0] < times[-1] / 2
    low, high = attention_shares("fa1")
    peak = load_gpu("a100").bf16_flop_per_s
    flops = LAYERS * 4 * 32 * 128 * 8192**2 / 2
    assert flops / (peak * high) < attention_s(COSTS["a100 fa1"], long) < 1.1 * flops / (peak * low)


def test_scores_are_written_and_read() -> None:
    """The published function's bytes and FLOPs, at this GPU's shares."""
    gpu, efficiency, tokens = load_gpu("a100"), load_efficiency(load_gpu("a100")), 4096
    by_hand = LAYERS * unfused_attention_s(
        gpu,
        tokens=tokens,
        batch=1,
        heads=32,
        head_dim=128,
        memory_share=efficiency.attention_memory,
        compute_share=efficiency.gemm_compute,
    )
    cost, chunk = COSTS["a100 unfused"], chunk_shape(0, tokens)
    assert attention_s(cost, chunk) == pytest.approx(by_hand, rel=0.05)
    twice = attention_s(cost, chunk_shape(0, 2 * tokens))
    assert twice == pytest.approx(4 * by_hand, rel=0.05)
    row = next(row for row in cost.describe(chunk) if row.name == "prefill_attention")
    assert row.bound == "memory"
    assert row.activation_bytes == pytest.approx(LAYERS * 32 * 4 * 2 * tokens**2, rel=1e-3)
    fused, unfused = (COSTS[f"a100 {name}"].split(columns_of(chunk)) for name in ("fa2", "unfused"))
    assert unfused["prefill_memory"][0] > fused["prefill_memory"][0] + 0.9 * by_hand
    # A decode's row of scores is small, not nothing.
    step = decode_shape(64, 3000)
    more = COSTS["a100 unfused"].price(step).gpu_ns / COSTS["a100 auto"].price(step).gpu_ns
    assert 1.01 < more < 1.2


STEPS = mixed_steps(decodes=200, context=20_000, tokens=8000, start=50_000)


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=15, deadline=None)
@given(shape=STEPS, more=st.integers(1, 200))
def test_longer_with_more_tokens_and_the_accounts_are_the_step(
    name: str, shape: StepShape, more: int
) -> None:
    cost = COSTS[name]
    gpu_ns = cost.price(shape).gpu_ns
    assert cost.price(longer(shape, more)).gpu_ns >= 0.999 * gpu_ns
    split = {account: float(s[0]) for account, s in cost.split(columns_of(shape)).items()}
    assert sum(split.values()) * 1e9 == pytest.approx(gpu_ns, abs=20)
    if shape.decode_seqs and not shape.prefill_seqs:
        run = cost.price_decodes(shape, 8)
        found = [after - before for before, after in pairwise((0, *run.gpu_cumulative_ns))]
        assert found == [cost.price(grown(shape, i)).gpu_ns for i in range(8)]


def test_flashmla_is_of_latent_attention() -> None:
    step, chunk = decode_shape(64, 8000), chunk_shape(0, 4000)
    dense = {name: compiled(name, "h200", "deepseek-v2") for name in ("auto", "flashmla")}
    assert dense["flashmla"].price(step) != dense["auto"].price(step)
    assert dense["flashmla"].price(chunk) == dense["auto"].price(chunk)
    assert dense["flashmla"].evidence()["decode_state_reads"] == "reported"
    # Its experts' rates are reported; attention of prompts keeps its constants.
    assert dense["flashmla"].evidence() == dense["auto"].evidence() | {
        "decode_state_reads": "reported"
    }
    # 3,000 of H800's 3,350 GB/s.
    row = next(r for r in dense["flashmla"].describe(step) if r.name == "decode_attention")
    share = row.state_bytes / row.seconds / load_gpu("h200").hbm_bytes_per_s
    assert share <= 3000 / 3350
    sparse = compiled("flashmla", "b200", "deepseek-v3.2")
    assert sparse.evidence()["prefill_compute"] == "reported"
    text = " ".join(str(source["what"]) for source in sparse.sources())
    assert "flashmla decode attention_compute" in text


@pytest.mark.parametrize(
    ("name", "gpu", "model", "reason"),
    [
        (
            "fa3",
            "a100",
            "llama-3.1-8b",
            "runs on hopper; A100-SXM-80GB has auto, unfused, fa1, fa2",
        ),
        ("fa3", "b200", "llama-3.1-8b", "has no kernels, or no published figure, on B200"),
        ("fa2", "t4", "opt-6.7b", "T4 has auto, unfused, fa1"),
        ("fa1", "mi300x", "opt-6.7b", "MI300X has auto, unfused"),
        ("flashmla", "h100", "llama-3.1-8b", "is of latent attention"),
        ("flashmla", "b200", "deepseek-v3", "no figure is published for dense latent attention"),
        ("unfused", "h100", "gpt-oss-20b", "full grouped-query attention"),
        ("fa3", "h100", "kimi-linear-48b-a3b", "has kda, mla layers"),
    ],
)
def test_what_a_gpu_or_model_cannot_run_is_refused(
    name: BackendName, gpu: str, model: str, reason: str
) -> None:
    with pytest.raises(ScenarioError, match=reason):
        compiled(name, gpu, model)


def test_architectures_are_of_gpus_that_there_are() -> None:
    rows = read_data("hardware/kernel_curves.yaml")
    listed = [gpu for gpus in rows["architectures"].values() for gpu in gpus]
    assert set(listed) <= set(gpu_names())
    assert len(listed) == len(set(listed))
    named = {place for row in rows["attention_backends"].values() for place in row} - {"all"}
    assert named <= set(rows["architectures"])
    assert architecture(load_gpu("h20")) == "hopper"
    assert architecture(load_gpu("tpu-v5e")) is None


def test_a_scenario_takes_one_and_says_how_well_it_is_known() -> None:
    def built(gpu: str, **engine: Any) -> Any:
        values = {
            "model": "llama-3.1-8b",
            "hardware": {"gpu": gpu},
            "engine": engine,
            "workload": {"preset": "chat-short", "rate_per_s": 1, "num_requests": 1},
        }
        return resolve(parse_scenario(values))

    auto, fa2 = built("H100"), built("H100", attention_backend="fa2")
    assert auto.cost.evidence()["prefill_compute"] == "extrapolated"
    assert fa2.cost.evidence()["prefill_compute"] == "reported"
    known = {str(source["what"]): source for source in fa2.cost.sources()}
    found = known["h200-vllm-0.25 attention_compute"]
    assert found["label"] == "reported"
    assert "pytorch/benchmark" in found["source"]
    unfused = built("H100", attention_backend="unfused")
    scores = 32 * 8192**2 * 2
    assert unfused.memory.workspace_bytes >= scores
    assert unfused.memory.blocks.num_gpu_blocks < auto.memory.blocks.num_gpu_blocks
    with pytest.raises(ScenarioError, match="must be auto with"):
        _ = built("H200", attention_backend="fa3", operators="ours").cost
