"""What sweep.json says beside the table: the axes, the question, and how the runs went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scenarios import __version__
from scenarios.address import code_address
from scenarios.explain import nearest
from scenarios.schema import Scenario
from scenarios.sweep.axes import Axis, as_cell
from scenarios.sweep.choice import choose, column_facts
from scenarios.sweep.expressions import Expression
from scenarios.sweep.points import Points
from scenarios.sweep.run import Spent
from scenarios.sweep.sweep_file import Sweep
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "fleetcast.sweep/1"


def make_content(
    sweep: Sweep, points: Points, frame: pd.DataFrame, spent: Spent | None
) -> dict[str, Any]:
    """Plain values. Raises ScenarioError for a column that the table does not have."""
    columns = [str(name) for name in frame.columns]
    is_measured = bool((frame["status"] == "done").any())
    if is_measured:
        check_columns(sweep, columns)
    scenario = next(run.scenario for point in points.points for run in point.runs)
    where = "require" if sweep.file.require is None else sweep.place("require")
    return {
        "schema": SCHEMA,
        "fleetcast_version": __version__,
        "code_sha256": code_address(),
        "name": sweep.name,
        "axes": [_axis_facts(axis) for axis in points.axes],
        "columns": column_facts(columns),
        "points": len(points.points),
        "left_out": points.left_out,
        "runs": len(points.runs),
        "missing": len(points.runs) + _refused(points) - len(frame),
        "replications": max(len(point.runs) for point in points.points),
        "choice": choose(frame, sweep.file.best, sweep.file.require, where)
        if is_measured
        else None,
        "plots": [plot.model_dump() for plot in sweep.file.plots],
        "slo": scenario.slo.model_dump(),
        "base": _base_facts(scenario, {axis.key for axis in points.axes}),
        "run": None
        if spent is None
        else {
            "known": spent.known,
            "simulated": spent.simulated,
            "wall_s": spent.wall_s,
            "core_s": spent.core_s,
        },
    }


def _axis_facts(axis: Axis) -> dict[str, Any]:
    is_random = axis.kind == "random"
    return {
        "key": axis.key,
        "kind": axis.kind,
        "values": None if is_random else [as_cell(value) for value in axis.values],
        "draws": len(axis.values) if is_random else None,
        "leads": axis.leads,
    }


def _base_facts(scenario: Scenario, axes: set[str]) -> dict[str, Any]:
    """What all points have in common, of what a reader asks first."""
    facts = {
        "model": scenario.model,
        "hardware.gpu": scenario.hardware.gpu,
        "engine.tensor_parallel_size": scenario.engine.tensor_parallel_size,
        "pool.replicas": scenario.pool.replicas,
        "engine.profile": scenario.engine.profile,
        "engine.scheduler": scenario.engine.scheduler,
        "seed": scenario.seed,
    }
    return {key: as_cell(value) for key, value in facts.items() if key not in axes}


def _refused(points: Points) -> int:
    return sum(point.refused is not None for point in points.points)


def check_columns(sweep: Sweep, columns: list[str]) -> None:
    """Raise ScenarioError for columns that the file names and the table does not have."""
    file = sweep.file
    axes = [*file.axes, *(key for block in file.zipped for key in block)]
    axes += [] if file.random is None else list(file.random.axes)
    every = list(dict.fromkeys([*axes, *columns]))
    named = [] if file.best is None else [("best", file.best, every)]
    for index, plot in enumerate(file.plots):
        named.append((f"plots[{index}].figure", plot.figure, every))
        named.append((f"plots[{index}].x", plot.x, axes))
        named += [] if plot.by is None else [(f"plots[{index}].by", plot.by, axes)]
    for field, name, known in named:
        if name not in known:
            place = sweep.place(*(("best",) if field == "best" else ("plots",)))
            what = "axis" if known is axes else "column"
            raise ScenarioError(f"{place}: {field}: no {what} {name!r}; {nearest(name, known)}")
    if file.require is not None:
        where = f"{sweep.place('require')}: require {file.require!r}"
        Expression(file.require, where).check(every)
