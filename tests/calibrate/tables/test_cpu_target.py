"""A processor is a target like a GPU, described in a file beside its tables."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from costmodels.hardware.gpus import load_gpu
from costmodels.tables.store import load_folder
from scenarios.build.builder import build
from scenarios.build.resolve import resolve
from scenarios.calibration.kernels import import_facts, measure
from scenarios.commands import app
from scenarios.files.load import load_scenario, parse_scenario
from sim.errors import ScenarioError
from tests.calibrate.kernel_lines import MACHINE, timing, write_lines

CPU = {
    **{key: value for key, value in MACHINE.items() if key not in ("sms", "cuda")},
    "device": "Some Processor",
    "cpu": "Some Processor",
    "cores": 8,
    "memory_bytes": 64 * 2**30,
}
GEMM = {"n": 4096, "k": 4096}


def lines() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [CPU]
    for m in (1, 16, 256, 4096):
        flops = 2.0 * m * 4096 * 4096
        found.append(timing("gemm", {"m": m, **GEMM}, 1e-3 + flops / 1e12, flops=flops))
    for size in (2**20, 2**24, 2**28):
        shape = {"direction": "d2d", "bytes": size}
        found.append(timing("copy", shape, 1e-5 + size / 20e9))
    return found


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    path = write_lines(tmp_path / "lines.jsonl", lines())
    import_facts([path], out=tmp_path / "cpu", gpu=None)
    return tmp_path / "cpu"


def test_its_peaks_are_what_its_fastest_kernels_reached(folder: Path) -> None:
    gpu = load_gpu(str(folder / "gpu.yaml"))
    assert (gpu.name, gpu.hbm_bytes) == ("Some Processor", 64 * 2**30)
    assert gpu.bf16_flop_per_s == pytest.approx(1e12, rel=0.01)
    assert gpu.hbm_bytes_per_s == pytest.approx(40e9, rel=0.01)
    assert gpu.source_of("bf16_flop_per_s")["label"] == "measured"
    assert all(table.device == gpu for table in load_folder(folder))


def test_a_scenario_runs_on_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "model: qwen3-0.6b\nhardware: {gpu: cpu/gpu.yaml}\n"
        "engine: {operators: {gemm: cpu}, max_num_seqs: 8}\n"
        "workload: {preset: azure-conv, num_requests: 5}\n",
        encoding="utf-8",
    )
    made = resolve(load_scenario(tmp_path / "s.yaml"))
    assert made.gpu.name == "Some Processor"
    sources = {one.family: one.source for one in made.kernels.operators.families}
    assert sources["gemm"] == str(tmp_path / "cpu")
    assert sources["elementwise"] == "fitted"


def test_tables_of_a_processor_are_refused_on_another_device(folder: Path) -> None:
    with pytest.raises(ScenarioError, match="Some Processor, the scenario's GPU is H200-SXM"):
        build(
            parse_scenario(
                {
                    "model": "qwen3-0.6b",
                    "engine": {"operators": str(folder)},
                    "workload": {"preset": "azure-conv", "num_requests": 5},
                }
            )
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\n", "label, source, bf16_flop_per_s, hbm_bytes, hbm_bytes_per_s missing"),
        ("- 1\n", "holds no fields"),
        ("name: x\nspeed: 3\n", "speed is no field"),
        (
            "{name: x, label: best, source: y, bf16_flop_per_s: 1, hbm_bytes: 1, "
            "hbm_bytes_per_s: 1}",
            "label 'best' is not one of measured",
        ),
        (
            "{name: x, label: assumed, source: y, bf16_flop_per_s: fast, hbm_bytes: 1, "
            "hbm_bytes_per_s: 1}",
            "bf16_flop_per_s must be a number above 0, not 'fast'",
        ),
        (
            "{name: x, label: assumed, source: y, bf16_flop_per_s: 0, hbm_bytes: 1, "
            "hbm_bytes_per_s: 1}",
            "bf16_flop_per_s must be a number above 0, not 0",
        ),
    ],
)
def test_a_file_that_describes_no_device_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=rf"gpu\.yaml: .*{message}"):
        load_gpu(str(path))


def test_without_torch_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("scenarios.calibration.kernels.find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=r"pip install 'fleetcast\[calibrate\]'"):
        measure(tmp_path, device="cpu", quick=True, families=None)


def test_a_failed_measurement_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scenarios.calibration.kernels.find_spec", lambda name: True)

    def failed(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", "calibrate.measure"]
        return subprocess.CompletedProcess(command, 2)

    monkeypatch.setattr(subprocess, "run", failed)
    result = CliRunner().invoke(app, ["calibrate", "run", "--out", str(tmp_path / "c")])
    assert result.exit_code == 2
    assert "measuring ended with exit code 2" in result.output


def measured(folder: Path, families: str) -> None:
    options = ("--out", str(folder), "--device", "cpu", "--quick", "--families", families)
    result = CliRunner().invoke(app, ["calibrate", "run", *options])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_this_processor_is_measured_and_simulated(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if find_spec("calibrate.measure") is None:
        pytest.skip("no measuring loop in this checkout")
    measured(tmp_path / "cpu", "gemm,copy")
    gpu = load_gpu(str(tmp_path / "cpu" / "gpu.yaml"))
    assert gpu.bf16_flop_per_s > 1e9
    assert {table.meta.kind for table in load_folder(tmp_path / "cpu")} == {"gemm", "copy"}


@pytest.mark.slow
def test_a_calibration_of_this_processor_serves_a_model_in_float32(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.bench.cpu_loop.shape import LoopModel

    folder, page = tmp_path / "cpu", tmp_path / "out" / "report.html"
    served = ["gemm", "prefill_attention", "decode_attention", "elementwise", "embedding"]
    measured(folder, ",".join([*served, "sampling", "copy"]))
    (tmp_path / "config.json").write_text(json.dumps(LoopModel().hf_config()), encoding="utf-8")
    options = {
        "hardware.gpu": folder / "gpu.yaml",
        "engine.operators": folder,
        "engine.dtype": "float32",
    }
    command = ["simulate", "--model", str(tmp_path / "config.json"), "--preset", "chat-short"]
    command += ["--num-requests", "20", "--rate", "0.2", "--out", str(page.parent)]
    for field, value in options.items():
        command += ["--set", f"{field}={value}"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    summary = json.loads((page.parent / "summary.json").read_text(encoding="utf-8"))
    sources = {one["family"]: one["source"] for one in summary["conditions"]["operators"]}
    assert sources == dict.fromkeys([*served, "sampling"], str(folder))
    assert str(folder) in page.read_text(encoding="utf-8")
