"""Images of requests: tokens of their prompts, and the time of the tower that makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodels.models.catalog import load_model
from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.schema import Scenario
from sim.errors import ScenarioError
from sim.shape import StepShape

TEXT = {
    "model_type": "qwen3",
    "num_hidden_layers": 8,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
}
VISION = {"model_type": "qwen3_vl", "out_hidden_size": 2048, "num_position_embeddings": 2304}


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    whole = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": VISION}
    path.write_text(json.dumps(whole))
    return str(path)


def scenario(model: str, images: dict[str, int] | None, **engine: Any) -> Scenario:
    """Prompts of 100 tokens of text, with images."""
    generator = {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 10}, "images": images}
    return Scenario.model_validate(
        {
            "model": model,
            "hardware": {"gpu": "H100"},
            "engine": engine,
            "workload": {"generator": generator, "rate_per_s": 1, "num_requests": 5},
        }
    )


TWO = {"width": 512, "height": 320, "per_request": 2}


def test_images_are_tokens_of_the_prompt(config: str) -> None:
    """Patches of 16 pixels, four to a token: 16 x 10 tokens each."""
    table = build_table(scenario(config, TWO))
    assert set(table.prompt_tokens) == {100 + 2 * 160}
    assert set(build_table(scenario(config, None)).prompt_tokens) == {100}


def test_the_towers_work_is_paid_with_the_tokens_of_prompts(config: str) -> None:
    tower = load_model(config).towers[0]
    with_images, without = (build(scenario(config, images)) for images in (TWO, None))
    work = 2 * tower.flops(640) / 420
    assert with_images.replica.model.encoder_flops == pytest.approx(work)
    assert without.replica.model.encoder_flops == 0
    prompt = StepShape(prefill_seqs=1, prefill_tokens=420, prefill_pairs=420 * 421 // 2, logits=1)
    priced, plain = (one.replica.cost.price(prompt).gpu_ns for one in (with_images, without))
    peak_s = 420 * work / 989e12
    assert peak_s < (priced - plain) / 1e9 < 3 * peak_s
    assert any("512 x 320 pixels is 160 tokens" in note for note in with_images.notes)


def test_towers_can_be_left_out(config: str) -> None:
    whole, text = (
        build(scenario(config, None, language_model_only=only)).replica.memory
        for only in (False, True)
    )
    tower = load_model(config).towers[0]
    assert whole.weight_bytes - text.weight_bytes == 2 * tower.params
    assert any(entry.what.startswith("encoder cache") for entry in whole.workspace)
    assert not any(entry.what.startswith("encoder cache") for entry in text.workspace)


@pytest.mark.parametrize(
    ("model", "engine", "message"),
    [
        ("Qwen/Qwen3-8B", {}, "has no tower of images"),
        (None, {"language_model_only": True}, "language_model_only loads none"),
    ],
)
def test_images_need_a_tower(
    config: str, model: str | None, engine: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        build(scenario(model or config, TWO, **engine))
