"""Parameter counts and KV bytes of the built-in models, to the published digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.models.catalog import load_model, model_names
from costmodels.models.layers.gqa import Gqa
from costmodels.models.spec import ModelSpec
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

# Other kinds of layers: total and active billions as printed, state bytes a token that grow.
# Kimi-K3: 2785 and 111 with both gates of full rank; the decay gate of the checkpoint is not.
OTHER_KINDS = [
    ("mistralai/Mistral-7B-v0.1", 7.24, None, 0),
    ("bigscience/bloom", 176.2, None, 4_014_080),
    ("tiiuae/falcon-180B", 178.6, None, 163_840),
    ("google/gemma-2-9b", 9.24, None, 344_064 // 2),
    ("google/gemma-2-27b", 27.2, None, 376_832 // 2),
    ("google/gemma-3-4b-it", 3.88, None, 139_264 // 34 * 5),
    ("google/gemma-3-12b-it", 11.8, None, 393_216 // 48 * 8),
    ("google/gemma-3-27b-it", 27.0, None, 507_904 // 62 * 10),
    ("openai/gpt-oss-20b", 20.9, 4.2, 24_576),
    ("openai/gpt-oss-120b", 116.8, 5.7, 36_864),
    ("zai-org/GLM-4.5", 352.8, 33.6, 376_832),
    ("zai-org/GLM-4.5-Air", 106.9, 13.4, 188_416),
    ("MiniMaxAI/MiniMax-M1-80k", 456.1, 48.4, 40_960),
    ("MiniMaxAI/MiniMax-M2", 228.7, 11.0, 253_952),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79.7, 3.9, 24_576),
    ("Qwen/Qwen3.5-397B-A17B", 397, 17, 30_720),
    ("deepseek-ai/DeepSeek-V2-Lite", 15.7, 2.66, 31_104),
    ("deepseek-ai/DeepSeek-V2", 235.7, 21.4, 69_120),
    ("deepseek-ai/DeepSeek-V3", 671.0, 37.6, 70_272),
    ("deepseek-ai/DeepSeek-V3.2", 671.9, 38.4, 70_272 + 15_616),
    ("moonshotai/Kimi-K2-Instruct", 1026, 32.9, 70_272),
    ("moonshotai/Kimi-K2-Thinking", 1026, 32.9, 70_272),
    ("zai-org/GLM-5", 743.9, 41.8, 89_856 + 78 * 256),
    ("zai-org/GLM-5.2", 743.9, 41.8, 89_856 + 21 * 256),
    ("deepseek-ai/DeepSeek-V4-Flash", 284.3, 13.8, 6_880),
    ("deepseek-ai/DeepSeek-V4-Pro", 1572.9, 49.7, 9_848),
    ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 49.1, 3.5, 8_064),
    ("moonshotai/Kimi-K3", 2785, 105, 27_648),
    ("MiniMaxAI/MiniMax-M3", None, None, 122_880 + 57 * 256),
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


@pytest.mark.parametrize(("model_id", "total", "active", "state_bytes"), OTHER_KINDS)
def test_other_kinds(
    model_id: str, total: float | None, active: float | None, state_bytes: int
) -> None:
    model = load_model(model_id)
    assert model.growing_state_bytes_per_token == state_bytes
    if total is not None:
        assert model.total_params / 1e9 == pytest.approx(total, rel=0.005)
    if active is not None:
        assert model.active_params / 1e9 == pytest.approx(
            active, rel=0.025 if active == 17 else 0.015
        )


def test_modules_of_multi_token_prediction_are_counted_only_where_asked_for() -> None:
    pro = load_model("deepseek-v4-pro")
    assert pro.params(with_mtp=True).total == pytest.approx(1.60e12, rel=0.005)
    glm = load_model("glm-4.5")
    assert 3.5e9 < glm.params(with_mtp=True).total - glm.total_params < 4.5e9


def test_every_built_in_model_has_a_row_here() -> None:
    assert sorted(model_names()) == sorted(row[0] for row in (*ROWS, *OTHER_KINDS))


def test_every_built_in_model_says_how_it_is_known() -> None:
    for name in model_names():
        model = load_model(name)
        assert model.confidence in ("V", "V,C", "R,C", "V(part)", "V(part),C")
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
    with pytest.raises(ScenarioError, match=r"known: models of .*llama, .*qwen"):
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
