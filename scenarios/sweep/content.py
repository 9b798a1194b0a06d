"""What sweep.json says beside the table: the axes, the question, and how the runs went."""

from __future__ import annotations

from typing import Any

from scenarios import __version__
from scenarios.address import code_address
from scenarios.explain import nearest
from scenarios.schema import Scenario
from scenarios.sweep.axes import as_cell
from scenarios.sweep.expressions import Expression
from scenarios.sweep.points import Points
from scenarios.sweep.run import Spent
from scenarios.sweep.sweep_file import Sweep
from sim.errors import ScenarioError

SCHEMA = "fleetcast.sweep/1"

_LOWER = (
    *("ttft.", "tpot.", "itl.", "e2e.", "queue.", "waiting.", "preemptions"),
    *("usd_", "cost", "gpu_hours", "gpus", "energy", "mean_power"),
)
"""How columns start that are better low."""


def make_content(
    sweep: Sweep, points: Points, columns: list[str], rows: int, spent: Spent | None
) -> dict[str, Any]:
    """Plain values. Raises ScenarioError for a column that the table does not have."""
    check_columns(sweep, columns)
    scenario = next(run.scenario for point in points.points for run in point.runs)
    best = _best(sweep, scenario, columns)
    return {
        "schema": SCHEMA,
        "fleetcast_version": __version__,
        "code_sha256": code_address(),
        "name": sweep.name,
        "axes": [
            {
                "key": axis.key,
                "kind": axis.kind,
                "values": list(dict.fromkeys(str(as_cell(v)) for v in axis.values))
                if axis.kind != "random"
                else None,
                "draws": len(axis.values) if axis.kind == "random" else None,
            }
            for axis in points.axes
        ],
        "points": len(points.points),
        "left_out": points.left_out,
        "runs": len(points.runs),
        "refused": sum(point.refused is not None for point in points.points),
        "rows": rows,
        "replications": max(len(point.runs) for point in points.points),
        "best": best,
        "best_is": "lowest" if best.startswith(_LOWER) else "highest",
        "require": sweep.file.require,
        "plots": [plot.model_dump() for plot in sweep.file.plots],
        "slo": scenario.slo.model_dump(),
        "base": {"model": scenario.model, "gpu": scenario.hardware.gpu},
        "run": None
        if spent is None
        else {
            "known": spent.known,
            "simulated": spent.simulated,
            "wall_s": spent.wall_s,
            "core_s": spent.core_s,
        },
    }


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


def _best(sweep: Sweep, scenario: Scenario, columns: list[str]) -> str:
    """The column that decides, or what the scenario asks about: money, the SLO, else work."""
    if sweep.file.best is not None:
        return sweep.file.best
    has_slo = any(value is not None for value in scenario.slo.model_dump().values())
    choices = ["usd_per_good_request"] if has_slo else ["usd_per_million_tokens"]
    choices += ["goodput_per_gpu"] if has_slo else []
    choices += ["total_throughput_per_gpu"]
    return next((name for name in choices if name in columns), choices[-1])
