"""Families read by rule: published sizes, what is said of them, and refusals with the way round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodels.models.hf_config import read_hf_config
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.parts import Mixer
from sim.errors import ScenarioError

PUBLISHED: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("published_sizes.yaml").read_text(encoding="utf-8")
)["checkpoints"]
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    row = PUBLISHED[name]
    model = read_hf_config(row["config"], name=name)
    assert model.total_params / 1e9 == pytest.approx(row["billions"], rel=0.03)
    assert model.kv_bytes_per_token == row["kv_bytes"]


def mixers(name: str) -> dict[str, int]:
    """The kinds of a published checkpoint's mixers, with their numbers of layers."""
    found: dict[str, int] = {}
    mixer: Mixer
    for mixer, count in read_hf_config(PUBLISHED[name]["config"], name=name).mixers:
        found[mixer.kind] = found.get(mixer.kind, 0) + count
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ibm-granite/granite-4.0-h-small", {"mamba2": 36, "gqa": 4}),
        ("ai21labs/Jamba-v0.1", {"mamba1": 28, "gqa": 4}),
        ("tiiuae/Falcon-H1-34B-Instruct", {"gqa": 72, "mamba2": 72}),
        ("ibm-ai-platform/Bamba-9B-v2", {"mamba2": 29, "gqa": 3}),
        ("LiquidAI/LFM2-1.2B", {"short_conv": 10, "gqa": 6}),
        ("LGAI-EXAONE/EXAONE-4.0-32B", {"sliding": 48, "gqa": 16}),
        ("XiaomiMiMo/MiMo-V2-Flash", {"gqa": 9, "sliding": 39}),
        ("meituan-longcat/LongCat-Flash-Chat", {"mla": 56}),
    ],
)
def test_layers_of_each_kind(name: str, expected: dict[str, int]) -> None:
    assert mixers(name) == expected


def test_factors_of_values_are_left_out_and_said() -> None:
    plain = read_hf_config(LLAMA)
    factors = {"embedding_multiplier": 12.0, "logits_scaling": 16.0, "residual_multiplier": 0.22}
    granite = read_hf_config(LLAMA | factors | {"model_type": "granite"})
    assert granite.layers == plain.layers
    assert granite.notes == (
        "embedding_multiplier, logits_scaling, residual_multiplier: factors of values, which cost "
        "nothing, are left out",
    )


def test_an_unknown_family_with_the_fields_of_llama_is_read_as_it_and_said() -> None:
    model = read_hf_config(LLAMA | {"model_type": "newest"})
    assert model.layers == read_hf_config(LLAMA).layers
    assert model.notes[0].startswith("model_type newest is not known: its layers are taken to be")


def test_bfloat16_heads_of_their_own_width_for_values() -> None:
    mixer = Gqa(heads=8, kv_heads=2, head_dim=192, v_dim=128)
    assert mixer.params(256).attention == 256 * (8 * 192 + 2 * (192 + 128) + 8 * 128)
    assert mixer.kv_size == 2 * (192 + 128) // 2


def test_pruned_layers_have_heads_and_widths_of_their_own() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 3.0}},
        {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
    ]
    model = read_hf_config(LLAMA | {"model_type": "nemotron-nas", "block_configs": blocks})
    kv_heads = [(mixer.kv_heads, count) for mixer, count in model.mixers]
    assert kv_heads == [(2, 2), (1, 1)]
    # Two thirds of the multiple of 256, up to a multiple of 256.
    assert [(ffn.width, count) for ffn, count in model.ffns] == [(512, 1), (256, 2)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model_type": "bert", "architectures": ["BertModel"]}, "an encoder.*Qwen3-Embedding"),
        ({"model_type": "whisper"}, "an encoder with a decoder beside it.*Qwen2-Audio"),
        ({"model_type": "llada"}, "a diffusion model"),
        (LLAMA | {"model_type": "novel", "ssm_states": 3}, "not known here .ssm_states.*layers"),
        ({"model_type": "novel"}, "none of the fields hidden_size"),
        (LLAMA | {"model_type": "novel", "layer_types": ["odd"] * 4}, "layer_types has 'odd'"),
        (LLAMA | {"model_type": "granite", "layer_types": ["mamba"] * 4}, "no fields of Mamba"),
    ],
)
def test_others_are_refused_with_the_way_round(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_hf_config(given, name="m")


def test_a_pooling_model_of_decoder_layers_is_priced_and_said() -> None:
    model = read_hf_config(LLAMA | {"architectures": ["LlamaForSequenceClassification"]})
    assert model.notes == (
        "LlamaForSequenceClassification answers with a vector or score: set output_tokens 1 to "
        "price prompts",
    )
