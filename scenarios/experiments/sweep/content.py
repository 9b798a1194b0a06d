"""The content of sweep.json beside the table: the axes, the question, and how the runs went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.schemas import SWEEP
from scenarios.experiments.sweep.axes import Axis, Expression, as_cell
from scenarios.experiments.sweep.grid import Grid
from scenarios.experiments.sweep.results import Spent
from scenarios.experiments.sweep.sweep_file import Sweep
from scenarios.files.identity import code_address
from scenarios.files.messages import nearest
from scenarios.schema import Scenario
from sim import __version__
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

_DEFAULT_REQUIRE = "attainment >= 0.99"
_UNITS = {
    "s": ("ttft.", "tpot.", "itl.", "e2e.", "queue.", "e2e_account."),
    "fraction": ("attainment", "availability", "gpu_busy", "kv_occupancy", "load", "class."),
    "tokens/s": ("input_throughput", "output_throughput", "total_throughput"),
    "requests/s": ("request_throughput", "goodput", "saturation"),
    "USD/h": ("usd_per_hour",),
    "USD": ("usd_", "cost"),
    "GPU-h": ("gpu_hours",),
    "GPUs": ("gpus",),
    "kWh": ("energy",),
    "W": ("mean_power",),
    "tokens": ("cache_hit_tokens",),
    "requests": ("running.", "waiting.", "requests."),
    "count": ("preemptions",),
}
_LOWER = ("s", "USD", "USD/h", "GPU-h", "GPUs", "kWh", "W", "count")
_HIGHER = ("tokens/s", "requests/s")
_SHARES = ("attainment", "availability", "class.")
"""Shares for which more is better; for a GPU's busy time or occupancy neither direction is."""


def column_facts(columns: list[str]) -> dict[str, dict[str, str | None]]:
    """Return the unit of each figure and whether ``lower`` or ``higher`` is better (None:
    neither)."""
    facts = {}
    for name in columns:
        unit = next((u for u, starts in _UNITS.items() if name.startswith(starts)), None)
        if name == "cache_hit_fraction":
            unit = "fraction"
        if unit is not None:
            facts[name] = {"unit": unit, "better": _better(name, unit)}
    return facts


def _better(name: str, unit: str) -> str | None:
    if unit in _LOWER:
        return "lower"
    return "higher" if unit in _HIGHER or name.startswith(_SHARES) else None


def default_best(frame: pd.DataFrame) -> str:
    """Return the figure that a scenario asks about: cost if it has prices, its SLO, else
    throughput."""
    choices = ("usd_per_good_request", "goodput_per_gpu", "usd_per_million_tokens")
    has_slo = "attainment" in frame and frame["attainment"].notna().any()
    for name in choices:
        if name in frame and frame[name].notna().any() and (has_slo or name == choices[-1]):
            return name
    return "total_throughput_per_gpu"


def choose(
    frame: pd.DataFrame, best: str | None, require: str | None, where: str
) -> dict[str, Any]:
    """Return the points that keep ``require``, best first; ``where`` says where it was given.

    Without ``require``, 99% of requests must meet the SLO, if there is one. A point whose queue
    grows for as long as requests come keeps nothing, as in a capacity search. A point counts if all
    its runs were done.
    """
    best = best or default_best(frame)
    text = require
    has_slo = "attainment" in frame and frame["attainment"].notna().any()
    if text is None and has_slo:
        text = _DEFAULT_REQUIRE
    whole = frame.groupby("point")["status"].transform(lambda of_point: (of_point == "done").all())
    means = frame[whole].groupby("point").mean(numeric_only=True)
    cells = frame[whole].drop_duplicates("point").set_index("point")
    expression = None if text is None else Expression(text, where)
    grows = frame[frame["warnings"].str.contains("unstable", na=False)]
    growing = set(grows["point"]) if text is not None else set()
    rows = {**cells.to_dict("index")}
    for point, figures in means.to_dict("index").items():
        rows[point] |= figures
    keeps = [
        expression is None or (point not in growing and _keeps(expression, row))
        for point, row in rows.items()
    ]
    facts = column_facts([best]).get(best)
    better = (facts or {}).get("better") or "higher"
    values = means[best][keeps].dropna() if best in means else means.index[:0].to_series()
    ranked = values.sort_values(ascending=better == "lower", kind="stable")
    return {
        "best": best,
        "better": better,
        "require": text,
        "measured": len(means),
        "growing": len(growing & set(rows)),
        "kept": sum(keeps),
        "ranking": [int(point) for point in ranked.index],
    }


def _keeps(expression: Expression, row: dict[Any, Any]) -> bool:
    import pandas as pd

    values = {str(name): None if pd.isna(value) else value for name, value in row.items()}
    try:
        return bool(expression.value(values))
    except ScenarioError:  # a point without such a figure does not keep it
        return False


def make_content(
    sweep: Sweep, grid: Grid, frame: pd.DataFrame, spent: Spent | None
) -> dict[str, Any]:
    """Return the content of sweep.json as plain values.

    Raises `ScenarioError` for a column that the table does not have.
    """
    columns = [str(name) for name in frame.columns]
    is_measured = bool((frame["status"] == "done").any())
    if is_measured:
        check_columns(sweep, columns)
    points = grid.points
    scenario = points[0].scenario
    where = "require" if sweep.file.require is None else sweep.place("require")
    return {
        "schema": SWEEP,
        "fleetcast_version": __version__,
        "code_sha256": code_address(),
        "name": sweep.name,
        "axes": [_axis_facts(axis) for axis in grid.axes],
        "columns": column_facts(columns),
        "points": len(grid.combinations),
        "left_out": grid.left_out,
        "runs": len(points),
        "missing": len(points) + grid.refused - len(frame),
        "replications": max(len(one.points) for one in grid.combinations),
        "choice": choose(frame, sweep.file.best, sweep.file.require, where)
        if is_measured
        else None,
        "plots": [plot.model_dump() for plot in sweep.file.plots],
        "slo": scenario.slo.model_dump(),
        "base": _base_facts(scenario, {axis.key for axis in grid.axes}),
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
    """Return the main fields that all points have in common."""
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


def check_columns(sweep: Sweep, columns: list[str]) -> None:
    """Raise `ScenarioError` for columns that the file names and the table does not have."""
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
