"""Configs that users had in hand: parameters, bytes of weights and state, blocks, notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scenarios.commands import app
from tests.properties.checkout import SHARED

FIELD = SHARED / "cases" / "field"
GIB = 2**30


def case(name: str) -> Path:
    """The folder of a case; skips without it."""
    found = sorted(FIELD.glob(f"{name}-*"))
    if not found:
        pytest.skip(f"no cases in {FIELD}; set FLEETCAST_SHARED to their folder")
    return found[0]


def memory(path: Path, *options: str) -> dict[str, Any]:
    """What `fleetcast memory` says of a config."""
    command = ["memory", "--model", str(path), *options, "--format", "json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.output)
    return facts


def test_a_cache_that_a_checkpoint_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case("c01"))
    command = ["scenario", "from-vllm", "vllm serve ./config.json", "--gpu", "B200"]
    sizes = ["--input-tokens", "10", "--output-tokens", "10", "--rate", "1"]
    result = CliRunner().invoke(app, [*command, *sizes])
    assert "142,713 KV blocks of 16 tokens" in result.output
    assert "fp8: the checkpoint asks for it" in result.output
    assert memory(Path("config.json"), "--gpu", "B200")["growing_state_bytes_per_token"] == 73_728


def test_a_hybrids_blocks_hold_a_state() -> None:
    """The log of vLLM's own start says an attention block of 528 tokens."""
    assert memory(case("c20") / "config.json", "--gpu", "H100")["block_size"] == 528


def test_a_llama_in_shape() -> None:
    facts = memory(case("c32") / "config.json", "--gpu", "H100")
    assert facts["total_params"] / 1e9 == pytest.approx(14.7, rel=0.01)
    assert facts["growing_state_bytes_per_token"] == 204_800


def test_a_hybrid_with_experts() -> None:
    facts = memory(case("c34") / "config.json", "--gpu", "H100")
    assert facts["total_params"] / 1e9 == pytest.approx(32.2, rel=0.01)
    assert facts["growing_state_bytes_per_token"] == 16_384


def test_a_name_that_says_more_than_the_file() -> None:
    facts = memory(next(case("c36").glob("*.json")), "--gpu", "B300", "--tp", "8")
    assert any("its name says nvfp4" in note for note in facts["notes"])


def test_a_tower_is_among_the_weights() -> None:
    """vLLM's log says 44.76 GiB."""
    options = ["--set", "kv.gpu_memory_utilization=0.95", "--set", "engine.max_model_len=16000"]
    facts = memory(case("c39") / "config.json", "--gpu", "H100", *options)
    assert facts["weight_bytes"] / GIB == pytest.approx(44.76, rel=0.003)
