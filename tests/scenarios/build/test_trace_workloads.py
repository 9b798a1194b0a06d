"""Uses of a trace in a scenario, and the messages if something does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.build.workload.table import build_table
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError
from sim.request_table import RequestTable
from tests.workloads.readers import trace_samples as samples
from tests.workloads.readers.trace_samples import SAMPLES, write_sample

S = 10**9
DRAW = {"sessions_per_h": 60, "num_sessions": 4}


def table_of(path: Path, *, seed: int = 0, trace: Any = None, **workload: Any) -> RequestTable:
    return build_table(scenario_of(path, seed=seed, trace=trace, **workload))


def scenario_of(path: Path, *, seed: int = 0, trace: Any = None, **workload: Any) -> Any:
    workload = {"trace": {"path": str(path), **(trace or {})}, **workload}
    return parse_scenario({"model": "llama-3.1-8b", "seed": seed, "workload": workload})


@pytest.fixture
def agentic(tmp_path: Path) -> Path:
    return write_sample(tmp_path, "agentic")


@pytest.fixture
def bailian(tmp_path: Path) -> Path:
    folder = tmp_path / "bailian"
    folder.mkdir()
    return write_sample(folder, "bailian")


NEEDS: dict[str, dict[str, Any]] = {
    "agentic": DRAW,
    "trie": DRAW,
    "lengths": {"rate_per_s": 5},
    "servegen": {"trace": {"subset": "big"}, "num_requests": 40},
    "mooncake-delta": {"trace": {"format": "mooncake-delta"}},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_simulated(tmp_path: Path, name: str) -> None:
    result = simulate(scenario_of(write_sample(tmp_path, name), **NEEDS.get(name, {})))
    requests = result.summary["requests"]
    assert requests["arrived"] == requests["finished"] == len(result.log.table) > 0


def test_think_times_close_the_loop_and_gaps_do_not(agentic: Path, bailian: Path) -> None:
    closed = table_of(agentic, **DRAW)
    assert closed.after is not None
    assert closed.notes[-1].startswith("sessions replayed closed")
    opened = table_of(agentic, trace={"replay": "open"}, **DRAW)
    assert opened.after is None
    assert opened.notes[-1].startswith("sessions replayed open")
    assert opened.prompt_tokens.tolist() == closed.prompt_tokens.tolist()
    assert table_of(bailian).after is None
    asked = table_of(bailian, trace={"replay": "closed"})
    assert asked.think_ns is not None
    assert (asked.think_ns / S).tolist() == [0, 0, 14.25, 14.5, 19]
    assert asked.notes[0].startswith("think times are the gaps between arrivals")


def test_sessions_are_drawn_by_the_seed(agentic: Path) -> None:
    one, again, other = (table_of(agentic, seed=seed, **DRAW) for seed in (1, 1, 2))
    assert one.arrival_ns.tolist() == again.arrival_ns.tolist()
    assert one.arrival_ns.tolist() != other.arrival_ns.tolist()


def test_a_duration_cuts_sessions_and_a_window_cuts_what_was_drawn(agentic: Path) -> None:
    options: dict[str, Any] = {"trace": {"replay": "open"}, "sessions_per_h": 3600.0}
    table = table_of(agentic, **options, duration_s=30)
    assert table.arrival_ns.max() < 30 * S
    later = table_of(agentic, **options, duration_s=30, window_s=[10, 30])
    inside = table.arrival_ns >= 10 * S
    assert (later.arrival_ns + 10 * S).tolist() == table.arrival_ns[inside].tolist()


def test_length_files_arrive_as_told(tmp_path: Path) -> None:
    path = write_sample(tmp_path, "lengths")
    assert (np.diff(table_of(path, rate_per_s=2).arrival_ns) > 0).all()
    closed = table_of(path, max_concurrency=3, num_requests=10)
    assert closed.max_concurrency == 3
    assert closed.arrival_ns.tolist() == [0] * 10
    assert len(table_of(path, rate_per_s=2, repeat=2)) == 80


def test_closed_sessions_wait_for_their_answers(agentic: Path) -> None:
    log = simulate(scenario_of(agentic, **DRAW)).log
    table = log.table
    assert table.after is not None
    assert table.think_ns is not None
    for row in np.flatnonzero(table.after >= 0).tolist():
        answered_ns = log.requests.finished_ns[int(table.after[row])]
        assert log.requests.arrival_ns[row] == answered_ns + max(1, int(table.think_ns[row]))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no clock": ("agentic", {}, "no common clock; say how many start with workload.sessions_per_h"),
    "rate of sessions": ("agentic", {**DRAW, "rate_per_s": 1}, "choose workload.sessions_per_h"),
    "repeated sessions": ("agentic", {**DRAW, "repeat": 2}, "drawn again and again anyway"),
    "two loops": ("agentic", {**DRAW, "max_concurrency": 2}, "set workload.trace.replay=open"),
    "no open times": ("trie", {**DRAW, "trace": {"replay": "open"}}, "no times of later turns"),
    "one clock": ("bailian", DRAW, "one clock for all requests; choose workload.rate_per_s"),
    "no times": ("lengths", {}, "give workload.rate_per_s .--rate. for Poisson arrivals"),
    "no times for sessions": ("lengths", DRAW, "has no times; choose workload.rate_per_s"),
    "no times to cut": ("lengths", {"window_s": [0, 1], "rate_per_s": 1}, "has no times to cut"),
    "no sessions": ("azure", {"trace": {"replay": "closed"}}, "no sessions of several requests"),
    "no sessions of clients": (
        "servegen",
        {"trace": {"subset": "big", "replay": "open"}},
        "client rates have no sessions",
    ),
    "no parts": ("azure", {"trace": {"subset": "x"}}, "an? azure trace has no parts to choose"),
    "own blocks": ("bailian", {"trace": {"block_tokens": 64}}, "says itself what a hash id"),
}


@pytest.mark.parametrize(("name", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        table_of(write_sample(tmp_path, name), **options)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"sessions_per_h": 5}, "sessions_per_h needs either duration_s or num_sessions"),
        ({**DRAW, "duration_s": 5}, "sessions_per_h needs either duration_s or num_sessions"),
        ({"num_sessions": 5}, "num_sessions needs sessions_per_h"),
        ({"duration_s": 5}, "and for traces with sessions_per_h; cut a trace with window_s"),
    ],
)
def test_fields_that_do_not_go_together(
    agentic: Path, workload: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario_of(agentic, **workload)


def test_sessions_per_h_is_for_traces() -> None:
    with pytest.raises(ScenarioError, match="sessions_per_h is for traces"):
        parse_scenario({"model": "llama-3.1-8b", "workload": {"preset": "azure-conv", **DRAW}})


def test_mooncake_block_sizes_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    row = {"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [1, 2]}
    path.write_text(samples.lines([row]))
    table = table_of(path, trace={"block_tokens": 64})
    assert table.chains is not None
    assert table.chains.block_tokens == 64
