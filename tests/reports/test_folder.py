"""Reading a result folder: existing files are read, and missing ones are named."""

import json
from pathlib import Path

import pandas as pd
import pytest

from reports.folder import (
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    read_requests,
    read_scenario,
    read_steps,
    read_summary,
)
from sim.errors import ScenarioError
from tests.reports.sample import write_sample


def test_reads_what_a_run_left(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "result", requests=40, rejected=3)
    assert read_summary(folder)["requests"]["rejected"] == 3
    assert len(read_requests(folder)) == 40
    assert set(REQUEST_COLUMNS) <= set(read_requests(str(folder)).columns)
    assert set(STEP_COLUMNS) <= set(read_steps(folder).columns)
    assert read_scenario(folder).startswith("model: ")


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no such folder"):
        read_summary(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("summary.json", read_summary),
        ("requests.parquet", read_requests),
        ("steps.parquet", read_steps),
        ("scenario.yaml", read_scenario),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, read: object) -> None:
    folder = write_sample(tmp_path, requests=5, rejected=0)
    (folder / name).unlink()
    assert callable(read)
    with pytest.raises(ScenarioError, match=rf"{name}: missing"):
        read(folder)


def test_bad_json(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"schema": ')
    with pytest.raises(ScenarioError, match=r"summary\.json: not valid JSON"):
        read_summary(tmp_path)


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        ([], "expected an object"),
        ({}, "no 'schema' key"),
        ({"schema": "fleetcast.result/2", "fleetcast_version": "9"}, "written by fleetcast 9"),
        ({"schema": "fleetcast.result/1", "figures": [{}]}, "'figures' must be a list"),
    ],
)
def test_another_schema(tmp_path: Path, summary: object, message: str) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ScenarioError, match=message):
        read_summary(tmp_path)


def test_a_table_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "steps.parquet").write_text("no parquet")
    with pytest.raises(ScenarioError, match="not a readable Parquet file"):
        read_steps(tmp_path)


def test_folders_of_older_versions_have_no_adapters(tmp_path: Path) -> None:
    columns = {name: [0] for name in REQUEST_COLUMNS}
    del columns["adapters_ns"]
    pd.DataFrame(columns).to_parquet(tmp_path / "requests.parquet")
    assert read_requests(tmp_path)["adapters_ns"].tolist() == [0]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    pd.DataFrame({"replica": [0]}).to_parquet(tmp_path / "steps.parquet")
    with pytest.raises(ScenarioError, match=r"lacks the columns plan_s, gpu_end_s"):
        read_steps(tmp_path)
