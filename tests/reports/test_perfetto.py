"""The Perfetto trace of a run, read back: steps, counters, and excluded parts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from reports.perfetto.export import TraceOptions, write_perfetto
from scenarios.commands import app
from scenarios.files.load import load_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError
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


def test_the_run_is_a_hard_one(folder: Path) -> None:
    requests = pd.read_parquet(folder / "requests.parquet")
    assert set(requests["status"]) == {"finished", "rejected"}
    assert requests["preemptions"].sum() > 5
    redone = pd.read_parquet(folder / "preemptions.parquet").merge(requests, on="request")
    assert set(redone["request"]) == set(requests.loc[requests["preemptions"] > 0, "request"])
    assert (redone["replica_x"] == redone["replica_y"]).all()
    end_s = redone["arrival_s"] + redone["e2e_s"]
    assert redone["arrival_s"].le(redone["start_s"]).all()
    assert redone["start_s"].lt(redone["end_s"]).all()
    assert redone["end_s"].lt(end_s).all()


def test_slices_follow_each_other_and_hold_the_busy_time(
    folder: Path, whole: dict[str, Any]
) -> None:
    steps = pd.read_parquet(folder / "steps.parquet")
    seen = dict(step_slices(whole))
    assert sorted(seen) == [0, 1]
    for replica, slices in seen.items():
        rows = steps[steps["replica"] == replica]
        spans = [(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in slices]
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert [end for _, end in spans] == np.rint(rows["gpu_end_s"] * 1e9).astype(int).tolist()
        busy = [ns(e["args"]["gpu_us"]) for e in slices]
        assert all(gpu <= end - start for gpu, (start, end) in zip(busy, spans, strict=True))
        assert sum(busy) == round(rows["gpu_s"].sum() * 1e9)
        for name in ("steps", "decode_seqs", "prefill_tokens", "decode_context_tokens"):
            assert [e["args"][name] for e in slices] == rows[name].tolist()
        kinds = {e["name"] for e in slices}
        assert kinds == {"prefill", "decode", "prefill and decode"}


def test_every_single_step_when_asked(folder: Path, whole: dict[str, Any]) -> None:
    times = pd.read_parquet(folder / "step_times.parquet")
    for replica, slices in step_slices(whole, "tokens out, every step"):
        ends = [ns(e["ts"]) + ns(e["dur"]) for e in slices]
        assert ends == times.loc[times["replica"] == replica, "visible_ns"].tolist()
        assert all(ns(after["ts"]) >= end for end, after in zip(ends, slices[1:], strict=False))
    write_perfetto(folder, folder / "runs.json")
    assert "tokens out, every step" not in track_names(read(folder / "runs.json")).values()


def test_counters_are_the_columns(folder: Path, whole: dict[str, Any]) -> None:
    steps = pd.read_parquet(folder / "steps.parquet")
    blocks = json.loads((folder / "summary.json").read_text())["conditions"]["num_gpu_blocks"] - 1
    for replica in (0, 1):
        rows = steps[steps["replica"] == replica]
        plan_ns = np.rint(rows["plan_s"].to_numpy() * 1e9).astype(int)
        columns = {
            ("running", "requests"): rows["running"],
            ("waiting", "requests"): rows["waiting"],
            ("KV blocks", "used"): blocks - rows["free_blocks"],
        }
        for (name, unit), values in columns.items():
            events = [e for e in of(whole, "C", name) if e["pid"] == replica + 2]
            at = np.array([ns(e["ts"]) for e in events])
            told = np.array([float(e["args"][unit]) for e in events])
            assert (np.diff(at) > 0).all()
            assert (np.diff(told) != 0).all()
            held = told[np.searchsorted(at, plan_ns, side="right") - 1]
            assert held.tolist() == values.tolist()
            assert told[-1] == 0  # the engine ends without work


def test_rates_hold_all_tokens(folder: Path, whole: dict[str, Any]) -> None:
    steps = pd.read_parquet(folder / "steps.parquet")
    for replica, slices in step_slices(whole):
        events = [e for e in of(whole, "C") if "output" in e["args"] and e["pid"] == replica + 2]
        at = np.array([ns(e["ts"]) for e in events])
        rate = np.array([float(e["args"]["output"]) for e in events])
        starts = np.array([ns(e["ts"]) for e in slices])
        seconds = np.array([float(e["dur"]) for e in slices]) / 1e6
        rows = steps[steps["replica"] == replica]
        counted = (rate[np.searchsorted(at, starts, side="right") - 1] * seconds).sum()
        assert counted == pytest.approx((rows["logits"] * rows["steps"]).sum(), rel=1e-6)


def test_names_conditions_and_order(whole: dict[str, Any]) -> None:
    names = [e["args"]["name"] for e in of(whole, "M", "process_name")]
    assert names == ["run", "replica 0", "replica 1"]
    assert whole["metadata"]["conditions"]["num_gpu_blocks"] == 500
    assert whole["metadata"]["shown"].startswith("all 150 requests, from 0 s")
    run = of(whole, "X", "run")[0]
    assert run["args"] == whole["metadata"]
    # Perfetto reads no further than a key it does not know.
    assert list(whole) == ["displayTimeUnit", "traceEvents", "metadata"]
    # A thread belongs to one process, and is no process.
    tids: dict[int, int] = {}
    for pid, tid in track_names(whole):
        assert tids.setdefault(tid, pid) == pid
    assert not set(tids) & {e["pid"] for e in whole["traceEvents"]}


def test_fewer_requests_and_a_span(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "part.json.gz"
    options = TraceOptions(max_requests=10, start_s=1.0, end_s=3.0)
    written = write_perfetto(folder, path, options)
    part = read(path)
    assert written.num_requests == 10 < written.num_requests_in_span < 150
    assert len(part["traceEvents"]) == written.num_events
    assert part["metadata"]["shown"].startswith(f"10 of {written.num_requests_in_span} requests")
    shown = of(part, "b", "request") + of(part, "i", "rejected")
    assert len(shown) == 10
    for _, slices in step_slices(part):
        assert ns(slices[0]["ts"] + slices[0]["dur"]) > 1e9
        assert ns(slices[-1]["ts"]) < 3e9
    for events in async_slices(part).values():
        assert events[0][1] <= 3e9
        assert events[0][2] >= 1e9
    starts = {e["id"] for e in of(part, "s")}
    assert starts == {e["id"] for e in of(part, "f")}
    again = write_perfetto(folder, tmp_path / "again.json.gz", options)
    assert again.path.read_bytes() == path.read_bytes()


def test_command(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    run = CliRunner().invoke(app, ["export", "perfetto", str(folder), "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert f"{len(read(out)['traceEvents']):,} events, 150 requests" in run.output
    run = CliRunner().invoke(app, ["export", "perfetto", str(folder), "--max-requests", "7"])
    assert "7 of 150 requests" in run.output
    assert (folder / "trace.json.gz").exists()
    bad = CliRunner().invoke(app, ["export", "perfetto", str(folder), "--from", "4", "--to", "4"])
    assert bad.exit_code == 2
    assert "give a span" in bad.output


def test_what_cannot_be_read_or_written_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no such folder"):
        write_perfetto(tmp_path / "none", tmp_path / "t.json")
    with pytest.raises(ScenarioError, match=r"cannot write the trace .*: No such file"):
        write_perfetto(folder, tmp_path / "none" / "t.json")
