"""Fits to step logs recover the constants behind them, and calibration files can be read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from calibrate.fits.engine_fit import fit_engine
from costmodels.engines.calibration import load_calibration
from costmodels.engines.profile import load_profile
from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gpus import load_gpu
from scenarios.build.resolve import resolve
from scenarios.commands import app
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from scenarios.validation.folder import find_recordings
from scenarios.validation.logs import serving_logs
from scenarios.validation.system import read_system
from sim.errors import ScenarioError
from tests.properties.checkout import SHARED
from tests.scenarios.validation.samples import LLAMA, write_sample

H200 = load_gpu("h200")
GROUNDTRUTH = SHARED / "data" / "groundtruth"


# Large enough that the GPU, and not the host, sets the pace of a decode.
LARGE = LLAMA | {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured") / "sample"
    return write_sample(folder, "x1", hf_config=LARGE | {"num_hidden_layers": 32})


@pytest.fixture(scope="module")
def calibration(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fit") / "mine.yaml"
    command = ["calibrate", "engine", str(sample), "--out", str(out), "--machine", "a laptop"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "x1:" in result.output
    return out


def test_a_fit_moves_from_wrong_constants_to_those_that_made_the_log(sample: Path) -> None:
    recording = find_recordings(sample)[0]
    logs = serving_logs(recording, read_system(recording))
    profile, truth = load_profile(), load_efficiency(H200)
    wrong = replace(truth, gemm_memory=0.7 * truth.gemm_memory)
    slow = replace(profile, schedule_per_running_s=3 * profile.schedule_per_running_s)
    fit = fit_engine(logs, slow, wrong)
    assert max(fit.errors.values()) < 0.02
    assert fit.profile.schedule_per_running_s == pytest.approx(
        profile.schedule_per_running_s, rel=0.05
    )


def test_a_calibration_can_be_used_and_says_what_it_rests_on(calibration: Path) -> None:
    scenario = parse_scenario(
        {
            "model": "llama-3.1-8b",
            "engine": {"profile": str(calibration)},
            "workload": {"preset": "azure-conv", "num_requests": 20},
        }
    )
    content = yaml.safe_load(calibration.read_text())
    assert content["machine"] == "a laptop"
    assert len(content["inputs"]) == 4
    assert all(len(digest) == 64 for digest in content["inputs"].values())
    cost = resolve(scenario).cost
    assert cost.kernels.efficiency.gemm_memory == content["efficiency"]["gemm_memory"]
    assert content["hash"][:12] in cost.kernels.efficiency.evidence["gemm_memory"].source
    assert simulate(scenario).summary["conditions"]["engine"] == str(calibration)


def test_one_file_of_a_key_stands_for_it(sample: Path, tmp_path: Path) -> None:
    for name in ("x1_steps.csv.gz", "x1_e1_steps.csv.gz", "x1_info.json"):
        command = ["calibrate", "engine", str(sample / name), "--out", str(tmp_path / "a.yaml")]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert "x1:p20" in result.output
    other = tmp_path / "notes.txt"
    other.write_text("no log")
    result = CliRunner().invoke(app, ["calibrate", "engine", str(other), "--out", str(other)])
    assert result.exit_code == 2
    assert "not one of KEY_info.json" in result.output


def test_a_changed_file_is_refused(calibration: Path, tmp_path: Path) -> None:
    text = calibration.read_text()
    changed = tmp_path / "changed.yaml"
    changed.write_text(text.replace("a laptop", "a server"))
    with pytest.raises(ScenarioError, match="changed since it was written"):
        load_calibration(changed, H200)
    with pytest.raises(ScenarioError, match="was measured on H200-SXM, the scenario's GPU is H100"):
        load_calibration(calibration, load_gpu("h100"))
    changed.write_text("format: 7")
    with pytest.raises(ScenarioError, match="not a calibration of format 1"):
        load_calibration(changed, H200)
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml"):
        load_calibration(tmp_path / "nowhere.yaml", H200)


def test_other_inputs_are_another_calibration(calibration: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(calibration.read_text())
    name = next(iter(content["inputs"]))
    content["inputs"][name] = "0" * 64
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(ScenarioError, match="its hash does not fit"):
        load_calibration(other, H200)


def test_steps_beyond_the_fitted_range_are_extrapolated() -> None:
    def shares(prompt: int) -> dict[str, float]:
        lengths = {"input_tokens": {"fixed": prompt}, "output_tokens": {"fixed": 20}}
        workload = {"generator": lengths, "rate_per_s": 0.5, "num_requests": 20}
        scenario = parse_scenario({"model": "llama-3.1-8b", "workload": workload, "bands": False})
        return dict(simulate(scenario).summary["evidence"])

    assert shares(2000) == {"fitted": 1.0}
    assert shares(60_000)["extrapolated"] > 0.3


@pytest.mark.slow
@pytest.mark.skipif(not GROUNDTRUTH.exists(), reason="no shared/data/groundtruth here")
def test_the_built_in_constants_are_what_a_fit_to_the_measured_logs_gives() -> None:
    recordings = [r for r in find_recordings(GROUNDTRUTH) if r.key == "m1"]
    logs = serving_logs(recordings[0], read_system(recordings[0]))[:1]
    profile, efficiency = load_profile(), load_efficiency(H200)
    fit = fit_engine(logs, profile, efficiency)
    assert fit.errors["m1:p10"] < 0.02
    assert fit.efficiency.gemm_memory == pytest.approx(efficiency.gemm_memory, rel=0.05)
    model = logs[0].model
    assert fit.profile.eager_launch_s(model) == pytest.approx(
        profile.eager_launch_s(model), rel=0.1
    )
