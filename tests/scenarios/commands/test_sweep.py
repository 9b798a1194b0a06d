"""``fleetcast sweep`` as a user runs it: interrupted, resumed, and its output."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner, Result

from scenarios.commands import app
from scenarios.experiments.sweep.grid import make_grid
from scenarios.experiments.sweep.results import RESULTS_FILE
from scenarios.experiments.sweep.sweep_file import read_sweep
from scenarios.schema.sweep import PlotSpec, RandomAxes, SweepFile
from tests.properties.checkout import CHECKOUT
from tests.scenarios.experiments.sweep.samples import RATES, SCENARIO, run, write_sweep_file

LONGER: dict[str, Any] = {
    "scenario": {**SCENARIO, "workload": {"preset": "azure-conv", "num_requests": 1500}},
    "axes": {"workload.rate_per_s": {"from": 4, "to": 14, "steps": 11}},
}


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def started(file: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scenarios.commands", "sweep", str(file), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--jobs", "2"], cwd=CHECKOUT, text=True, stderr=subprocess.PIPE
    )


def keys_of(out: Path) -> list[str]:
    path = out / RESULTS_FILE
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["key"] for line in lines if line.endswith("\n")]


@pytest.mark.parametrize(
    "stop", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_stopped_in_the_middle_it_repeats_no_finished_point(tmp_path: Path, stop: int) -> None:
    file, out = write_sweep_file(tmp_path, LONGER), tmp_path / "out"
    process = started(file, out)
    while len(keys_of(out)) < 2:
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(stop)
    _, said = process.communicate(timeout=30)
    done = keys_of(out)
    assert 2 <= len(done) < 11
    if stop == signal.SIGTERM:
        assert process.returncode == 143
        assert f"stopped: {len(done)} of 11 runs are kept in {out}" in said
        assert len(pd.read_parquet(out / "sweep.parquet")) == len(done)
    again = started(file, out)
    _, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert f"{len(done)} done before in {out}" in said
    assert keys_of(out)[: len(done)] == done
    assert len(set(keys_of(out))) == len(keys_of(out)) == 11  # each was simulated once
    table = pd.read_parquet(out / "sweep.parquet")
    pd.testing.assert_frame_equal(table, run(file, tmp_path / "in one go"))


def test_it_says_what_it_does_and_where_it_is(tmp_path: Path) -> None:
    file = write_sweep_file(tmp_path, {**RATES, "constraints": ["rate_per_s < 10"]})
    said = invoke(file, "--out", tmp_path / "out", "--jobs", 1)
    assert said.exit_code == 0, said.output
    assert "2 points, 2 runs; constraints leave out 1 point; results in" in said.stderr
    content = json.loads(invoke(file, "--out", tmp_path / "out", "--format", "json").stdout)
    assert content["axes"][0] == {
        "key": "workload.rate_per_s",
        "kind": "grid",
        "values": [4, 8, 16],
        "draws": None,
        "leads": True,
    }
    assert content["left_out"] == {"rate_per_s < 10": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cluster", "slurm"), "--cluster slurm: not a cluster; give ray"),
        (("--format", "xml"), "neither text nor json"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    said = invoke(write_sweep_file(tmp_path, RATES), "--out", tmp_path / "out", *options)
    assert said.exit_code == 2
    assert words in said.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    for text, words in (
        ("[1]", "a sweep is a mapping"),
        ("scenario: [", "not valid YAML"),
        ("axes: {seed: [1]}", "scenario: required, but not given"),
    ):
        file = tmp_path / "bad.yaml"
        file.write_text(text)
        said = invoke(file, "--out", tmp_path / "out")
        assert said.exit_code == 2
        assert words in said.stderr
    assert "cannot read sweep" in invoke(tmp_path / "none.yaml").stderr


@pytest.mark.parametrize(("cluster", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_cluster_asks_for_its_package(
    tmp_path: Path, cluster: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    file = write_sweep_file(tmp_path, RATES)
    said = invoke(file, "--out", tmp_path / "out", "--cluster", cluster)
    assert said.exit_code == 2
    assert f"pip install 'fleetcast[{cluster}]'" in said.stderr


def test_a_new_sweep_runs_and_has_every_field(tmp_path: Path) -> None:
    scenario, file = tmp_path / "mine.yaml", tmp_path / "my_sweep.yaml"
    scenario.write_text(yaml.safe_dump(SCENARIO))
    said = CliRunner().invoke(app, ["scenario", "init-sweep", str(file), "--scenario", "mine.yaml"])
    assert f"run it with: fleetcast sweep {file}" in said.stdout
    text = file.read_text()
    for name in (*SweepFile.model_fields, *RandomAxes.model_fields, *PlotSpec.model_fields):
        assert f"{name}:" in text
    assert len(make_grid(read_sweep(file)).combinations) == 20
    # Every field that is commented out is right as it stands, too.
    live = re.sub(r"^# (?=( *- )?[ a-z_.]+:| *- )", "", text, flags=re.MULTILINE)
    grid = make_grid(read_sweep(write_text(tmp_path / "live.yaml", live)))
    assert grid.points[0].scenario.workload.num_requests == 2000
    assert len(grid.axes) == 5


def write_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_shipped_sweep_is_right(tmp_path: Path) -> None:
    file = CHECKOUT / "scenarios" / "sweeps" / "cheapest_gpu.yaml"
    grid = make_grid(read_sweep(file))
    assert len(grid.combinations) == 128
    assert grid.refused == 0
    assert {point.scenario.prices is not None for point in grid.points} == {True}
