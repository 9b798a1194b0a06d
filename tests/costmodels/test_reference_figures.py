"""Published figures that follow from arithmetic alone, to the published digits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.shard import shard
from costmodels.memory.paging import attention_block_tokens, entry_tokens
from costmodels.models.catalog import load_model
from costmodels.models.layers.gqa import Gqa
from costmodels.models.spec import LayerGroup, ModelSpec, quantized
from tests.published.models.economics import (
    break_even_bytes_per_s,
    fleet_cost_usd,
    profit_margin,
    revenue_usd,
)
from tests.published.models.expert_parallel import all_to_all_s, communication_tpot_s
from tests.published.models.sequence_work import decode_token

GIB = 1 << 30
MILLION = 1 << 20
V32, PRO, FLASH = (
    load_model(f"deepseek-ai/DeepSeek-{name}") for name in ("V3.2", "V4-Pro", "V4-Flash")
)
K3, KIMI_LINEAR = load_model("kimi-k3"), load_model("kimi-linear-48b-a3b")

# Bytes a token in bf16: "Insights into DeepSeek-V3" (2505.09343), Mooncake 5.3.1.
KV_TABLE = {
    "deepseek-v3": 70_272,
    "qwen2.5-72b": 327_680,
    "llama-3.1-405b": 516_096,
    "llama-3-70b": 320 * 1024,
    "kimi-k2": 70_272,
    "kimi-k3": 27_648,
    "kimi-linear-48b-a3b": 8_064,
    "deepseek-v2": 576 * 60 * 2,
    "deepseek-v2-lite": 576 * 27 * 2,
    "gpt-oss-120b": 36_864,
    "minimax-m1": 40_960,
    "qwen3-next-80b-a3b": 24_576,
    "deepseek-v3.2": 70_272 + 15_616,
}


@pytest.mark.parametrize("name", KV_TABLE)
def test_state_bytes_a_token(name: str) -> None:
    assert load_model(name).growing_state_bytes_per_token == KV_TABLE[name]


def test_keys_and_values_of_128k_tokens() -> None:
    assert load_model("llama-3-70b").state_bytes(131_072) == pytest.approx(42.9e9, rel=0.002)
    # FlashMLA's figure for V3.2 in fp8: 62 layers, the one of its MTP module among them.
    fp8 = quantized(V32, kv_cache="fp8")
    (dsa, count), *_ = fp8.mixers
    latents = replace(
        V32, layers=(LayerGroup(count=count + 1, mixer=dsa),), precision=fp8.precision
    )
    index_keys = 132 * 62 * 131_072
    assert (latents.state_bytes(131_072) - index_keys) / GIB == pytest.approx(4.97, abs=0.01)
    in_bf16 = replace(latents, precision=V32.precision)
    assert (in_bf16.state_bytes(131_072) - 256 * 62 * 131_072) / GIB == pytest.approx(
        8.72, abs=0.01
    )


@pytest.mark.parametrize(
    ("name", "latent_k", "heads", "layers", "mha_k"),
    # Of the larger twin only its elements are published: 56 heads of 128 in 60 layers give them.
    [("deepseek-v2-lite", 15.6, 16, 27, 110.6), ("deepseek-v2", 34.6, 56, 60, 860.2)],
)
def test_elements_a_token_of_mla_and_mha(
    name: str, latent_k: float, heads: int, layers: int, mha_k: float
) -> None:
    """DeepSeek-V2's paper, thousands of elements a token with MLA and with MHA."""
    latent = float(load_model(name).growing_state_bytes_per_token) / 2
    assert round(latent / 1000, 1) == latent_k
    mha = Gqa(heads=heads, kv_heads=heads, head_dim=128).state(V32.precision).growing
    assert round(float(layers * mha / 2) / 1000, 1) == mha_k


def test_deepseek_v4_state_of_a_million_tokens() -> None:
    """vLLM blog of 2026-04-24: 83.9 GiB for V3.2's shape, 9.62 for V4-Pro; 6.72 for Flash."""
    assert V32.growing_state_bytes_per_token * MILLION / GIB == pytest.approx(83.9, abs=0.05)
    assert PRO.growing_state_bytes_per_token * MILLION / GIB == pytest.approx(9.62, abs=0.005)
    assert FLASH.growing_state_bytes_per_token * MILLION / GIB == pytest.approx(6.72, abs=0.005)


@pytest.mark.parametrize(
    ("model", "gib", "percent"), [(PRO, 4.92, 10.5), (FLASH, 3.43, 7.3)], ids=["pro", "flash"]
)
def test_deepseek_v4_state_as_served(model: ModelSpec, gib: float, percent: float) -> None:
    """8-bit entries of 584 bytes, 4-bit index entries of 68, against V3.2's 656 + 132."""
    served, against = quantized(model, kv_cache="fp8"), quantized(V32, kv_cache="fp8")
    windows = sum(
        window.tokens * window.bytes_per_token * count
        for state, count in served.states
        for window in state.windows
    )
    state = served.growing_state_bytes_per_token * MILLION + windows
    assert float(state) / GIB == pytest.approx(gib, abs=0.006)
    assert 100 * float(state) / against.state_bytes(MILLION) == pytest.approx(percent, abs=0.5)
    # What half-filled compressors hold beside it hardly shows.
    assert 100 * served.state_bytes(MILLION) / against.state_bytes(MILLION) == pytest.approx(
        percent, abs=0.5
    )


def fp8_equivalent_flops(model: ModelSpec) -> float:
    """bf16 attention counts twice, a 4-bit indexer half, parameters and 8-bit indexers once."""
    weight = {"bf16_flop_per_s": 2.0, "fp8_flop_per_s": 1.0, "fp4_flop_per_s": 0.5}
    work = decode_token(model, MILLION)
    attention = sum(weight[peak] * flops for peak, flops in work.attention_flops.items())
    return work.parameter_flops + attention


@pytest.mark.parametrize(
    ("model", "flops", "percent"),
    [(V32, 1192e9, 100.0), (PRO, 316e9, 26.5), (FLASH, 118e9, 9.9)],
    ids=["v3.2", "v4-pro", "v4-flash"],
)
def test_deepseek_v4_flops_of_a_token(model: ModelSpec, flops: float, percent: float) -> None:
    found = fp8_equivalent_flops(model)
    assert found == pytest.approx(flops, rel=0.01)
    assert 100 * found / fp8_equivalent_flops(V32) == pytest.approx(percent, abs=1.0)


def with_wide_convolutions(model: ModelSpec) -> ModelSpec:
    """Return the model with the convolutions' inputs in 32 bits, as the published figures count
    them; vLLM keeps them in 16."""
    return replace(model, precision=replace(model.precision, conv="float32"))


def test_kimi_k3_state() -> None:
    assert K3.growing_state_bytes_per_token * MILLION / GIB == 27.0
    published = with_wide_convolutions(K3).fixed_state_bytes_per_sequence
    assert published / MILLION == pytest.approx(443.11, abs=0.005)
    naive = 93 * 576 * 2 * MILLION / GIB
    assert round(naive, 1) == 104.6
    assert round(naive / 27.0, 2) == 3.88
    published = with_wide_convolutions(KIMI_LINEAR).fixed_state_bytes_per_sequence
    assert published / MILLION == pytest.approx(42.8, abs=0.05)


def test_kimi_k3_block_and_weights() -> None:
    rank = shard(quantized(K3, kv_cache="fp8"), 8)
    assert attention_block_tokens(rank, 128) == 1536
    in_gb = {
        name: size / 1e9 for name, size in K3.precision.weight_bytes_by_format(K3.params()).items()
    }
    assert in_gb["mxfp4"] == pytest.approx(1450, rel=0.01)
    assert in_gb["bfloat16"] == pytest.approx(120, rel=0.1)
    assert K3.weight_bytes == pytest.approx(1.57e12, rel=0.01)


def test_deepseek_v4_blocks_hold_whole_entries() -> None:
    assert entry_tokens(shard(PRO, 1)) == 128
    assert attention_block_tokens(shard(load_model("llama-3.1-8b"), 1)) == 16


def test_kimi_linear_against_its_mla_twin() -> None:
    """Tech report, figures 1b and 7: one constant fitted at 1M tokens gives 1.8x at 512K."""
    (mla, _) = next(pair for pair in KIMI_LINEAR.mixers if pair[0].kind == "mla")
    twin = replace(
        KIMI_LINEAR, layers=tuple(replace(group, mixer=mla) for group in KIMI_LINEAR.layers)
    )
    reads = {
        (name, context): decode_token(model, context).state_bytes
        for name, model in (("kda", KIMI_LINEAR), ("mla", twin))
        for context in (MILLION // 2, MILLION)
    }
    assert reads["mla", MILLION] == pytest.approx(32.6e9, rel=0.01)
    assert reads["kda", MILLION] == pytest.approx(8.5e9, rel=0.02)
    at_million = reads["mla", MILLION], reads["kda", MILLION]
    constant = (at_million[0] - 2.2 * at_million[1]) / 1.2
    half = MILLION // 2
    ratio = (constant + reads["mla", half]) / (constant + reads["kda", half])
    assert ratio == pytest.approx(1.76, abs=0.02)


@pytest.mark.parametrize(
    ("name", "gib", "slots", "tolerance"),
    [
        ("opt-13b", 12, 15_700, 0.002),
        # 9.7K in the paper, whose 21 GB is rounded: 21.3 would give it.
        ("opt-66b", 21, 9_700, 0.016),
        ("opt-175b", 264, 60_100, 0.002),
    ],
)
def test_kv_slots_of_the_vllm_paper(name: str, gib: int, slots: int, tolerance: float) -> None:
    found = gib * GIB // load_model(name).kv_bytes_per_token
    assert found == pytest.approx(slots, rel=tolerance)


def test_orca_max_batches_seven() -> None:
    """Reservations of 2048 slots: 7.00 requests at once in figure 13."""
    slots = 12 * GIB // load_model("opt-13b").kv_bytes_per_token
    assert slots // 2048 == 7


@pytest.mark.parametrize(("gpu", "gb_per_s"), [("a800", 5.9), ("h800", 18.6)])
def test_when_loading_a_prefix_beats_computing_it(gpu: str, gb_per_s: float) -> None:
    """Mooncake: Llama-3-70B, a prefix of 8192 tokens, 8 GPUs; a p d + b d^2 FLOPs a layer."""
    width, prefix, a, b = 8192, 8192, 4, 22
    flops = a * prefix * width + b * width**2
    state = float(load_model("llama-3-70b").growing_state_bytes_per_token) / 80
    found = break_even_bytes_per_s(state, flops, 8 * load_gpu(gpu).bf16_flop_per_s)
    assert round(found / 1e9, 1) == gb_per_s


def test_economics_of_the_deepseek_day() -> None:
    """27-28 February 2025: 226.75 nodes of 8 H800 at $2, R1 prices."""
    cost = fleet_cost_usd(226.75 * 8, 24, 2.0)
    assert cost == 87_072
    tokens = {"cached": 342e9, "input": (608 - 342) * 1e9, "output": 168e9}
    revenue = revenue_usd(tokens, {"cached": 0.14, "input": 0.55, "output": 2.19})
    assert revenue == pytest.approx(562_100)
    assert revenue == pytest.approx(562_027, rel=2e-4)
    assert round(100 * profit_margin(562_027, cost)) == 545
    # The two rates are of the nodes that were on: they add up to the mean.
    nodes = 608e9 / 86_400 / 73_700 + 168e9 / 86_400 / 14_800
    assert nodes == pytest.approx(226.75, rel=1e-3)


@pytest.mark.parametrize(
    ("gb_per_s", "milliseconds", "tokens_per_s"), [(50, 14.76, 67), (900, 0.82, 1220)]
)
def test_expert_parallel_bound(gb_per_s: int, milliseconds: float, tokens_per_s: int) -> None:
    """ "Insights into DeepSeek-V3": 32 tokens to 9 experts, 7,000 features, 61 layers."""
    layer_s = all_to_all_s(tokens=32, copies=9, hidden_size=7000, bytes_per_s=gb_per_s * 1e9)
    if gb_per_s == 50:
        assert round(layer_s * 1e6, 2) == 120.96
    tpot_s = communication_tpot_s(61, layer_s)
    assert round(tpot_s * 1e3, 2) == milliseconds
    assert 1 / tpot_s == pytest.approx(tokens_per_s, rel=0.015)
