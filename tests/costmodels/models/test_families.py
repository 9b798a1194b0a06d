"""Every family of config files loads, in both spellings; unsupported features are reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.models.hf_config import FAMILIES, read_hf_config
from costmodels.models.layers.parts import Mixer
from costmodels.models.spec import ModelSpec
from costmodels.operators.operators import logit_operators, token_operators
from scenarios.commands.names import model_rows
from sim.errors import ScenarioError

BASE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}
LATENT = ROUTED | {
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
INDEX = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 128}
GDN = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
V4 = (
    ROUTED
    | INDEX
    | {
        "head_dim": 64,
        "q_lora_rank": 64,
        "o_lora_rank": 32,
        "o_groups": 2,
        "sliding_window": 128,
        "hc_mult": 4,
    }
)
KDA = {"num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4}
# name: the fields beside BASE, and the kinds of its layers with their number.
CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "llama": ({}, {"gqa": 4}),
    "mistral": ({"sliding_window": 64}, {"sliding": 4}),
    "qwen2": (
        {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
        {"gqa": 3, "sliding": 1},
    ),
    "qwen3": ({"layer_types": ["full_attention"] * 4}, {"gqa": 4}),
    "opt": ({"ffn_dim": 512}, {"gqa": 4}),
    "bloom": ({"n_layer": 4}, {"gqa": 4}),
    "falcon": ({"new_decoder_architecture": True}, {"gqa": 4}),
    "mixtral": (EXPERTS, {"gqa": 4}),
    "qwen2_moe": (
        {**EXPERTS, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128},
        {"gqa": 4},
    ),
    "qwen3_moe": ({**EXPERTS, "moe_intermediate_size": 64}, {"gqa": 4}),
    "gpt_oss": (
        {"sliding_window": 64, "num_local_experts": 8, "experts_per_token": 2},
        {"sliding": 2, "gqa": 2},
    ),
    "glm4_moe": ({**ROUTED, "num_nextn_predict_layers": 1}, {"gqa": 4}),
    "glm4_moe_lite": (LATENT, {"mla": 4}),
    "deepseek_v2": (LATENT | {"q_lora_rank": None}, {"mla": 4}),
    "deepseek_v3": (LATENT, {"mla": 4}),
    "kimi_k2": (LATENT, {"mla": 4}),
    "deepseek_v32": (LATENT | INDEX, {"dsa": 4}),
    "glm_moe_dsa": (
        LATENT | INDEX | {"indexer_types": ["full", "shared", "shared", "full"]},
        {"dsa": 4},
    ),
    "deepseek_v4": (V4 | {"compress_ratios": [0, 128, 4, 128]}, {"compressed": 4}),
    "kimi_linear": (
        LATENT
        | {
            "num_experts": 8,
            "num_experts_per_token": 2,
            "num_shared_experts": 1,
            "linear_attn_config": KDA | {"full_attn_layers": [4], "kda_layers": [1, 2, 3]},
        },
        {"kda": 3, "mla": 1},
    ),
    "kimi_k3": (
        LATENT
        | {
            "routed_expert_hidden_size": 128,
            "attn_res_block_size": 2,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "linear_num_heads": 4,
            "linear_head_dim": 32,
            "linear_conv_kernel_dim": 4,
        },
        {"kda": 3, "mla": 1},
    ),
    "qwen3_next": (
        GDN
        | EXPERTS
        | {
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
            "full_attention_interval": 4,
        },
        {"gdn": 3, "gqa": 1},
    ),
    "qwen3_5": (
        GDN | {"layer_types": ["linear_attention"] * 3 + ["full_attention"]},
        {"gdn": 3, "gqa": 1},
    ),
    "gemma2": ({"sliding_window": 64}, {"sliding": 2, "gqa": 2}),
    "gemma3_text": (
        {"sliding_window": 64, "sliding_window_pattern": 4},
        {"sliding": 3, "gqa": 1},
    ),
    "gemma4": (
        {
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "global_head_dim": 64,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 32,
        },
        {"sliding": 1, "gqa": 1, "shared_kv": 2},
    ),
    "minimax": (EXPERTS | {"attn_type_list": [0, 0, 0, 1]}, {"lightning": 3, "gqa": 1}),
    "minimax_m2": (EXPERTS, {"gqa": 4}),
    "minimax_m3": (
        EXPERTS
        | {
            "dense_intermediate_size": 1024,
            "shared_intermediate_size": 512,
            "moe_layer_freq": [0, 1, 1, 1],
            "sparse_attention_config": {
                "sparse_attention_freq": [0, 1, 1, 1],
                "sparse_block_size": 16,
                "sparse_topk_blocks": 4,
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 32,
            },
        },
        {"gqa": 1, "block_sparse": 3},
    ),
    "nemotron_h": (
        {
            "hybrid_override_pattern": "M*E-",
            "mamba_num_heads": 8,
            "mamba_head_dim": 32,
            "ssm_state_size": 16,
            "n_groups": 2,
            "conv_kernel": 4,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "moe_latent_size": 128,
            "moe_shared_expert_intermediate_size": 64,
        },
        {"mamba2": 1, "gqa": 1},
    ),
    "llama4_text": (
        EXPERTS
        | {
            "intermediate_size_mlp": 1024,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 512,
        },
        {"sliding": 3, "gqa": 1},
    ),
}


def kinds(model: ModelSpec) -> dict[str, int]:
    found: dict[str, int] = {}
    for mixer, count in model.mixers:
        found[mixer.kind] = found.get(mixer.kind, 0) + count
    return found


@pytest.mark.parametrize("model_type", CASES)
def test_every_family_loads(model_type: str) -> None:
    fields, expected = CASES[model_type]
    config = BASE | fields | {"model_type": model_type}
    model = read_hf_config(config, name="m")
    assert kinds(model) == expected
    assert 0 < model.active_params <= model.total_params
    nested = {"model_type": "some_vision_model", "text_config": config, "vision_config": {}}
    assert read_hf_config(nested, name="m") == model


def test_no_family_is_left_out() -> None:
    """Names that stand for the same reader and fields as one of the cases."""
    same = {
        "deepseek_ref",
        "minimax_m3_vl",
        "minimax_m3_vl_text",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "gemma3",
        "gemma4_text",
        "minimax_m1",
        "minimax_text_01",
        "qwen3_5_moe",
        "qwen3_5_text",
        "qwen3_5_moe_text",
    }
    assert set(FAMILIES) == set(CASES) | same | {"layers"}


def test_two_spellings_are_one_model() -> None:
    def v4(fields: dict[str, Any]) -> ModelSpec:
        return read_hf_config(BASE | V4 | fields | {"model_type": "deepseek_v4"}, name="m")

    names = ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
    assert v4({"compress_ratios": [0, 128, 4, 128]}) == v4({"layer_types": [*names, names[1]]})
    dsa = BASE | LATENT | INDEX | {"model_type": "deepseek_v32"}
    new = {key: value for key, value in dsa.items() if key != "first_k_dense_replace"}
    assert read_hf_config(dsa, name="m") == read_hf_config(
        new | {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, name="m"
    )
    gpt = BASE | CASES["gpt_oss"][0] | {"model_type": "gpt_oss"}
    types = ["sliding_attention", "full_attention"] * 2
    assert read_hf_config(gpt, name="m") == read_hf_config(gpt | {"layer_types": types}, name="m")


def test_minimal_files_of_deepseek() -> None:
    for fields, name in (
        (V4 | {"compress_ratios": [0, 128, 4, 128, 0]}, "deepseek_v4"),
        (LATENT, "deepseek_v3"),
        (LATENT | INDEX, "deepseek_v32"),
    ):
        minimal = read_hf_config(BASE | fields | {"model_type": "deepseek_ref"}, name="m")
        assert minimal.layers == read_hf_config(BASE | fields | {"model_type": name}).layers


def test_layers_of_nemotron_in_words() -> None:
    fields = BASE | CASES["nemotron_h"][0] | {"model_type": "nemotron_h"}
    words = {"layers_block_type": ["mamba", "attention", "moe", "mlp"]}
    spelled = {key: value for key, value in fields.items() if key != "hybrid_override_pattern"}
    assert read_hf_config(spelled | words, name="m") == read_hf_config(fields, name="m")


def test_first_layers_are_dense() -> None:
    model = read_hf_config(BASE | LATENT | {"model_type": "deepseek_v3"}, name="m")
    assert (model.num_dense_layers, model.num_moe_layers) == (1, 3)


YOCO: dict[str, Any] = {
    "model_type": "layers",
    "hidden_size": 256,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "num_hidden_layers": 8,
    "layers": [
        {
            "count": 4,
            "mixer": {
                "kind": "sliding",
                "window": 64,
                "gqa": {"heads": 8, "kv_heads": 2, "head_dim": 32},
            },
            "ffn": {"kind": "dense", "width": 512},
        },
        {
            "mixer": {"kind": "yoco_memory", "kv_heads": 2, "head_dim": 32},
            "norms": 1,
            "all_reduces": 0,
        },
        {
            "count": 4,
            "skips_prompt": True,
            "mixer": {"kind": "shared_kv", "gqa": {"heads": 8, "kv_heads": 2, "head_dim": 32}},
            "ffn": {"kind": "dense", "width": 512},
        },
    ],
}


def test_a_list_of_layers_is_a_model() -> None:
    """YOCO: one global cache for the upper half, windows in the lower."""
    model = read_hf_config(YOCO, name="yoco")
    assert kinds(model) == {"sliding": 4, "yoco_memory": 1, "shared_kv": 4}
    assert model.growing_state_bytes_per_token == 2 * 2 * 32 * 2
    assert model.fixed_state_bytes_per_sequence == 4 * 64 * 2 * 2 * 32 * 2
    # Prompts pass the lower half and the global cache alone; what samples passes the upper half.
    rank, tokens = shard(model, 1), np.array([100.0])
    lower = 4 * (256 * (256 + 128) + 256 * 256 + 3 * 256 * 512) + 256 * 128
    upper = 4 * (2 * 256 * 256 + 3 * 256 * 512)
    head = 256 * 1000
    for operators, matrices in (
        (token_operators(rank, tokens), lower),
        (logit_operators(rank, tokens, 0.0), upper + head),
    ):
        flops = sum(op.calls * float(op.flops[0]) for op in operators)
        assert flops == 2 * 100 * matrices


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"mixer": {"kind": "gqaa"}}, "unknown kind of mixer 'gqaa'; did you mean gqa"),
        ({"mixer": {"kind": "gqa", "heads": 8}}, "missing: kv_heads, head_dim"),
        ({"mixer": {"kind": "lightning", "heads": 8, "width": 3}}, "no field width"),
        ({"ffn": {"kind": "dense", "width": "wide"}}, "must be an integer"),
        ({"mixer": 3}, "mixer must be an object"),
        (3, r"layers\[0\] must be an object"),
    ],
)
def test_bad_layers_are_named(layer: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_hf_config(YOCO | {"layers": [layer]}, name="m")


def test_mixers_are_hashable() -> None:
    """Equal layers are priced once: they are keys."""
    mixers: set[Mixer] = set()
    for name in ("kimi-k3", "deepseek-v4-pro", "gpt-oss-20b"):
        mixers.update(mixer for mixer, _ in load_model(name).mixers)
    assert len(mixers) == 2 + 2 + 2


def test_rows_of_models_for_programs() -> None:
    rows = {row["name"]: row for row in model_rows()}
    pro = rows["deepseek-ai/DeepSeek-V4-Pro"]
    assert pro["layers"] == {"compressed": 61}
    assert pro["growing_state_bytes_per_token"] == 9848
    assert pro["weight_bytes"]["checkpoint"] < pro["weight_bytes"]["fp8"]
    llama = rows["meta-llama/Llama-3.1-8B"]
    assert llama["weight_bytes"]["checkpoint"] == llama["weight_bytes"]["bfloat16"]
    assert llama["evidence"]["label"] == "reported"
