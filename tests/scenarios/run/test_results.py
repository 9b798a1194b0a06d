"""Results: how scenarios are saved, and the files that a run leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from scenarios.files.dump import dump_scenario, save_scenario
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from tests.properties.scenarios import AZURE_HEADER, SHIPPED, azure_trace, results, small, write


def test_saved_scenario_says_only_what_was_given_and_reproduces_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "given.yaml", small() | {"seed": 3, "slo": {"ttft_s": 0.5}})
    scenario = load_scenario(path, ["pool.replicas=2"])
    save_scenario(scenario, tmp_path / "saved.yaml")
    saved = yaml.safe_load((tmp_path / "saved.yaml").read_text())
    assert saved == small() | {"seed": 3, "slo": {"ttft_s": 0.5}, "pool": {"replicas": 2}}
    again = load_scenario(tmp_path / "saved.yaml")
    assert again == scenario
    assert results(simulate(again)) == results(simulate(scenario))


@pytest.mark.usefixtures("trusts_tmp_path")
def test_paths_hold_wherever_the_scenario_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the file when read; absolute in a result folder; relative when saved beside."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    azure_trace(tmp_path / "a" / "trace.csv", 20)
    write(tmp_path / "a" / "mine.py", "from policies.fcfs import fcfs as my_fcfs\n")
    values = {
        "model": "meta-llama/Llama-3.1-8B",
        "workload": {"trace": {"path": "trace.csv"}},
        "engine": {"scheduler": "mine:my_fcfs"},
    }
    write(tmp_path / "a" / "s.yaml", values)
    monkeypatch.chdir(tmp_path)
    first = simulate(load_scenario("a/s.yaml"))
    first.write("result")
    save_scenario(first.scenario, Path("a/saved.yaml"))
    save_scenario(first.scenario, Path("b/saved.yaml"))
    monkeypatch.chdir(tmp_path / "b")
    for path in ("../result/scenario.yaml", "../a/saved.yaml", "saved.yaml"):
        again = simulate(load_scenario(path))
        assert again.summary["figures"] == first.summary["figures"]
        assert again.summary["conditions"]["scheduler"].endswith(":my_fcfs")
        pd.testing.assert_frame_equal(again.requests, first.requests)
    assert yaml.safe_load((tmp_path / "a" / "saved.yaml").read_text()) == values


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_scenario_runs_and_its_dump_says_the_same(path: Path) -> None:
    scenario = load_scenario(path, ["warmup_s=0", "workload.num_requests=30"])
    assert simulate(scenario).summary["requests"]["finished"] == 30
    assert parse_scenario(yaml.safe_load(dump_scenario(scenario))) == scenario


def test_result_in_python() -> None:
    result = simulate(parse_scenario(small() | {"slo": {"ttft_s": 1}}))
    assert result.requests["status"].eq("finished").all()
    assert result.steps["steps"].sum() == result.summary["run"]["steps"]
    assert result.figure("ttft", "p50") == pytest.approx(
        result.requests["ttft_s"].quantile(0.5), 0.2
    )
    assert len(result.token_times_s(0)) == 5
    assert result.summary["slo"]["attainment"] == 1
    with pytest.raises(KeyError, match="no figure ttft p12"):
        result.figure("ttft", "p12")


def test_count_is_of_the_population() -> None:
    result = simulate(parse_scenario(small() | {"kv": {"num_gpu_blocks": 8}, "horizon_s": 1.5}))
    requests = result.summary["requests"]
    assert requests["arrived"] > requests["finished"] or requests["finished"] < 10
    for figure in result.summary["figures"]:
        population, count = figure["population"], figure["count"]
        if population.startswith(("measured window", "time ")):
            assert count is None, figure["name"]
        elif population in ("arrived requests", "all requests"):
            assert count == requests["arrived"]
        elif population in ("prompts of finished requests", "finished requests"):
            assert count == requests["finished"]
        else:
            assert population == "gaps between tokens of finished requests"
            assert count == 4 * requests["finished"]


def is_empty(result: RunResult) -> bool:
    """No request arrived: everything is defined, and nothing is made up."""
    summary = json.loads(json.dumps(result.summary, allow_nan=False))
    values = {f["value"] for f in summary["figures"] if not f["population"].startswith("prompts")}
    assert values <= {None, 0}
    assert summary["slo"] == {
        "attainment": None,
        "goodput_per_s": None,
        "by_target": {"ttft": None},
    }
    assert summary["saturation"] is None
    assert summary["warnings"] == []
    assert result.figure("gpu_busy") is None
    assert len(result.steps) == 0
    return bool(summary["requests"]["arrived"] == 0)


def test_no_requests(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.csv", AZURE_HEADER)
    some = azure_trace(tmp_path / "some.csv", 5)
    base = {"model": "Llama-3.1-8B", "slo": {"ttft_s": 1}}
    for workload in (
        {"trace": {"path": str(empty)}},
        {"trace": {"path": str(empty)}, "rate_per_s": 3, "repeat": 2, "num_requests": 4},
        {"trace": {"path": str(some)}, "window_s": [100, 200], "max_concurrency": 2},
    ):
        result = simulate(parse_scenario(base | {"workload": workload}))
        assert is_empty(result)
        result.write(tmp_path / "result")


@pytest.mark.parametrize("num_requests", [10, 100])
def test_horizon_before_the_first_arrival(num_requests: int) -> None:
    scenario = small(num_requests=num_requests) | {"horizon_s": 1e-4, "slo": {"ttft_s": 1}}
    assert is_empty(simulate(parse_scenario(scenario)))
