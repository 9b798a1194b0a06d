"""`calibrate vllm` and `calibrate observe` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrate.servers.client import Answer
from calibrate.servers.design import closed_phases
from calibrate.servers.observe import Observed, save_observation
from scenarios.commands import app
from tests.calibrate.servers.fake_server import FakeEngine, running

SERVER = ["--model", "llama-3.1-8b", "--gpu", "H200"]


def observation(path: Path) -> Path:
    """Write answers of a made-up server: 10 ms, 50 us a prompt token, 8 ms a token."""
    found = []
    for phase in closed_phases(8192, 16):
        answers = [
            Answer(
                sent_s=float(start),
                prompt_tokens=prompt,
                output_tokens=output,
                first_s=start + 0.01 + 50e-6 * prompt,
                last_s=start + 0.01 + 50e-6 * prompt + 0.008 * (output - 1),
            )
            for start, (prompt, output) in zip(
                np.arange(len(phase.lengths)), phase.lengths, strict=True
            )
        ]
        found.append(Observed(phase=phase, answers=tuple(answers)))
    save_observation(found, {}, path)
    return path


def test_an_observation_becomes_a_calibration_that_a_scenario_uses(tmp_path: Path) -> None:
    seen, out = observation(tmp_path / "seen.json"), tmp_path / "mine.yaml"
    command = ["calibrate", "observe", *SERVER, "--seen", str(seen), "--out", str(out)]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "held-out errors are" in shown.output
    assert "API server, a request" in shown.output
    facts = json.loads(CliRunner().invoke(app, [*command, "--format", "json"]).stdout)
    assert {row["what"] for row in facts["errors"]} >= {"prompt phases", "decode phases", "all"}
    load = ["--rate", "2", "--num-requests", "20", "--input-tokens", "200", "--output-tokens", "20"]
    options = ["--set", f"engine.profile={out}", "--set", "engine.api_server_count=1"]
    used = CliRunner().invoke(app, ["simulate", *SERVER, *load, *options])
    assert used.exit_code == 0, used.output
    assert "api server" in used.output


def test_nothing_is_sent_before_the_user_agrees(tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    engine = FakeEngine(fixed_s=0, step_s=0.001)
    with running(engine) as url:
        command = ["calibrate", "observe", *SERVER, "--url", url, "--seen", str(seen)]
        planned = CliRunner().invoke(app, [*command, "--dry-run"])
        refused = CliRunner().invoke(app, command, input="n\n")
    assert planned.exit_code == 0
    assert "will be sent" in planned.output
    assert refused.exit_code == 1
    assert engine.bodies == []
    assert not seen.exists()


def test_a_server_with_other_models_is_named(tmp_path: Path) -> None:
    with running(FakeEngine()) as url:
        command = ["calibrate", "observe", *SERVER, "--url", url, "--yes"]
        shown = CliRunner().invoke(app, [*command, "--seen", str(tmp_path / "seen.json")])
    assert shown.exit_code == 2
    assert "it serves tiny" in shown.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grid", "huge"], "neither of compact, full"),
        (["--measured"], "no such folder"),
        (["--engine-args", "{"], "engine arguments"),
    ],
)
def test_vllm_says_what_is_wrong(options: list[str], message: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "none", tmp_path / "mine.yaml"
    command = ["calibrate", "vllm", "--model", "m", "--folder", str(folder), "--out", str(out)]
    shown = CliRunner().invoke(app, [*command, *options])
    assert shown.exit_code == 2
    assert message in shown.output
