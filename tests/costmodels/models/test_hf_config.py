"""Spellings of config.json, and every refusal as a sentence rather than a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.layouts.shard import shard
from costmodels.models.hf_config import read_hf_config
from costmodels.models.layers.dense import Dense
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.moe import Moe
from costmodels.operators.operators import token_operators
from sim.errors import ScenarioError

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
QWEN3_MOE: dict[str, Any] = LLAMA | {
    "model_type": "qwen3_moe",
    "head_dim": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
}
MINIMAX: dict[str, Any] = LLAMA | {
    "model_type": "minimax_m2",
    "head_dim": 64,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_mtp": True,
    "num_mtp_modules": 3,
    "shared_intermediate_size": 0,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "ffn_dim": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


def attention(config: dict[str, Any]) -> Gqa:
    """The attention of a config whose layers all have the same."""
    ((mixer, _),) = read_hf_config(config).mixers
    assert isinstance(mixer, Gqa)
    return mixer


def test_head_dim_absent_or_given() -> None:
    assert attention(LLAMA).head_dim == 32
    assert attention(LLAMA | {"head_dim": None}).head_dim == 32
    assert attention(LLAMA | {"head_dim": 64}).head_dim == 64


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"torch_dtype": "float32"}, "bfloat16"),
    ],
)
def test_dtype_spellings(fields: dict[str, Any], dtype: str) -> None:
    model = read_hf_config(LLAMA | fields)
    assert (model.dtype, model.dtype_bytes) == (dtype, 2)


def test_experts_in_both_spellings() -> None:
    new = {key: value for key, value in QWEN3_MOE.items() if key != "num_experts"}
    assert read_hf_config(QWEN3_MOE) == read_hf_config(new | {"num_local_experts": 16})


@pytest.mark.parametrize(
    ("fields", "moe_layers"),
    [
        ({}, 4),
        ({"decoder_sparse_step": 2}, 2),
        ({"mlp_only_layers": [0]}, 3),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, 1),
    ],
)
def test_dense_layers_among_experts(fields: dict[str, Any], moe_layers: int) -> None:
    model = read_hf_config(QWEN3_MOE | fields)
    assert model.num_moe_layers == moe_layers
    widths = {ffn.width: count for ffn, count in model.ffns if isinstance(ffn, Dense)}
    assert widths == ({} if moe_layers == 4 else {512: 4 - moe_layers})


def test_minimax_m2() -> None:
    model = read_hf_config(MINIMAX)
    assert model.ffns == ((Moe(num_experts=16, top_k=4, width=512), 4),)
    assert (model.linear_dtype, model.is_fp8) == ("fp8_block", True)
    assert [(group.count, group.ffn) for group in model.mtp] == [(3, model.ffns[0][0])]
    # One norm over 8 query heads of 64, one over 2 key heads.
    one_head = read_hf_config(QWEN3_MOE | {"num_experts": 16, "moe_intermediate_size": 512})
    assert model.total_params - one_head.total_params == 4 * ((8 + 2) * 64 - 2 * 64)
    assert read_hf_config(MINIMAX | {"attn_type_list": [1, 1, 1, 1]}) == model


def test_minimax_m2_sums_its_norms_over_ranks() -> None:
    tokens = np.array([1.0, 100.0])
    one, two = (
        {o.name: o for o in token_operators(shard(read_hf_config(MINIMAX), ranks), tokens)}
        for ranks in (1, 2)
    )
    assert "qk_norm_sum" not in one
    # A ring of two moves once what each rank holds: two sums of 4 bytes.
    np.testing.assert_allclose(two["qk_norm_sum"].comm_bytes, 8 * tokens)
    assert two["qk_norm_sum"].calls == 4


def test_fp8_blocks_are_converted_before_every_matrix() -> None:
    tokens = np.array([10.0])
    blocks = LLAMA | {"quantization_config": MINIMAX["quantization_config"]}
    found = {o.name: o for o in token_operators(shard(read_hf_config(blocks), 1), tokens)}
    converted = found["quantise_blocks"]
    assert converted.calls == 3 * 4
    # 16 bits read and 8 written of two inputs of 256 and one of 512, a layer.
    total = converted.calls * converted.activation_bytes
    np.testing.assert_allclose(total, 10 * 4 * 3 * (2 * 256 + 512), rtol=0.01)


def test_nested_text_config() -> None:
    nested = {"model_type": "some_vision_model", "text_config": LLAMA}
    assert read_hf_config(nested) == read_hf_config(LLAMA)


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"type": "linear", "factor": 2.0}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 2048),
        ({"rope_type": "default"}, 2048),
    ],
)
def test_scaled_positions_are_those_that_vllm_derives(rope: dict[str, Any], positions: int) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        assert read_hf_config(LLAMA | {key: rope}).max_position_embeddings == positions


def test_family_traits() -> None:
    qwen2 = attention(LLAMA | {"model_type": "qwen2"})
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = attention(LLAMA | {"model_type": "qwen3", "head_dim": 64})
    assert (qwen3.qkv_bias, qwen3.qk_norm) == (False, True)
    bias = {"attention_bias": True, "mlp_bias": True}
    assert (attention(LLAMA | bias).qkv_bias, attention(LLAMA | bias).out_bias) == (True, True)
    assert read_hf_config(LLAMA | bias).ffns == ((Dense(width=512, bias=True), 4),)
    opt = read_hf_config(OPT)
    assert opt.norm == "layer"
    assert opt.ffns == ((Dense(width=1024, gated=False, bias=True), 4),)
    assert opt.tie_word_embeddings
    assert opt.learned_position_rows == 2050


def test_unused_window_is_accepted() -> None:
    unused = {"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False}
    assert read_hf_config(LLAMA | unused) == read_hf_config(LLAMA | {"model_type": "qwen2"})
    read_hf_config(LLAMA | {"model_type": "mistral", "sliding_window": None})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            LLAMA | {"model_type": "rwkv7"},
            "'rwkv7' .* is a recurrent or other model.*a list of layers: model_type: layers",
        ),
        (LLAMA | {"model_type": "deepseek_v3"}, "moe_intermediate_size is missing"),
        (LLAMA | {"model_type": ["llama"]}, r"model_type must be text, not \['llama'\]"),
        ({}, "model_type is missing"),
        (LLAMA | {"layer_types": ["full_attention", "odd_attention"] * 2}, "has odd_attention"),
        (LLAMA | {"layer_types": ["full_attention"]}, "names 1 of 4 layers"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 4}, "sliding_window .* is missing"),
        (LLAMA | {"layer_types": 3}, "layer_types must be a list"),
        (LLAMA | {"quantization_config": {"quant_method": "awq"}}, "bits or w_bit is missing"),
        (
            LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
            r"weight_block_size \[64, 64\] is not supported",
        ),
        (LLAMA | {"hidden_size": None}, "hidden_size is missing"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size must be a positive integer.*, not '4096'"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers must be a positive integer"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer.*, not 0"),
        (LLAMA | {"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        (LLAMA | {"hidden_size": 250}, "give head_dim"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        (LLAMA | {"dtype": "int4"}, "dtype 'int4' is not supported"),
        (LLAMA | {"text_config": 3}, "text_config must be an object"),
        (QWEN3_MOE | {"num_experts_per_tok": 17}, "exceeds the number of experts 16"),
        (
            QWEN3_MOE | {"num_experts": None},
            "num_experts or num_local_experts or n_routed_experts .* is missing",
        ),
        (QWEN3_MOE | {"mlp_only_layers": 3}, "mlp_only_layers must be a list"),
        (MINIMAX | {"qk_norm_type": "per_head"}, "qk_norm_type per_layer, not 'per_head'"),
        (MINIMAX | {"attn_type_list": [1, 0, 1, 1]}, "MiniMax-M2 has full attention only"),
        (OPT | {"word_embed_proj_dim": 128}, "OPT-350M"),
    ],
)
def test_refusals_name_the_field(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_hf_config(config, name="m")


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\x00"])
def test_bad_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ScenarioError, match=r"config\.json"):
        read_hf_config(path)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        read_hf_config(tmp_path / "absent.json")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="not a text file"):
        read_hf_config(tmp_path)
