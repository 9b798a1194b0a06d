"""Number formats that checkpoints declare for their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodels.models.hf_config import read_hf_config
from sim.errors import ScenarioError

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
MXFP4 = {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}
INT4 = {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}
FORMATS: list[tuple[dict[str, Any], tuple[str, str, str], str | None]] = [
    ({"quant_method": "fp8"}, ("fp8", "fp8", "fp8"), None),
    (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        ("fp8_block", "fp8_block", "fp8_block"),
        None,
    ),
    ({"quant_method": "mxfp4"}, ("bfloat16", "mxfp4", "mxfp4"), None),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, ("int4_g128",) * 3, None),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, ("int3_g128",) * 3, None),
    (
        {
            "quant_method": "compressed-tensors",
            "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "lm_head"],
            "config_groups": {"group_0": INT4},
        },
        ("bfloat16", "bfloat16", "int4_g32"),
        None,
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "ignore": ["model.layers.0.self_attn.q_proj"],
            "config_groups": {
                "group_0": MXFP4
                | {"input_activations": {"num_bits": 8, "type": "float", "group_size": 32}}
            },
        },
        ("mxfp4", "mxfp4", "mxfp4"),
        "mxfp8",
    ),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4",) * 3, None),
    (
        # Norms, gates and indexers are in 16 bits whatever is said of them.
        {
            "quant_method": "fp8",
            "modules_to_not_convert": [
                f"model.layers.{layer}.{part}"
                for layer in range(4)
                for part in ("post_attention_layernorm", "mlp.gate", "self_attn.indexer.k_norm")
            ],
        },
        ("fp8", "fp8", "fp8"),
        None,
    ),
    (
        {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                "layers.0.mlp.experts.0.up_proj": {"quant_algo": "W4A16_NVFP4"},
            },
        },
        ("fp8", "bfloat16", "nvfp4_w4a16"),
        None,
    ),
    (
        {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "ignore": ["*.attn.*"],
            "quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4"}},
        },
        ("fp8_block", "fp8_block", "nvfp4"),
        None,
    ),
]


@pytest.mark.parametrize(("quantization", "formats", "activations"), FORMATS)
def test_quantisation(
    quantization: dict[str, Any], formats: tuple[str, str, str], activations: str | None
) -> None:
    model = read_hf_config(CONFIG | {"quantization_config": quantization}, name="m")
    precision = model.precision
    assert (precision.attention, precision.ffn, precision.experts) == formats
    assert precision.activations == activations
    assert precision.embedding == "bfloat16"
    assert model.weight_bytes < read_hf_config(CONFIG).weight_bytes


@pytest.mark.parametrize(
    ("scheme", "kv"),
    [
        ({"dynamic": False, "num_bits": 8, "type": "float"}, "fp8"),
        ({"dynamic": False, "num_bits": 8, "type": "int"}, "bfloat16"),
        (None, "bfloat16"),
    ],
)
def test_a_scheme_of_keys_and_values(scheme: dict[str, Any] | None, kv: str) -> None:
    stated = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": scheme}
    assert read_hf_config(CONFIG | {"quantization_config": stated}).precision.kv == kv


def test_quantisation_file_of_modelopt(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    stated = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["*self_attn*"],
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": stated}))
    precision = read_hf_config(tmp_path).precision
    assert (precision.attention, precision.experts, precision.kv) == ("bfloat16", "nvfp4", "fp8")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quantization_config": {"quant_method": "bitnet"}}, "method bitnet is not supported"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 2}}, "2 bits in groups of None"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors"}},
            "groups is missing",
        ),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "INT1"}},
            "quant_algo 'INT1' is not supported",
        ),
        ({"expert_dtype": "fp2"}, "expert_dtype 'fp2' is not supported"),
    ],
)
def test_unknown_formats_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_hf_config(CONFIG | fields, name="m")


RULES = {"type": "float", "num_bits": 8}
FURTHER: list[tuple[dict[str, Any], tuple[str, str, str], str | None, str]] = [
    (
        {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn"]},
        ("bfloat16", "fp8", "fp8"),
        None,
        "bfloat16",
    ),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        ("nf4",) * 3,
        None,
        "bfloat16",
    ),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("int8",) * 3, None, "bfloat16"),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True},
        ("int4_channel",) * 3,
        None,
        "bfloat16",
    ),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": {"-:.*self_attn.*": {}}},
        ("bfloat16", "int4_g64", "int4_g64"),
        None,
        "bfloat16",
    ),
    (
        {"quant_method": "auto-round", "bits": 4, "group_size": 128},
        ("int4_g128",) * 3,
        None,
        "bfloat16",
    ),
    (
        {  # two schemes: 8 bits for attention, 4 for what is left; a cache in 8 bits
            "quant_method": "compressed-tensors",
            "kv_cache_scheme": RULES,
            "config_groups": {
                "group_0": {"weights": RULES, "targets": [r"re:.*self_attn\.(q|k|v|o)_proj$"]},
                "group_1": {
                    "weights": {"num_bits": 4, "type": "int", "group_size": 128},
                    "targets": ["Linear"],
                },
            },
        },
        ("fp8", "int4_g128", "int4_g128"),
        None,
        "fp8",
    ),
    (
        {  # half of the layers' modules are left as they are: most are not
            "quant_method": "compressed-tensors",
            "ignore": [r"re:model\.layers\.[01]\.mlp\..*", "lm_head"],
            "config_groups": {"group_0": {"weights": RULES, "targets": ["Linear"]}},
        },
        ("fp8", "fp8", "fp8"),
        None,
        "bfloat16",
    ),
    (
        {
            "quant_method": "quark",
            "exclude": ["lm_head", "*self_attn*"],
            "global_quant_config": {
                "weight": {"dtype": "fp4", "group_size": 32},
                "input_tensors": {"dtype": "fp4"},
            },
        },
        ("bfloat16", "mxfp4", "mxfp4"),
        "mxfp4",
        "bfloat16",
    ),
    (
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
            "layer_quant_config": {
                "*k_proj": {
                    "weight": {"dtype": "fp8_e4m3"},
                    "output_tensors": {"dtype": "fp8_e4m3"},
                }
            },
        },
        ("fp8", "fp8", "fp8"),
        None,
        "fp8",
    ),
]


@pytest.mark.parametrize(("quantization", "formats", "activations", "kv"), FURTHER)
def test_further_methods(
    quantization: dict[str, Any], formats: tuple[str, str, str], activations: str | None, kv: str
) -> None:
    model = read_hf_config(CONFIG | {"quantization_config": quantization}, name="m")
    precision = model.precision
    assert (precision.attention, precision.ffn, precision.experts) == formats
    assert (precision.activations, precision.kv) == (activations, kv)


def test_a_cache_that_the_checkpoint_asks_for_is_said() -> None:
    stated = {"quant_method": "fp8", "kv_cache_scheme": RULES}
    model = read_hf_config(CONFIG | {"quantization_config": stated}, name="m")
    assert model.notes == ("keys and values are fp8: the checkpoint asks for it",)


def test_a_name_that_says_a_format_without_its_file_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "maker--Model-NVFP4_config.json"
    path.write_text(json.dumps(CONFIG))
    assert "its name says nvfp4" in read_hf_config(path).notes[0]
    other = tmp_path / "any.json"
    other.write_text(json.dumps(CONFIG))
    assert read_hf_config(other).notes == ()
    beside = tmp_path / "maker--Model-NVFP4_hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    model = read_hf_config(path)
    assert (model.precision.experts, model.notes) == ("nvfp4", ())
    with pytest.raises(ScenarioError, match="give the config"):
        read_hf_config(beside)


def test_recurrent_states_are_in_the_type_that_the_engine_keeps() -> None:
    lightning = {
        "model_type": "minimax",
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "intermediate_size": 64,
    }
    assert read_hf_config(CONFIG | lightning).precision.state == "float32"
    stated = CONFIG | {"mamba_ssm_dtype": "float32"}
    assert read_hf_config(stated).precision.state == "float32"
    assert read_hf_config(CONFIG).precision.state == "bfloat16"
