"""Objects that a worker keeps between runs are made once, by content, and never affect a result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scenarios.build import memo, replica
from scenarios.build.workload import trace
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from tests.properties.scenarios import azure_trace, results, small


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often costs were compiled and traces read, from an empty store on."""
    counts = {"cost": 0, "trace": 0}

    def counted(module: Any, function: str, kind: str) -> None:
        original = getattr(module, function)

        def call(*args: Any, **options: Any) -> Any:
            counts[kind] += 1
            return original(*args, **options)

        monkeypatch.setattr(module, function, call)

    counted(replica, "compile_layout_cost", "cost")
    counted(trace, "read_recording", "trace")
    monkeypatch.setattr(memo, "_memo", {})
    return counts


def of_trace(path: Path, **fields: Any) -> Any:
    values = {"model": "llama-3.1-8b", "workload": {"trace": {"path": str(path)}}, "bands": False}
    return parse_scenario({**values, **fields})


def test_a_single_simulation_keeps_nothing(tmp_path: Path, made: dict[str, int]) -> None:
    path = azure_trace(tmp_path / "trace.csv", 8)
    for _ in range(2):
        simulate(of_trace(path))
    assert made == {"cost": 2, "trace": 2}


def test_equal_contents_are_made_once_and_change_no_result(
    tmp_path: Path, made: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = azure_trace(tmp_path / "trace.csv", 12)
    axes: list[dict[str, Any]] = [
        {"kv": {"block_size": size}, "pool": {"replicas": replicas}}
        for size in (16, 32)
        for replicas in (1, 2)
    ]
    alone = [results(simulate(of_trace(path, **fields))) for fields in axes]
    made.update(cost=0, trace=0)
    memo.keep_between_runs()
    for _ in range(2):
        assert [results(simulate(of_trace(path, **fields))) for fields in axes] == alone
    assert made == {"cost": 1, "trace": 1}


def test_what_prices_a_step_is_told_apart(made: dict[str, int]) -> None:
    memo.keep_between_runs()
    base = {**small(), "bands": False}
    others: list[dict[str, Any]] = [
        {},
        {"hardware": {"gpu": "H100"}},
        {"engine": {"tensor_parallel_size": 2}},
        {"engine": {"quantization": "fp8"}},
        {"engine": {"host_speed_factor": 2.0}},
        {"engine": {"max_num_batched_tokens": 512}},
        {"kv": {"cache_dtype": "fp8"}},
        {"model": "llama-3.1-70b", "engine": {"tensor_parallel_size": 4}},
    ]
    first = [results(simulate(parse_scenario({**base, **other}))) for other in others]
    assert made["cost"] == len(others)
    assert [results(simulate(parse_scenario({**base, **other}))) for other in others] == first
    assert made["cost"] == len(others)


def test_a_trace_written_again_is_read_again(tmp_path: Path, made: dict[str, int]) -> None:
    memo.keep_between_runs()
    path = azure_trace(tmp_path / "trace.csv", 5)
    assert simulate(of_trace(path)).summary["requests"]["finished"] == 5
    azure_trace(path, 7)
    os.utime(path, ns=(1, 1))  # even where the clock is too coarse to tell
    assert simulate(of_trace(path)).summary["requests"]["finished"] == 7
    assert made["trace"] == 2


def test_few_things_are_memoized(made: dict[str, int]) -> None:
    memo.keep_between_runs()
    for key in map(str, range(100)):
        memo.memoized("cost", key, lambda key=key: key)  # type: ignore[misc]
    assert len(memo._memo["cost"]) <= 16
    assert memo.memoized("cost", "99", lambda: "made anew") == "99"
    assert memo.memoized("cost", "0", lambda: "made anew") == "made anew"


def test_what_has_no_content_to_compare_is_never_found_again(made: dict[str, int]) -> None:
    memo.keep_between_runs()
    keys = {memo.content_key("cost", lambda: 1) for _ in range(3)}
    assert len(keys) == 3
    assert memo.content_key("cost", 1.5) == memo.content_key("cost", 1.5)
