"""Running a sweep gives one table in any order, repeats no run, and keeps failures as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from scenarios.experiments.sweep import run as sweep_run
from scenarios.experiments.sweep.grid import make_grid
from scenarios.experiments.sweep.results import RESULTS_FILE, Result, Results, row_of
from scenarios.experiments.sweep.sweep_file import read_sweep
from scenarios.files.identity import result_address
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError
from tests.properties.scenarios import azure_trace, small
from tests.scenarios.experiments.sweep.samples import (
    RATES,
    SCENARIO,
    deadly_sweep,
    run,
    write_sweep_file,
)

pytestmark = pytest.mark.usefixtures("trusts_tmp_path")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The rate of each simulation there was, as they come."""
    rates: list[float | None] = []

    def counted(scenario: Any) -> Any:
        rates.append(scenario.workload.rate_per_s)
        return simulate(scenario)

    monkeypatch.setattr(sweep_run, "simulate", counted)
    return rates


def test_every_axis_and_figure_is_a_column(tmp_path: Path) -> None:
    values = {
        **RATES,
        "replications": 2,
        "zipped": [{"hardware.gpu": ["H100"], "kv.block_size": [32]}],
    }
    table = run(write_sweep_file(tmp_path, values), tmp_path / "out")
    assert table["workload.rate_per_s"].tolist() == [4, 4, 8, 8, 16, 16]
    assert table["seed"].tolist() == [0, 1] * 3
    assert table["point"].tolist() == [0, 0, 1, 1, 2, 2]
    assert set(table["hardware.gpu"]) == {"H100"}
    assert set(table["kv.block_size"]) == {32}
    assert set(table["status"]) == {"done"}
    scenario = {**SCENARIO, "hardware": {"gpu": "H100"}, "kv": {"block_size": 32}, "seed": 1}
    scenario["workload"] = {**SCENARIO["workload"], "rate_per_s": 16}
    alone = simulate(parse_scenario({**scenario, "bands": False}))
    last = table.iloc[-1]
    for figure in alone.summary["figures"]:
        name, statistic = figure["name"], figure["statistic"]
        cell = last[name if statistic == "value" else f"{name}.{statistic}"]
        assert (None if pd.isna(cell) else cell) == figure["value"]
    accounts = alone.summary["e2e_accounts_s"]
    assert {k: last[f"e2e_account.{k}"] for k in accounts} == accounts
    assert last["goodput_per_gpu"] == alone.figure("goodput")
    assert last["requests.finished"] == alone.summary["requests"]["finished"]


def test_in_any_number_of_processes_the_table_is_the_same(tmp_path: Path) -> None:
    file = write_sweep_file(tmp_path, RATES)
    run(file, tmp_path / "one", jobs=1)
    run(file, tmp_path / "two", jobs=2)
    bytes_of = [(tmp_path / name / "sweep.parquet").read_bytes() for name in ("one", "two")]
    assert bytes_of[0] == bytes_of[1]


def test_what_is_done_is_not_done_again(tmp_path: Path, simulated: list[float | None]) -> None:
    first = run(write_sweep_file(tmp_path, RATES), tmp_path / "out")
    assert simulated == [4, 8, 16]
    again = run(write_sweep_file(tmp_path, RATES), tmp_path / "out")
    assert len(simulated) == 3
    pd.testing.assert_frame_equal(first, again)
    more = {**RATES, "axes": {"workload.rate_per_s": [2, 4, 8, 16]}}
    assert len(run(write_sweep_file(tmp_path, more), tmp_path / "out")) == 4
    assert simulated == [4, 8, 16, 2]


def test_after_a_stop_in_the_middle_only_the_rest_is_done(
    tmp_path: Path, simulated: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_sweep_file(tmp_path, RATES)

    def stopped(result: Any) -> Any:
        if result.scenario.workload.rate_per_s == 8:
            raise KeyboardInterrupt
        return row_of(result)

    monkeypatch.setattr(sweep_run, "row_of", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(file, tmp_path / "out")
    part = pd.read_parquet(tmp_path / "out" / "sweep.parquet")
    assert part["workload.rate_per_s"].tolist() == [4]
    monkeypatch.setattr(sweep_run, "row_of", row_of)
    table = run(file, tmp_path / "out")
    assert simulated == [4, 8, 8, 16]
    pd.testing.assert_frame_equal(table, run(file, tmp_path / "other"))


def test_a_line_cut_short_is_not_read_and_harms_no_other(
    tmp_path: Path, simulated: list[float | None]
) -> None:
    file, out = write_sweep_file(tmp_path, RATES), tmp_path / "out"
    run(file, out)
    lines = (out / RESULTS_FILE).read_text().splitlines(keepends=True)
    (out / RESULTS_FILE).write_text("".join(lines[:2]) + lines[2][:100])
    run(file, out)
    assert simulated == [4, 8, 16, 16]
    run(file, out)
    assert len(simulated) == 4


def test_points_that_cannot_be_run_are_rows_with_their_message(
    tmp_path: Path, simulated: list[float | None]
) -> None:
    values = {
        **RATES,
        "axes": {"model": ["llama-3.1-8b", "llama-3.1-405b"], "pool.replicas": [1, 0]},
    }
    file = write_sweep_file(tmp_path, values)
    table = run(file, tmp_path / "out")
    assert table["status"].tolist() == ["done", "refused", "failed", "refused"]
    assert "does not fit H200" in table["error"][2]
    assert "rates.yaml, line" in table["error"][1]
    assert "pool.replicas: must be" in table["error"][1]
    assert pd.isna(table["ttft.mean"][2])
    run(file, tmp_path / "out")
    assert len(simulated) == 2  # it would fail again
    run(file, tmp_path / "out", retry_failed=True)
    assert len(simulated) == 3


def test_a_fault_of_the_simulator_is_a_row_too_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_sweep_file(tmp_path, RATES)

    def broken(result: Any) -> Any:
        if result.scenario.workload.rate_per_s == 8:
            raise IndexError("a fault of ours")
        return row_of(result)

    monkeypatch.setattr(sweep_run, "row_of", broken)
    table = run(file, tmp_path / "out")
    assert table["status"].tolist() == ["done", "lost", "done"]
    assert table["error"][1].startswith("the simulator broke: IndexError: a fault of ours")
    monkeypatch.setattr(sweep_run, "row_of", row_of)
    assert set(run(file, tmp_path / "out")["status"]) == {"done"}


def test_a_worker_killed_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    file, mark = deadly_sweep(tmp_path)
    table = run(file, tmp_path / "out", jobs=2)
    assert mark.exists()
    assert set(table["status"]) == {"done"}
    pd.testing.assert_frame_equal(table, run(file, tmp_path / "again"))


def test_keep_leaves_the_folder_of_every_run(tmp_path: Path) -> None:
    file = write_sweep_file(tmp_path, RATES)
    run(file, tmp_path / "out")
    table = run(file, tmp_path / "out", keep=True)  # done before, but its folders were not kept
    for key, p99 in zip(table["key"], table["ttft.p99"], strict=True):
        folder = tmp_path / "out" / "runs" / key
        summary = json.loads((folder / "summary.json").read_text())
        figures = {(f["name"], f["statistic"]): f["value"] for f in summary["figures"]}
        assert figures["ttft", "p99"] == p99
        assert len(pd.read_parquet(folder / "requests.parquet")) == 60


def test_two_sweeps_do_not_write_into_one_folder(tmp_path: Path) -> None:
    results = Results(tmp_path)
    with pytest.raises(ScenarioError, match="another sweep is writing"):
        Results(tmp_path)
    results.add(Result(key="a", status="done", row={"x": 1.5}))
    results.close()
    again = Results(tmp_path)
    again.close()
    assert again.known["a"].row == {"x": 1.5}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"best": "goodpt"}, "best: no column 'goodpt'; did you mean 'goodput'"),
        ({"require": "attainmnt > 0.9"}, "no attainmnt here; did you mean 'attainment'"),
        ({"plots": [{"figure": "ttft.p99", "x": "seed"}]}, "plots[0].x: no axis 'seed'"),
    ],
)
def test_a_column_that_is_not_there_is_told_after_the_first_run(
    tmp_path: Path, simulated: list[float | None], fields: Any, words: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(write_sweep_file(tmp_path, {**RATES, **fields}), tmp_path / "out")
    assert words in str(caught.value)
    assert len(simulated) == 1


def address(values: dict[str, Any]) -> str:
    return result_address(parse_scenario(values))


def test_an_address_is_of_what_is_simulated_not_of_how_it_was_written() -> None:
    assert address(small()) == address({**small(), "engine": {"tensor_parallel_size": 1}})
    others = ({"seed": 1}, {"kv": {"block_size": 32}}, {"engine": {"scheduler": "sjf"}})
    assert len({address(small()), *(address({**small(), **one}) for one in others)}) == 4


def test_every_file_a_scenario_names_is_part_of_its_address(tmp_path: Path) -> None:
    """A trace, a device, a calibration, a policy and what it imports: by content, not by place."""
    trace = azure_trace(tmp_path / "trace.csv", 8)
    policy = tmp_path / "mine.py"
    policy.write_text("from policies.fcfs import fcfs as mine\n")
    gpu, profile = tmp_path / "gpu.yaml", tmp_path / "calibration.yaml"
    gpu.write_text("name: x\n")
    profile.write_text("format: 1\n")
    files = {"trace": trace, "policy": policy, "gpu": gpu, "profile": profile}

    def named(folder: Path) -> dict[str, Any]:
        return {
            "model": "llama-3.1-8b",
            "hardware": {"gpu": str(folder / gpu.name)},
            "engine": {
                "profile": str(folder / profile.name),
                "scheduler": f"{folder / policy.name}:mine",
            },
            "workload": {"trace": {"path": str(folder / trace.name)}},
        }

    other = tmp_path / "other"
    other.mkdir()
    for file in files.values():
        (other / file.name).write_bytes(file.read_bytes())
    before = address(named(tmp_path))
    assert address(named(other)) == before
    seen = {before}
    for file in files.values():
        (other / file.name).write_text(file.read_text() + "\n")
        seen.add(address(named(other)))
    (other / "helper.py").write_text("x = 1\n")
    seen.add(address(named(other)))
    assert len(seen) == 6


def test_a_folder_of_tables_is_part_of_the_address(tmp_path: Path) -> None:
    from costmodels.hardware.gpus import load_gpu
    from costmodels.tables.store import own_folder

    for file in own_folder(load_gpu("H200")).glob("gemm*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = {**small(), "engine": {"operators": {"gemm": str(tmp_path)}}}
    before = address(values)
    (tmp_path / "more.parquet").write_bytes(b"x")
    assert address(values) != before


def test_a_worker_with_other_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = make_grid(read_sweep(write_sweep_file(tmp_path, RATES)))
    monkeypatch.setattr("scenarios.files.identity.code_address", lambda: "of another version")
    with pytest.raises(ScenarioError, match="another fleetcast"):
        sweep_run.run_one(grid.points[0], keep=None)


def test_sweep_yaml_of_the_folder_is_the_file(tmp_path: Path) -> None:
    file = write_sweep_file(tmp_path, RATES)
    run(file, tmp_path / "out")
    assert yaml.safe_load((tmp_path / "out" / "sweep.yaml").read_text()) == RATES
