"""The Perfetto trace of a run, read back: requests, their phases and their arrows."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from reports.perfetto.export import TraceOptions, write_perfetto
from reports.perfetto.requests import Phase, phases
from scenarios.files.load import load_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from tests.reports.perfetto_trace import TIGHT, async_slices, ns, of, read, step_slices, track_names


@pytest.fixture(scope="module")
def result() -> RunResult:
    return simulate(load_scenario("scenarios/demo.yaml", TIGHT))


@pytest.fixture(scope="module")
def folder(result: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.write(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    write_perfetto(folder, path, TraceOptions(every_step=True))
    return read(path)


def test_requests_and_their_phases(folder: Path, whole: dict[str, Any]) -> None:
    requests = pd.read_parquet(folder / "requests.parquet").set_index("request")
    finished = requests[requests["status"] == "finished"]
    rejected = requests[requests["status"] == "rejected"]
    assert len(of(whole, "b", "request")) == len(finished)
    assert {e["args"]["request"] for e in of(whole, "i", "rejected")} == set(rejected.index)
    assert {e["args"]["reason"] for e in of(whole, "i", "rejected")} == set(
        rejected["reject_reason"]
    )
    assert len(of(whole, "i", "arrival")) == len(finished)
    away = 0
    for request, events in async_slices(whole).items():
        row = finished.loc[request]
        name, start, end = events[0]
        parts = events[1:]
        assert name == "request"
        assert start == round(row["arrival_s"] * 1e9)
        assert end == round((row["arrival_s"] + row["e2e_s"]) * 1e9)
        assert parts[0][1] == start
        assert parts[-1][2] == end
        assert all(before[2] == after[1] for before, after in pairwise(parts))
        times: dict[str, int] = defaultdict(int)
        for part, begin, stop in parts:
            times[part] += stop - begin
        assert times["waiting"] == pytest.approx(row["queue_s"] * 1e9, abs=2)
        assert ("preempted" in times) == (row["preemptions"] > 0)
        away += times["preempted"]
    redone = pd.read_parquet(folder / "preemptions.parquet")
    assert away == pytest.approx((redone["end_s"] - redone["start_s"]).sum() * 1e9, rel=0.01)


def test_flows_lead_through_the_steps_that_served_the_request(
    result: RunResult, whole: dict[str, Any]
) -> None:
    requests, log = result.requests, result.log.requests
    steps = dict(step_slices(whole))
    flows = defaultdict(list)
    for event in whole["traceEvents"]:
        if event["ph"] in "stf":
            flows[int(event["id"], 16)].append(event)
    assert sorted(flows) == np.flatnonzero(requests["status"] == "finished").tolist()
    names = track_names(whole)
    for request, points in flows.items():
        row = requests.loc[request]
        assert "".join(e["ph"] for e in points) in ("stf", "sf")
        assert names[points[0]["pid"], points[0]["tid"]].startswith("arrivals")
        assert ns(points[0]["ts"]) == round(row["arrival_s"] * 1e9)
        slices = steps[int(log.replica[request])]
        starts = [ns(e["ts"]) for e in slices]
        reached = []
        for point in points[1:]:
            at = ns(point["ts"])
            reached.append(int(np.searchsorted(starts, at, side="right")) - 1)
            slice_ = slices[reached[-1]]
            assert at < ns(slice_["ts"]) + ns(slice_["dur"])
            assert names[point["pid"], point["tid"]] == "steps"
        expected = dict.fromkeys((log.first_token_row[request], log.last_row[request]))
        assert reached == list(expected)


def test_preemptions_are_moments(folder: Path, whole: dict[str, Any]) -> None:
    steps = pd.read_parquet(folder / "steps.parquet")
    moments = of(whole, "i", "preempted")
    assert sum(e["args"]["requests"] for e in moments) == steps["preempted"].sum() > 0


def test_a_horizon_leaves_requests_unfinished(tmp_path: Path) -> None:
    result = simulate(load_scenario("scenarios/demo.yaml", [*TIGHT, "horizon_s=2"]))
    folder = result.write(tmp_path)
    write_perfetto(folder, tmp_path / "t.json", TraceOptions(every_step=True))
    cut = read(tmp_path / "t.json")
    statuses = [e["args"]["status"] for e in of(cut, "b", "request")]
    counts = result.requests["status"].value_counts()
    arrived = result.summary["requests"]["arrived"]
    assert statuses.count("finished") == counts["finished"]
    assert statuses.count("unfinished") == arrived - counts["finished"] - counts["rejected"] > 0
    for slices in async_slices(cut).values():
        assert all(end >= start for _, start, end in slices)


@given(st.lists(st.integers(0, 40), min_size=4, max_size=4), st.lists(st.integers(0, 40)))
def test_phases_fill_the_time_of_a_request(moments: list[int], cuts: list[int]) -> None:
    arrival, admitted, first, end = sorted(moments)
    bounds = sorted(set(cuts))
    redone = list(zip(bounds[::2], bounds[1::2], strict=False))
    found = phases(arrival, admitted, first, end, redone)
    assert sum(phase.end_ns - phase.start_ns for phase in found) == end - arrival
    assert all(before.end_ns == after.start_ns for before, after in pairwise(found))
    away = sum(p.end_ns - p.start_ns for p in found if p.name == "preempted")
    assert away == sum(max(0, min(e, end) - max(s, admitted)) for s, e in redone)
    for phase in found:
        if phase.name == "prefill":
            assert admitted <= phase.start_ns < phase.end_ns <= first
        if phase.name == "decode":
            assert first <= phase.start_ns


def test_phases_of_a_request_that_never_started() -> None:
    assert phases(3, -1, -1, 9, []) == [Phase("waiting", 3, 9)]
    assert phases(3, 4, -1, 9, []) == [Phase("waiting", 3, 4), Phase("prefill", 4, 9)]
