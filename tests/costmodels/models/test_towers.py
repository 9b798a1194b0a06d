"""Towers of images and sounds: parameters, tokens, the parts that ranks hold."""

from __future__ import annotations

from typing import Any

import pytest

from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.models.hf_config import read_hf_config

TEXT: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
QWEN3_VL = {
    "model_type": "qwen3_vl",
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "deepstack_visual_indexes": [5, 11, 17],
}
# Whole model_type, its part, the language model's width, millions of parameters of tower and
# projector, as transformers 5.24's models of the same configs count them.
PUBLISHED: list[tuple[str, str, dict[str, Any], int, float]] = [
    ("qwen3_vl", "vision_config", QWEN3_VL, 2048, 406.0),
    ("mistral3", "vision_config", {"model_type": "pixtral"}, 5120, 439.0),
    ("llava", "vision_config", {"model_type": "clip_vision_model"}, 4096, 324.5),
    (
        "gemma3",
        "vision_config",
        {"model_type": "siglip_vision_model", "image_size": 896},
        2560,
        420.0,
    ),
    ("qwen2_5_vl", "vision_config", {"hidden_size": 1280, "out_hidden_size": 3584}, 3584, 676.6),
    ("glm4v", "vision_config", {"out_hidden_size": 4096, "model_type": "glm4v"}, 4096, 892.5),
    ("internvl", "vision_config", {"model_type": "internvl_vision"}, 3584, 331.0),
    ("kimi_k25", "vision_config", {"model_type": "kimi_k25_vision"}, 7168, 471.1),
    ("qwen2_audio", "audio_config", {"model_type": "qwen2_audio_encoder"}, 4096, 641.0),
]


def multimodal(kind: str, key: str, part: dict[str, Any], hidden: int) -> dict[str, Any]:
    """A config with a language model of ``hidden`` features and one tower."""
    return {"model_type": kind, "text_config": TEXT | {"hidden_size": hidden}, key: part}


@pytest.mark.parametrize(("kind", "key", "part", "hidden", "millions"), PUBLISHED)
def test_parameters_of_towers(
    kind: str, key: str, part: dict[str, Any], hidden: int, millions: float
) -> None:
    (tower,) = read_hf_config(multimodal(kind, key, part, hidden), name="m").towers
    assert tower.modality == key.removesuffix("_config")
    assert tower.params / 1e6 == pytest.approx(millions, rel=0.03)


def test_towers_are_weights_but_not_those_of_a_token_of_text() -> None:
    whole = read_hf_config(multimodal("qwen3_vl", "vision_config", QWEN3_VL, 2048), name="m")
    text = read_hf_config(TEXT, name="m")
    (tower,) = whole.towers
    assert whole.total_params - text.total_params == tower.params
    assert whole.active_params == text.active_params
    assert whole.weight_bytes - text.weight_bytes == 2 * tower.params


def test_ranks_split_a_tower_and_the_first_stage_has_it() -> None:
    whole = read_hf_config(multimodal("qwen3_vl", "vision_config", QWEN3_VL, 2048), name="m")
    text = read_hf_config(TEXT, name="m")
    (tower,) = whole.towers
    halves = shard(whole, 2).weight_bytes - shard(text, 2).weight_bytes
    assert tower.params < halves < 1.1 * tower.params
    stages = Layout(pipeline_parallel_size=2)
    assert shard(whole, stages).weight_bytes - shard(text, stages).weight_bytes == 2 * tower.params


def test_tokens_of_an_image() -> None:
    """Patches of 16 pixels, four of them a token."""
    (tower,) = read_hf_config(
        multimodal("qwen3_vl", "vision_config", QWEN3_VL, 2048), name="m"
    ).towers
    assert tower.tokens(1024, 768) == 32 * 24
    linear = 2.0 * (24 * tower.layer_params + tower.inputs * 1024)
    pairs = 4.0 * 24 * 1024 * 4096
    assert tower.flops(4096) == 4096 * (linear + pairs + 2.0 * tower.projector / 4)


def test_a_tower_without_sizes_is_left_out_and_said() -> None:
    model = read_hf_config(multimodal("novel", "vision_config", {"depth_map": 3}, 2048), name="m")
    assert model.towers == ()
    assert model.notes == (
        "vision_config does not say its sizes (hidden_size, num_hidden_layers): the vision tower's "
        "weights and time are left out",
    )


def test_a_language_model_whose_sizes_are_left_out_has_those_of_its_family() -> None:
    """Gemma 3 writes only what differs from its configuration class."""
    part = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    model = read_hf_config({"model_type": "gemma3", "text_config": part}, name="m")
    assert model.total_params / 1e9 == pytest.approx(3.88, rel=0.005)
