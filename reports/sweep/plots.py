"""Choose the figures of a sweep's page: those it asks for, or those of its first axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reports.numbers import listed
from reports.sweep.facts import axis_keys, every_key
from reports.sweep.folder import Content
from reports.sweep.words import axis_label, axis_value, better_of, figure_label, small
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

MOST_LINES = 6
_MOST_PANELS = 6
_MOST_CELLS = 40
"""Most values on one side of a heat map."""


class PlotSpec(NamedTuple):
    """One figure: panels with a common x axis that hold lines, points or colored cells."""

    figures: tuple[str, ...]
    """Columns of the table, one panel each."""
    x: str
    by: str | None = None
    kind: str = "lines"
    """``lines``, ``points`` (for random axes) or ``heatmap``."""
    facet: str | None = None
    """An axis whose values get one panel each, for a single figure."""


def wanted_plots(content: Content, points: pd.DataFrame) -> list[PlotSpec]:
    """Return the figures that the sweep asks for, or `default_plots` if it asks for none."""
    asked = content["plots"]
    if not asked:
        return default_plots(content, points)
    return [
        spec_of(content, points, p["figure"], p["x"], p["by"], p["kind"])
        for p in asked
        if p["figure"] in points
    ]


def spec_of(
    content: Content,
    points: pd.DataFrame,
    figure: str,
    x: str,
    by: str | None = None,
    kind: str = "auto",
) -> PlotSpec:
    """Specify a figure over one or two axes. Raises `ScenarioError` for an unknown axis or
    figure."""
    keys = every_key(content)
    for key in (x, by):
        if key is not None and key not in keys:
            raise ScenarioError(f"--plot: no axis {key!r}; axes: {', '.join(keys)}")
    if figure not in points or points[figure].dtype.kind not in "if":
        known = ", ".join(n for n in content["columns"] if n in points and "account" not in n)
        raise ScenarioError(f"--plot: no figure {figure!r}; figures: {known}")
    is_random = any(a["kind"] == "random" and a["key"] in (x, by) for a in content["axes"])
    if kind == "auto":
        kind = "lines"
        if by is not None and not is_random and points[by].nunique(dropna=False) > MOST_LINES:
            kind = "heatmap"
    if kind == "lines" and is_random:
        kind = "points"
    facet = _facet(content, points, {x, by}) if kind in ("lines", "heatmap") else None
    return PlotSpec((figure,), x, by, kind, facet)


def parse_plot(content: Content, points: pd.DataFrame, text: str) -> PlotSpec:
    """Parse ``--plot figure,x[,by[,kind]]``; the last part of an axis suffices if unique. Raises
    `ScenarioError`."""
    parts = [part.strip() for part in text.split(",")]
    if not 2 <= len(parts) <= 4 or not all(parts) or parts[3:] not in ([], ["lines"], ["heatmap"]):
        raise ScenarioError(
            f"--plot {text}: write it as figure,axis or figure,axis,axis[,lines or heatmap], e.g. "
            "ttft.p99,workload.rate_per_s,hardware.gpu"
        )
    keys = every_key(content)

    def full(name: str) -> str:
        ending = [key for key in keys if key == name or key.endswith(f".{name}")]
        return ending[0] if len(ending) == 1 else name

    by = full(parts[2]) if len(parts) > 2 else None
    return spec_of(content, points, parts[0], full(parts[1]), by, *parts[3:])


def default_plots(content: Content, points: pd.DataFrame) -> list[PlotSpec]:
    """Plot the deciding figure and the SLO's figures over the longest numeric axis, by another
    axis.

    With more axes, add panels for each value of a third; with two long axes, add a heat map.
    """
    choice = content["choice"]
    several = [key for key in axis_keys(content) if points[key].nunique(dropna=False) > 1]
    if choice is None or not several:
        return []
    numbers = [key for key in several if points[key].dtype.kind in "if"]
    x = max(numbers or several, key=lambda key: points[key].nunique())
    others = [key for key in several if key != x]
    kinds = {axis["key"]: axis["kind"] for axis in content["axes"]}
    is_random = kinds[x] == "random"
    best = choice["best"]
    few = [key for key in others if points[key].nunique(dropna=False) <= MOST_LINES]
    by = max(few, key=lambda key: _effect(points, key, best), default=None)
    figures = [best]
    for name in ("attainment", "ttft.p99", "tpot.p99", "gpu_busy"):
        if len(figures) < 4 and name in points and points[name].notna().any():
            figures += [name] if name not in figures else []
    plots = [PlotSpec(tuple(figures), x, by, "points" if is_random else "lines")]
    if is_random:
        return plots
    if by is not None and _facet(content, points, {x, by}) is not None:
        plots.append(spec_of(content, points, best, x, by, "lines"))
    long = next((k for k in others if kinds[k] != "random" and points[k].nunique() > 2), None)
    if long is not None and points[x].nunique() > 2:
        plots += [
            spec_of(content, points, name, x, long, "heatmap")
            for name in figures[:2]
            if points[long].nunique() <= _MOST_CELLS
        ]
    return plots


def _effect(points: pd.DataFrame, key: str, column: str) -> float:
    """Return how far a figure's median differs between the values of an axis, relative to its
    level."""
    medians = points.groupby(key, dropna=False)[column].median()
    level = abs(float(points[column].median()))
    return float(medians.max() - medians.min()) / level if level else 0.0


def is_decided(content: Content, column: str) -> bool:
    """Return whether a figure decides which of the points that meet the requirement is best."""
    choice = content["choice"]
    return bool(choice and choice["require"] and choice["best"] == column)


def panels_of(points: pd.DataFrame, spec: PlotSpec) -> list[tuple[str, str | None, pd.DataFrame]]:
    """Return (figure, value of the facet, points) of each panel."""
    if spec.facet is None:
        return [(figure, None, points) for figure in spec.figures]
    cells = points[spec.facet]
    values = list(dict.fromkeys(axis_value(value) for value in cells))
    chosen = [(value, points[[axis_value(v) == value for v in cells]]) for value in values]
    return [(spec.figures[0], value, rows) for value, rows in chosen]


def plot_title(content: Content, spec: PlotSpec) -> str:
    """Write the title of a figure: ``TTFT p99 over request rate, by GPU``."""
    keys = axis_keys(content)
    names = listed(figure_label(figure) for figure in spec.figures)
    by = f", by {small(axis_label(spec.by, keys))}" if spec.by is not None else ""
    return f"{names} over {small(axis_label(spec.x, keys))}{by}"


def others_text(content: Content, points: pd.DataFrame, spec: PlotSpec) -> str:
    """Say how the axes that a figure does not show were reduced; empty if it shows all."""
    shown, keys = {spec.x, spec.by, spec.facet}, axis_keys(content)
    hidden = [k for k in keys if k not in shown and points[k].nunique(dropna=False) > 1]
    if not hidden or spec.kind == "points":
        return ""
    neither = [figure for figure in spec.figures if better_of(content, figure) is None]
    words = f"Whatever {listed(small(axis_label(key, keys)) for key in hidden)} may be: the best"
    if neither:
        words += f", of {listed(figure_label(figure) for figure in neither)} the mean,"
    words += " at each place"
    several = len(spec.figures) > 1 or spec.facet is not None
    return words + (", which need not be the same point in all panels." if several else ".")


def _facet(content: Content, points: pd.DataFrame, taken: set[str | None]) -> str | None:
    """Return a further axis with few values for the panels, or None."""
    for axis in content["axes"]:
        key: str = axis["key"]
        if key in taken or not axis["leads"] or axis["kind"] == "random":
            continue
        if 2 <= points[key].nunique(dropna=False) <= _MOST_PANELS:
            return key
    return None
