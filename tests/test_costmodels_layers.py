"""Each kind of layer against its formulas, and properties that hold for every model."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.context_rates import chunk_rates, decode_rates
from costmodels.efficiency import load_efficiency
from costmodels.gpu_spec import load_gpu
from costmodels.layers.compressed import CompressedMqa
from costmodels.layers.dsa import Dsa
from costmodels.layers.evicting import Evicting, pyramid_budgets
from costmodels.layers.gdn import Gdn
from costmodels.layers.gqa import Gqa
from costmodels.layers.kda import Kda
from costmodels.layers.kinds import FFNS, MIXERS
from costmodels.layers.lightning import Lightning
from costmodels.layers.mamba2 import Mamba2
from costmodels.layers.mla import Mla
from costmodels.layers.parts import Frame, Mixer
from costmodels.layers.shared_kv import SharedKv
from costmodels.layers.sliding import SlidingWindow
from costmodels.model_spec import LayerGroup, ModelSpec, quantised
from costmodels.models import load_model, model_names
from costmodels.operators import (
    DecodeSums,
    PrefillSums,
    decode_operators,
    prefill_operators,
    token_operators,
)
from costmodels.parallel import shard, valid_sizes
from costmodels.precision import format_names, load_format, precision_of
from costmodels.roofline import operator_seconds
from costmodels.sequence_work import causal_pairs_clipped, decode_token, prefill_attention_flops
from costmodels.work import Operator
from sim.errors import ScenarioError

BF16 = precision_of("bfloat16")
FP8_CACHE = replace(BF16, kv="fp8")
GQA = Gqa(heads=32, kv_heads=8, head_dim=128)
MLA = Mla(heads=128, kv_lora=512, nope=128, rope=64, v_dim=128, q_lora=1536)
DSA = Dsa(mla=MLA, topk=2048, index_heads=64, index_dim=128)
V4 = CompressedMqa(
    heads=64, head_dim=512, rope=64, q_lora=1024, o_lora=1024, o_groups=8, window=128
)
CSA = replace(V4, stride=4, overlap=True, index_heads=64, index_dim=128, topk=512)
HCA = replace(V4, stride=128)
LINEAR: list[Mixer] = [
    Kda(heads=96, head_dim=128),
    Gdn(k_heads=16, v_heads=32, k_dim=128, v_dim=128),
    Lightning(heads=64, head_dim=128),
    Mamba2(heads=128, head_dim=64, state_size=128, groups=8),
]
NAMES = model_names()


def model_of(*mixers: Mixer, **options: object) -> ModelSpec:
    """One layer of each of ``mixers``, without FFNs."""
    return ModelSpec(
        name="m",
        model_type="layers",
        layers=tuple(LayerGroup(count=1, mixer=mixer) for mixer in mixers),
        hidden_size=4096,
        vocab_size=1000,
        max_position_embeddings=1 << 20,
        precision=BF16,
        **options,  # type: ignore[arg-type]
    )


def read_bytes(mixer: Mixer, context: int, kv: str = "bfloat16") -> float:
    model = model_of(mixer)
    return decode_token(replace(model, precision=replace(BF16, kv=kv)), context).state_bytes


def flops(mixer: Mixer, context: int) -> float:
    return sum(decode_token(model_of(mixer), context).attention_flops.values())


def test_every_kind_is_listed_by_its_name() -> None:
    for names in (MIXERS, FFNS):
        assert [vars(kind)["kind"] for kind in names.values()] == list(names)


def test_grouped_query_attention() -> None:
    assert GQA.state(BF16).growing == 2 * 8 * 128 * 2
    assert read_bytes(GQA, 1000) == 1000 * 2 * 8 * 128 * 2
    assert flops(GQA, 1000) == 4 * 32 * 128 * 1000


def test_latent_attention() -> None:
    assert MLA.state(BF16).growing == 576 * 2
    assert MLA.state(FP8_CACHE).growing == 576
    assert MLA.state(replace(BF16, kv="fp8_ds_mla")).growing == 656
    assert read_bytes(MLA, 1000) == 1000 * 576 * 2
    # Absorbed decodes, expanded prompts.
    assert flops(MLA, 1000) == 2 * 128 * 1000 * 576 + 2 * 128 * 1000 * 512
    pairs = 1000 * 5000 + 1000 * 1001 // 2
    expand = 2 * 128 * 512 * (128 + 128) * 5000
    found = prefill_attention_flops(model_of(MLA), 1000, start=5000)
    assert found == 2 * 128 * (192 + 128) * pairs + expand


@pytest.mark.parametrize("context", [1, 2048, 2049, 100_000])
def test_sparse_attention(context: int) -> None:
    assert DSA.state(BF16).growing == 576 * 2 + 128 * 2
    assert DSA.state(FP8_CACHE).growing == 656 + 128 + 4
    chosen = min(context, 2048)
    assert read_bytes(DSA, context, "fp8") == context * 132 + chosen * 656
    work = decode_token(model_of(DSA), context).attention_flops
    assert work["fp8_flop_per_s"] == 2 * 64 * 128 * context
    assert work["bf16_flop_per_s"] == 2 * 128 * chosen * (576 + 512)
    # Where another layer's indexer chooses, neither its keys nor its scores are here.
    shared = replace(DSA, index_heads=0)
    assert shared.state(FP8_CACHE).growing == 656
    assert read_bytes(shared, context, "fp8") == chosen * 656
    assert DSA.params(4096).total - shared.params(4096).total == 1536 * 64 * 128 + 4096 * 192 + 256


@pytest.mark.parametrize("context", [4, 128, 2048, 4096, 1 << 20])
def test_compressed_attention(context: int) -> None:
    assert CSA.state(BF16).growing == Fraction(512 * 2 + 128 * 2, 4)
    assert CSA.state(FP8_CACHE).growing == Fraction(584 + 68, 4)
    assert HCA.state(BF16).growing == Fraction(512 * 2, 128)
    assert HCA.state(BF16).entry_tokens == 128
    window, entries = min(context, 128), min(context / 4, 512)
    assert flops(V4, context) == 4 * 64 * 512 * window
    assert flops(CSA, context) == 4 * 64 * 512 * (window + entries) + 2 * 64 * 128 * context / 4
    assert flops(HCA, context) == 4 * 64 * 512 * (window + context / 128)
    assert read_bytes(CSA, context, "fp8") == 584 * (window + entries) + 68 * context / 4
    assert read_bytes(HCA, context, "fp8") == 584 * (window + context / 128)


@pytest.mark.parametrize("mixer", LINEAR, ids=lambda mixer: str(mixer.kind))
def test_linear_attention(mixer: Mixer) -> None:
    state = mixer.state(BF16)
    assert state.growing == 0
    assert state.at(1) == state.at(1 << 20) == state.fixed > 0
    # Read and written once, whatever the context.
    assert read_bytes(mixer, 1) == read_bytes(mixer, 1 << 20) == 2 * state.fixed
    assert flops(mixer, 1) == flops(mixer, 1 << 20) > 0
    one = prefill_attention_flops(model_of(mixer), 1000)
    assert prefill_attention_flops(model_of(mixer), 4000, start=7777) == 4 * one


def test_recurrent_states() -> None:
    sizes = [mixer.state(BF16).fixed for mixer in LINEAR]
    assert sizes == [
        4 * (96 * 128 * 128 + 3 * 3 * 96 * 128),
        4 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)),
        4 * 64 * 128 * 128,
        4 * (128 * 64 * 128 + 3 * (128 * 64 + 2 * 8 * 128)),
    ]


def test_windows_and_budgets() -> None:
    sliding = SlidingWindow(gqa=GQA, window=1024)
    streaming = SlidingWindow(gqa=GQA, window=1020, sink_tokens=4)
    h2o = Evicting(gqa=GQA, budget_tokens=1024)
    for kind in (sliding, streaming, h2o):
        assert kind.state(BF16).at(500) == 500 * 4096
        assert kind.state(BF16).at(50_000) == 1024 * 4096 == read_bytes(kind, 50_000)
    # A window clips prompts too; eviction comes after them.
    whole = prefill_attention_flops(model_of(GQA), 5000)
    assert prefill_attention_flops(model_of(h2o), 5000) == whole
    clipped = 1024 * 1025 // 2 + (5000 - 1024) * 1024
    assert prefill_attention_flops(model_of(sliding), 5000) == 4 * 32 * 128 * clipped
    snap = Evicting(gqa=GQA, budget_tokens=1024, keeps_generated=True)
    assert snap.state(BF16).at(16_384 + 300, generated=300) == (1024 + 300) * 4096
    assert decode_token(model_of(snap), 16_684, 300).state_bytes == 1324 * 4096
    budgets = pyramid_budgets(1000, 32)
    assert sum(budgets) == pytest.approx(32_000, abs=32)
    assert list(budgets) == sorted(budgets, reverse=True)
    assert model_of(sliding, GQA, streaming).clip_tokens == (1024,)


def test_shared_keys_and_values() -> None:
    """CLA with pairs of layers: half the state, all of the reads."""
    pair = model_of(GQA, SharedKv(gqa=GQA))
    assert pair.growing_state_bytes_per_token == 4096
    assert decode_token(pair, 1000).state_bytes == 2 * 1000 * 4096
    assert SharedKv(gqa=GQA).params(4096).attention == 2 * 4096 * 4096


def test_sinks_and_gates_are_parameters() -> None:
    assert replace(GQA, sinks=True).params(4096).total - GQA.params(4096).total == 32
    assert replace(GQA, gated=True).params(4096).total - GQA.params(4096).total == 4096 * 4096


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("int4_g128", 4.16),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),
        ("mxfp8", 8.25),
        ("fp8_block", 8.002),
        ("kivi2", 3.0),
        ("bfloat16", 16.0),
    ],
)
def test_bits_of_formats(name: str, bits: float) -> None:
    assert float(load_format(name).bits_per_element) == pytest.approx(bits, abs=0.005)


def test_a_cache_may_keep_its_newest_tokens_in_16_bits() -> None:
    state = GQA.state(replace(BF16, kv="kivi2"))
    assert state.at(128) == 128 * 4096
    assert state.at(1128) == 128 * 4096 + 1000 * 4096 * Fraction(3, 16)


def test_weights_read_are_fewer_in_fewer_bits() -> None:
    dense = load_model("llama-3.1-8b")
    tokens = np.array([16.0])

    def gate_up(weights: str) -> tuple[float, str]:
        operators = token_operators(shard(quantised(dense, linear=weights), 1), tokens)
        found = next(op for op in operators if op.name == "gate_up")
        return float(found.weight_bytes[0]), found.peak

    whole, _ = gate_up("bfloat16")
    for weights, bits, expected in (
        ("int4_g128", 4.156, "bf16_flop_per_s"),
        ("nvfp4", 4.5, "fp4_flop_per_s"),
        ("mxfp8", 8.25, "fp8_flop_per_s"),
    ):
        read, peak = gate_up(weights)
        assert read == pytest.approx(whole * bits / 16, rel=1e-3)
        assert peak == expected


@pytest.mark.parametrize("name", NAMES)
def test_ranks_never_hold_more_than_the_whole(name: str) -> None:
    model = load_model(name)
    sizes = valid_sizes(model, 8)
    assert sizes[0] == 1
    weights = [shard(model, ranks).weight_bytes for ranks in sizes]
    assert weights == sorted(weights, reverse=True)
    state = [shard(model, ranks).local.state_bytes(5000) for ranks in sizes]
    assert state == sorted(state, reverse=True)


def test_latents_are_whole_on_every_rank() -> None:
    for name in ("deepseek-v3", "deepseek-v3.2", "deepseek-v4-pro"):
        model = load_model(name)
        assert shard(model, 8).kv_bytes_per_token == model.kv_bytes_per_token
        assert shard(model, 8).weight_bytes < model.weight_bytes / 6


@pytest.mark.parametrize(
    ("name", "ranks", "reason"),
    [
        ("kimi-linear-48b-a3b", 3, "32 KDA heads are not a multiple of 3"),
        ("qwen3-next-80b-a3b", 3, "16 linear key heads are not a multiple of 3"),
        ("deepseek-v4-flash", 16, "8 output groups are not a multiple of 16"),
        ("kimi-k3", 5, "96 KDA heads"),
    ],
)
def test_kinds_say_why_they_do_not_divide(name: str, ranks: int, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        shard(load_model(name), ranks)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    context=st.integers(0, 200_000),
    more=st.integers(0, 200_000),
    kv=st.sampled_from(["bfloat16", "fp8", "kivi2"]),
)
def test_state_grows_with_the_context(name: str, context: int, more: int, kv: str) -> None:
    model = quantised(load_model(name), kv_cache=kv)
    assert 0 <= model.state_bytes(context) <= model.state_bytes(context + more)
    limit = model.growing_state_bytes_per_token * context + model.fixed_state_bytes_per_sequence
    assert model.state_bytes(context) <= limit + 1
    fewer, most = decode_token(model, context), decode_token(model, context + more)
    assert fewer.state_bytes <= most.state_bytes


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    one=st.sampled_from(format_names()),
    other=st.sampled_from(format_names()),
)
def test_fewer_bits_never_take_more_bytes(name: str, one: str, other: str) -> None:
    model = load_model(name)
    narrow, wide = sorted((one, other), key=lambda f: load_format(f).bits_per_element)
    narrow_bytes, wide_bytes = (quantised(model, linear=f).weight_bytes for f in (narrow, wide))
    assert narrow_bytes <= wide_bytes
    # FlashMLA's form keeps a part in 16 bits: its bits are not those of its name.
    if "fp8_ds_mla" not in (one, other):
        narrow_state, wide_state = (
            quantised(model, kv_cache=f).growing_state_bytes_per_token for f in (narrow, wide)
        )
        assert narrow_state <= wide_state


@pytest.mark.parametrize("name", NAMES)
def test_operators_touch_every_matrix_once(name: str) -> None:
    """Enough tokens to reach every expert read all layers' matrices, whatever their formats."""
    rank = shard(load_model(name), 1)
    operators = token_operators(rank, np.array([1e7]))
    read = sum(op.calls * float(op.weight_bytes[0]) for op in operators)
    model = rank.model
    matrices = model.precision.weight_bytes(replace(model.params(), embedding=0))
    assert read == pytest.approx(matrices, rel=4e-3)
    flops_a_token = sum(op.calls * float(op.flops[0]) for op in operators) / 1e7
    passed = model.params(active=True).matrices
    assert flops_a_token == pytest.approx(2 * passed, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_attention_operators_are_the_work_of_single_sequences(name: str) -> None:
    """Two sequences as one batch of clipped sums: the same FLOPs and bytes as one by one."""
    model = load_model(name)
    rank = shard(model, 1)
    contexts = (700, 90_000)
    caps = (None, *model.clip_tokens)
    clipped = {cap: np.array([float(sum(min(c, cap or c) for c in contexts))]) for cap in caps}
    found = decode_operators(rank, DecodeSums(seqs=np.array([2.0]), clipped=clipped))
    works = [decode_token(model, context) for context in contexts]
    total = sum(op.calls * float(op.flops[0]) for op in found)
    assert total == pytest.approx(sum(sum(work.attention_flops.values()) for work in works))
    read = sum(op.calls * float(op.state_bytes[0]) for op in found)
    assert read == pytest.approx(sum(work.state_bytes for work in works))
    chunks = ((0, 300), (50_000, 2000))
    sums = PrefillSums(
        seqs=np.array([2.0]),
        tokens=np.array([2300.0]),
        prefix={cap: np.array([float(sum(min(s, cap or s) for s, _ in chunks))]) for cap in caps},
        pairs={
            cap: np.array([float(sum(causal_pairs_clipped(s, n, cap) for s, n in chunks))])
            for cap in caps
        },
    )
    found = prefill_operators(rank, sums)
    total = sum(op.calls * float(op.flops[0]) for op in found)
    assert total == pytest.approx(sum(prefill_attention_flops(model, n, s) for s, n in chunks))


@given(start=st.integers(0, 300), tokens=st.integers(1, 300), cap=st.none() | st.integers(1, 500))
def test_clipped_pairs(start: int, tokens: int, cap: int | None) -> None:
    by_hand = sum(min(start + token + 1, cap or 10_000) for token in range(tokens))
    assert causal_pairs_clipped(start, tokens, cap) == by_hand


def test_two_ranks_share_latent_attention() -> None:
    tokens = np.array([64.0])
    one, two = (
        {op.name: op for op in MLA.sharded(n).token_operators(Frame(7168, BF16, n), 1, tokens)}
        for n in (1, 2)
    )
    assert float(two["o"].flops[0]) * 2 == float(one["o"].flops[0])
    assert float(two["qkv_a"].flops[0]) == float(one["qkv_a"].flops[0])


@pytest.mark.parametrize("name", ["kimi-k3", "deepseek-v4-pro", "gpt-oss-20b", "glm-5"])
def test_rates_of_sums_make_up_the_operators(name: str) -> None:
    """Seconds a unit, times the sums of a batch, are what its operators take one by one."""
    model, gpu = load_model(name), load_gpu("b300")
    rank, efficiency = shard(model, 8), load_efficiency(gpu)

    def seconds(operator: Operator) -> float:
        return float(operator_seconds(operator, gpu, efficiency, 8).work_s[0])

    caps = (None, *model.clip_tokens)
    clipped = {cap: np.array([float(min(cap or 1 << 30, 33_333) * 16)]) for cap in caps}
    rates = decode_rates(rank, seconds)
    by_rates = 16 * rates.seq_s
    by_rates += sum(rate * float(clipped[cap][0]) for cap, rate in rates.token_s.items())
    operators = decode_operators(rank, DecodeSums(seqs=np.array([16.0]), clipped=clipped))
    assert by_rates == pytest.approx(sum(seconds(operator) for operator in operators))

    start, tokens = 9000, 1000
    sums = PrefillSums(
        seqs=np.ones(1),
        tokens=np.array([float(tokens)]),
        prefix={cap: np.array([float(min(cap or start, start))]) for cap in caps},
        pairs={cap: np.array([float(causal_pairs_clipped(start, tokens, cap))]) for cap in caps},
    )
    chunk = chunk_rates(rank, seconds)
    compute_s = tokens * chunk.token_s + start * chunk.prefix_s
    compute_s += sum(rate * float(sums.pairs[cap][0]) for cap, rate in chunk.pair_s.items())
    memory_s = chunk.seq_s + sum(
        rate * (float(sums.prefix[cap][0]) + tokens) for cap, rate in chunk.read_s.items()
    )
    found = prefill_operators(rank, sums)
    nothing = np.zeros(1)
    assert compute_s == pytest.approx(
        sum(seconds(replace(op, state_bytes=nothing)) for op in found)
    )
    assert memory_s == pytest.approx(sum(seconds(replace(op, flops=nothing)) for op in found))
