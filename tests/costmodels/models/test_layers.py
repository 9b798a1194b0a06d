"""Each kind of layer against its formulas."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from costmodels.formats import load_format, precision_of
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.models.kv_policies import h2o, pyramid_kv, snapkv, streaming_llm
from costmodels.models.layers.bounded import Evicting, PromptBudget, SlidingWindow, pyramid_budgets
from costmodels.models.layers.kinds import FFNS, MIXERS
from costmodels.models.layers.parts import Frame, Mixer
from costmodels.models.layers.shared_kv import SharedKv
from costmodels.models.spec import LayerGroup, ModelSpec, quantized
from costmodels.operators.operators import DecodeSums, decode_operators, token_operators
from sim.errors import ScenarioError
from tests.properties.layers import CSA, DSA, GQA, HCA, LINEAR, MLA, V4
from tests.published.models.sequence_work import decode_token, prefill_attention_flops

BF16 = precision_of("bfloat16")
FP8_CACHE = replace(BF16, kv="fp8")


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
    """States are kept in 32 bits, the convolutions' inputs in the model's 16."""
    sizes = [mixer.state(BF16).fixed for mixer in LINEAR]
    assert sizes == [
        4 * 96 * 128 * 128 + 2 * 3 * 3 * 96 * 128,
        4 * 32 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 32 * 128),
        4 * 64 * 128 * 128,
        4 * 128 * 64 * 128 + 2 * 3 * (128 * 64 + 2 * 8 * 128),
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
    snap = PromptBudget(gqa=GQA, budgets=(1024,))
    assert snap.state(BF16).at(16_384 + 300, generated=300) == (1024 + 300) * 4096
    assert decode_token(model_of(snap), 16_684, 300).state_bytes == 1324 * 4096
    budgets = pyramid_budgets(1000, 32)
    assert sum(budgets) == pytest.approx(32_000, abs=32)
    assert list(budgets) == sorted(budgets, reverse=True)
    assert model_of(sliding, GQA, streaming).clip_tokens == (1024,)


def test_policies_change_a_model() -> None:
    llama = load_model("llama-3.1-8b")
    context = 50_000
    window = 1024 * 131_072
    assert streaming_llm(llama, 1020).state_bytes(context) == window
    assert h2o(llama, 1024).state_bytes(context) == window
    assert decode_token(snapkv(llama, 1024), context, 100).state_bytes == 1124 * 131_072
    pyramid = pyramid_kv(llama, 1024)
    assert pyramid.num_layers == 32
    assert pyramid.state_bytes(context) == pytest.approx(window, rel=1e-3)
    assert pyramid.clip_tokens == ()
    assert [len(clip) for clip in pyramid.clips if isinstance(clip, tuple)] == [32]
    assert decode_token(pyramid, context, 100).state_bytes == pytest.approx(
        1124 * 131_072, rel=1e-3
    )
    rank = shard(snapkv(llama, 1024), 1)
    one = np.ones(1)
    sums = DecodeSums(one, {None: 50_000 * one, (1024,): 1124 * one})
    (operator,) = decode_operators(rank, sums)
    assert operator.calls * float(operator.state_bytes[0]) == 1124 * 131_072
    for changed in (streaming_llm(llama, 1020), h2o(llama, 1024), pyramid):
        assert changed.total_params == llama.total_params
    # Windows are left alone: half of the layers change.
    changed = h2o(load_model("gpt-oss-20b"), 512)
    assert [mixer.kind for mixer, _ in changed.mixers] == ["sliding", "evicting"]
    with pytest.raises(ScenarioError, match="no full grouped-query attention"):
        h2o(load_model("deepseek-v3"), 512)


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
        operators = token_operators(shard(quantized(dense, linear=weights), 1), tokens)
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


def test_two_ranks_share_latent_attention() -> None:
    tokens = np.array([64.0])
    one, two = (
        {op.name: op for op in MLA.sharded(n).token_operators(Frame(7168, BF16, n), 1, tokens)}
        for n in (1, 2)
    )
    assert float(two["o"].flops[0]) * 2 == float(one["o"].flops[0])
    assert float(two["qkv_a"].flops[0]) == float(one["qkv_a"].flops[0])
