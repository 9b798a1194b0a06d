"""Parameter counts and KV bytes of the built-in models, to the digits they are published with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.layers.gqa import Gqa
from costmodels.model_spec import ModelSpec
from costmodels.models import load_model, model_names
from sim.errors import ScenarioError

# model id, total parameters (billions, as printed), active (same), KV bytes a token in bf16.
ROWS = [
    ("facebook/opt-6.7b", "6.66", None, 524_288),
    ("facebook/opt-13b", "12.85", None, 819_200),
    ("facebook/opt-30b", "29.97", None, 1_376_256),
    ("facebook/opt-66b", "65.7", None, 2_359_296),
    ("facebook/opt-175b", "174.6", None, 4_718_592),
    ("huggyllama/llama-30b", "32.5", None, 1_597_440),
    ("meta-llama/Llama-2-7b-hf", "6.74", None, 524_288),
    ("meta-llama/Llama-2-13b-hf", "13.02", None, 819_200),
    ("meta-llama/Llama-2-70b-hf", "69.0", None, 327_680),
    ("meta-llama/Meta-Llama-3-8B", "8.03", None, 131_072),
    ("meta-llama/Meta-Llama-3-70B", "70.6", None, 327_680),
    ("meta-llama/Llama-3.1-8B", "8.03", None, 131_072),
    ("meta-llama/Llama-3.1-70B", "70.6", None, 327_680),
    ("meta-llama/Llama-3.3-70B-Instruct", "70.6", None, 327_680),
    ("meta-llama/Llama-3.1-405B", "405.9", None, 516_096),
    ("codellama/CodeLlama-34b-hf", "33.7", None, 196_608),
    ("mistralai/Mistral-7B-Instruct-v0.2", "7.24", None, 131_072),
    ("01-ai/Yi-34B", "34.4", None, 245_760),
    ("Qwen/Qwen1.5-72B", "72.3", None, 2_621_440),
    ("Qwen/Qwen2.5-7B", "7.62", None, 57_344),
    ("Qwen/Qwen2.5-14B", "14.8", None, 196_608),
    ("Qwen/Qwen2.5-32B", "32.8", None, 262_144),
    ("Qwen/Qwen2.5-72B", "72.7", None, 327_680),
    ("Qwen/Qwen3-0.6B", "0.60", None, 114_688),
    ("Qwen/Qwen3-1.7B", "1.72", None, 114_688),
    ("Qwen/Qwen3-4B", "4.02", None, 147_456),
    ("Qwen/Qwen3-8B", "8.19", None, 147_456),
    ("Qwen/Qwen3-14B", "14.8", None, 163_840),
    ("Qwen/Qwen3-32B", "32.8", None, 262_144),
    ("mistralai/Mixtral-8x7B-v0.1", "46.7", "12.9", 131_072),
    ("mistralai/Mixtral-8x22B-Instruct-v0.1", "140.6", "39.2", 229_376),
    ("Qwen/Qwen3-30B-A3B", "30.5", "3.35", 98_304),
    ("Qwen/Qwen3-235B-A22B", "235.1", "22.2", 192_512),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "480.2", "35.5", 253_952),
]


def as_printed(params: int, printed: str) -> str:
    """``params`` in billions with as many decimals as ``printed``."""
    decimals = len(printed.partition(".")[2])
    return f"{params / 1e9:.{decimals}f}"


@pytest.mark.parametrize(("model_id", "total", "active", "kv_bytes"), ROWS)
def test_parameters_and_kv_bytes(
    model_id: str, total: str, active: str | None, kv_bytes: int
) -> None:
    model = load_model(model_id)
    assert as_printed(model.total_params, total) == total
    expected_active = active or total
    assert as_printed(model.active_params, expected_active) == expected_active
    assert model.kv_bytes_per_token == kv_bytes


def test_every_built_in_model_has_a_row_here() -> None:
    assert sorted(model_names()) == sorted(row[0] for row in ROWS)


def test_every_built_in_model_says_how_it_is_known() -> None:
    for name in model_names():
        model = load_model(name)
        assert model.confidence in ("V,C", "R,C")
        assert model.source


def test_llama_8b_exactly() -> None:
    # 32 layers of q, k, v, o, gate, up, down and two norms; two tables; one last norm.
    layer = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336 + 2 * 4096
    assert load_model("llama-3.1-8b").total_params == 32 * layer + 2 * 128256 * 4096 + 4096


@pytest.mark.parametrize(
    "spelling", ["llama-3.1-8b", "LLAMA-3.1-8B", "meta-llama/Llama-3.1-8B", "Llama-3.1-8B-Instruct"]
)
def test_aliases(spelling: str) -> None:
    assert load_model(spelling).name == "meta-llama/Llama-3.1-8B"


def test_unknown_name_lists_near_matches() -> None:
    with pytest.raises(ScenarioError, match=r"unknown model 'llama-3\.1-9b'.*Llama-3\.1-8B"):
        load_model("llama-3.1-9b")


def test_hopeless_name_lists_what_is_known() -> None:
    with pytest.raises(ScenarioError, match=r"known: .*Qwen/Qwen3-8B"):
        load_model("zzzzzzzzzzzz")


def test_model_from_file_or_folder(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 64,
    }
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    by_folder, by_file = load_model(folder), load_model(str(folder / "config.json"))
    assert by_folder == by_file
    assert isinstance(by_folder, ModelSpec)
    assert by_folder.name == "tiny"
    assert by_folder.mixers == ((Gqa(heads=4, kv_heads=4, head_dim=16), 2),)
