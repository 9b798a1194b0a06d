"""Axes of a sweep: the points they make, and those that constraints exclude."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.experiments.sweep.axes import (
    Expression,
    as_cell,
    axes_of,
    combinations,
    draw,
    num_combinations,
    values_of,
)
from scenarios.experiments.sweep.grid import make_grid
from scenarios.experiments.sweep.sweep_file import read_sweep
from scenarios.schema.sweep import Span, SweepFile
from sim.errors import ScenarioError
from tests.scenarios.experiments.sweep.samples import RATES, SCENARIO, write_sweep_file


def sweep_file(**fields: Any) -> SweepFile:
    return SweepFile.model_validate({"scenario": "x.yaml", **fields})


def points_of(file: SweepFile) -> list[dict[str, Any]]:
    return list(combinations(file, axes_of(file)))


def test_a_grid_is_every_combination_the_first_axis_slowest() -> None:
    file = sweep_file(axes={"a": [1, 2], "b": ["x", "y", "z"]})
    wanted = [{"a": a, "b": b} for a, b in itertools.product([1, 2], "xyz")]
    assert points_of(file) == wanted
    assert num_combinations(file) == len(wanted)


def test_zipped_lists_go_together_and_count_as_one_axis() -> None:
    file = sweep_file(axes={"a": [1, 2]}, zipped=[{"b": [3, 4], "c": [5, 6]}])
    assert points_of(file) == [
        {"a": 1, "b": 3, "c": 5},
        {"a": 1, "b": 4, "c": 6},
        {"a": 2, "b": 3, "c": 5},
        {"a": 2, "b": 4, "c": 6},
    ]


def test_every_draw_meets_every_combination() -> None:
    drawn = {"draws": 5, "axes": {"b": {"from": 1, "to": 9}, "c": [7, 8]}}
    points = points_of(sweep_file(axes={"a": [1, 2]}, random=drawn))
    assert len(points) == 10
    of_a = [[(p["b"], p["c"]) for p in points if p["a"] == a] for a in (1, 2)]
    assert of_a[0] == of_a[1]


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 5))
def test_more_draws_keep_the_first_and_lie_in_the_span(few: int, more: int, seed: int) -> None:
    span = Span.model_validate({"from": 2, "to": 30, "scale": "log"})
    first = draw(span, "workload.rate_per_s", few, seed)
    assert draw(span, "workload.rate_per_s", few + more, seed)[:few] == first
    assert all(2 <= value <= 30 for value in first)


def test_axes_draw_from_streams_of_their_own() -> None:
    span = Span.model_validate({"from": 0, "to": 1})
    assert draw(span, "a", 20, 0) != draw(span, "b", 20, 0) != draw(span, "b", 20, 1)
    levels = draw(["low", "high"], "a", 400, 0)
    assert 150 < levels.count("low") < 250


@pytest.mark.parametrize(
    ("span", "values"),
    [
        ({"from": 4, "to": 24, "steps": 6}, [4, 8, 12, 16, 20, 24]),
        ({"from": 0.1, "to": 0.5, "steps": 5}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"from": 1, "to": 64, "steps": 4, "scale": "log"}, [1, 4, 16, 64]),
        ({"from": 1, "to": 8, "steps": 5, "whole": True}, [1, 3, 4, 6, 8]),
        ({"from": 1, "to": 3, "steps": 9, "whole": True}, [1, 2, 3]),
    ],
)
def test_spans_have_the_values_a_reader_would_write(span: Any, values: list[Any]) -> None:
    found = values_of(Span.model_validate(span))
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("engine.tensor_parallel_size * pool.replicas <= 8", True),
        ("tensor_parallel_size * replicas == 4", False),
        ("hardware.gpu in ['H200', 'H100'] and not replicas > 4", True),
        ("hardware.gpu == 'H100' or replicas % 2 == 0", True),
        ("2 < replicas < 4", False),
        ("pools.0.replicas + pools[1].replicas == 5", True),
        ("max(replicas, 7) // 2 == 3", True),
        ("engine.quantization == null", True),
        ("-replicas + 1.5 <= 0", True),
    ],
)
def test_expressions_compare_axes(text: str, value: bool) -> None:
    values = {
        "engine.tensor_parallel_size": 2,
        "pool.replicas": 4,
        "hardware.gpu": "H200",
        "pools.0.replicas": 2,
        "pools.1.replicas": 3,
        "engine.quantization": None,
    }
    values = values if "pools" in text else {k: v for k, v in values.items() if "pools" not in k}
    expression = Expression(text, "here")
    expression.check(values)
    assert expression.value(values) is value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("replica <= 8", "no replica here; did you mean 'replicas'"),
        ("replicas <", "cannot be read"),
        ("replicas < 'many'", "has no value for replicas 4"),
        ("1 / (replicas - 4)", "division by zero"),
        ("__import__('os').system('true')", "cannot stand in a comparison"),
        ("[x for x in [1]]", "no x here"),
        ("replicas.__class__", "no replicas.__class__ here"),
    ],
)
def test_what_an_expression_cannot_say_is_refused(text: str, words: str) -> None:
    values = {"pool.replicas": 4}

    def use() -> None:
        expression = Expression(text, "here")
        expression.check(values)
        expression.value(values)

    with pytest.raises(ScenarioError, match=f"here: .*{words}"):
        use()


def test_a_short_name_of_two_axes_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"may be a\.x or b\.x"):
        Expression("x > 1", "here").check(["a.x", "b.x"])


def test_constraints_drop_points_and_are_counted(tmp_path: Path) -> None:
    values = {
        **RATES,
        "axes": {"engine.tensor_parallel_size": [1, 2, 4], "pool.replicas": [1, 2, 4]},
        "constraints": ["tensor_parallel_size * replicas <= 4", "replicas != 1"],
    }
    grid = make_grid(read_sweep(write_sweep_file(tmp_path, values)))
    found = [tuple(one.cells.values()) for one in grid.combinations]
    assert found == [(1, 2), (1, 4), (2, 2)]
    assert [one.index for one in grid.combinations] == [0, 1, 2]
    assert grid.left_out == {
        "tensor_parallel_size * replicas <= 4": 3,
        "replicas != 1": 3,
    }


def test_values_become_cells() -> None:
    assert [as_cell(v) for v in (1, 2.5, "x", None, True)] == [1, 2.5, "x", None, True]
    assert as_cell({"name": "sarathi", "chunk_tokens": 512}) == "{name: sarathi, chunk_tokens: 512}"
    assert as_cell([1, None]) == "[1, None]"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"axes": {}}, "no axis"),
        ({"axes": {"workload.rate": [1, 2]}}, "workload.rate: unknown key"),
        ({"axes": {"seed": 3}}, "axes.seed: must be a list of values, or a span"),
        ({"axes": {"seed": []}}, "axes.seed: needs at least one value"),
        ({"axes": {"seed": [1, 1]}}, "seed: 1 is there twice"),
        ({"axes": {"seed": {"from": 3, "to": 2, "steps": 2}}}, "to 2 must be above from 3"),
        ({"axes": {"seed": {"from": 0, "to": 2, "steps": 2, "scale": "log"}}}, "above 0 on a log"),
        ({"axes": {"seed": {"from": 1, "to": 2}}}, "seed needs steps"),
        ({"axes": {"seed": {"from": 1, "to": 2, "step": 2}}}, "step: unknown key; did you mean"),
        ({"axis": {"seed": [1]}}, "axis: unknown key; did you mean 'axes'"),
        ({"axes": {"seed": [1, 2]}, "replications": 2}, "seed is an axis and replications"),
        ({"axes": {"replications": [1, 2]}}, "replications is no axis"),
        ({"axes": {"pool": [{}], "pool.replicas": [1]}}, "pool is set by two axes"),
        ({"zipped": [{"seed": [1, 2], "pool.replicas": [1]}]}, "seed has 2, pool.replicas has 1"),
        ({"axes": {"seed": [1, 2]}, "constraints": ["sed > 1"]}, "no sed here; did you mean"),
        ({"axes": {"seed": [1, 2]}, "constraints": ["seed > 3"]}, "leave none of 2 combinations"),
        ({"axes": {"pool.replicas": [0]}}, "no point can be run; the first:"),
        ({"axes": {"seed": [1]}, "scenario": "nope.yaml"}, "nope.yaml is not a file"),
        (
            {"axes": {"seed": list(range(2000)), "pool.replicas": list(range(1, 601))}},
            "1,200,000 combinations; at most 200,000",
        ),
        (
            {"random": {"draws": 3, "axes": {"seed": {"from": 1, "to": 2, "steps": 2}}}},
            "seed is drawn, it has no steps",
        ),
    ],
)
def test_what_is_wrong_is_said_where_it_is(tmp_path: Path, fields: Any, words: str) -> None:
    file = write_sweep_file(tmp_path, {"scenario": SCENARIO, **fields})
    with pytest.raises(ScenarioError) as caught:
        make_grid(read_sweep(file))
    assert words in str(caught.value)
    assert "rates" in str(caught.value)
    assert "Span" not in str(caught.value)


def test_files_that_a_sweep_names_are_found_beside_it(tmp_path: Path) -> None:
    """Its scenario, and what its axes and settings name; points name them absolutely."""
    from tests.properties.scenarios import azure_trace, small, write

    below = tmp_path / "below"
    below.mkdir()
    write(below / "base.yaml", {**small(), "seed": 3})
    for name in ("one.csv", "two.csv"):
        azure_trace(tmp_path / name, 5)
    values = {
        "scenario": "below/base.yaml",
        "axes": {"workload.trace.path": ["one.csv", "two.csv"]},
        "set": {"workload.generator": None, "workload.rate_per_s": None},
    }
    grid = make_grid(read_sweep(write_sweep_file(tmp_path, values)))
    traces = [point.scenario.workload.trace for point in grid.points]
    assert [Path(trace.path) for trace in traces if trace] == [
        tmp_path / "one.csv",
        tmp_path / "two.csv",
    ]
    first, second = (point.address for point in grid.points)
    assert first == second  # the same requests, whatever the file's name
