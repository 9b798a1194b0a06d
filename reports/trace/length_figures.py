"""Figures of prompt and output lengths, each alone and one against the other."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports import svg
from reports.numbers import percent
from reports.svg import Plot, Sheet
from reports.trace.answer import tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = (("prompt_tokens", "Input"), ("output_tokens", "Output"))
_LEVELS = 6


def length_distributions(series: dict[str, Any], sheet: Sheet) -> Plot | None:
    """Draw histograms of input and output tokens on a logarithmic axis."""
    panels = [(label, series[name]) for name, label in _PANELS if series.get(name)]
    if not panels:
        return None
    said = []
    height = 0.4 + 2.1 * len(panels) if sheet.is_narrow else 2.6
    with sheet.drawing(height) as figure:
        figure.set_layout_engine("constrained", wspace=0.06)
        all_axes = sheet.panels(figure, len(panels))
        for axes, (label, found) in zip(all_axes, panels, strict=True):
            said.append(_draw_histogram(axes, label, found))
        all_axes[0].set_ylabel("share of requests in a bin")
        caption = (
            "Requests by tokens, in bins of equal width on a logarithmic scale (of a whole number "
            "at least); a spike is many requests of nearly one length."
        )
        zeros = sum(found["zeros"] for _, found in panels)
        if zeros:
            caption += f" {zeros:,} requests without output are not shown."
        return sheet.plot(
            figure, "length-distributions", "Input and output lengths", " ".join(said), caption
        )


def _draw_histogram(axes: Axes, label: str, found: dict[str, Any]) -> str:
    edges, counts = np.array(found["edges"]), np.array(found["counts"], float)
    share = counts / (counts.sum() + found["zeros"])
    axes.stairs(share, edges, fill=True, color=svg.BLUE, alpha=0.34, lw=0)
    axes.stairs(share, edges, color=svg.BLUE, lw=1.2)
    svg.log_axis(axes, max(float(edges[0]), 0.5), float(edges[-1]), tokens)
    axes.set_ylim(0, float(share.max()) * 1.12)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g}%")
    axes.set_xlabel(f"{label.lower()} tokens")
    axes.set_title(label)
    top = int(np.argmax(share))
    return (
        f"{label} tokens: the fullest bin, {_between(edges, top)}, holds {percent(share[top])} of "
        "requests."
    )


def _between(edges: NDArray[np.float64], index: int) -> str:
    low, high = np.ceil(edges[index]), np.floor(edges[index + 1])
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def input_against_output(series: dict[str, Any] | None, sheet: Sheet) -> Plot | None:
    """Draw the density of requests over input and output tokens; darker means more."""
    if series is None:
        return None
    x_edges, y_edges = np.array(series["prompt_edges"]), np.array(series["output_edges"])
    counts = np.array(series["counts"])
    # Levels in equal steps of the logarithm of the count, so that a tail is visible beside a peak.
    bounds = np.unique(np.ceil(np.geomspace(1, counts.max() + 1, _LEVELS + 1)).astype(int))
    levels = list(pairwise(bounds.tolist()))
    with sheet.drawing(4.2 if sheet.is_narrow else 3.6) as figure:
        axes = figure.subplots()
        axes.grid(False)
        handles = []
        for number, (low, high) in enumerate(levels, 1):
            alpha = 0.08 + 0.87 * number / len(levels)
            cells = np.argwhere((counts >= low) & (counts < high))
            handles.append(_draw_cells(axes, cells, x_edges, y_edges, alpha, low, high))
        svg.log_axis(axes, max(x_edges[0], 0.5), x_edges[-1], tokens)
        svg.log_axis(axes, max(y_edges[0], 0.5), y_edges[-1], tokens, vertical=True)
        axes.set_xlabel("input tokens")
        axes.set_ylabel("output tokens")
        figure.legend(
            handles=handles[::-1],
            title="requests in a cell",
            loc="outside lower left" if sheet.is_narrow else "outside right upper",
            ncols=2 if sheet.is_narrow else 1,
            handlelength=1.2,
            alignment="left",
            title_fontsize=8.5,
        )
        at = np.unravel_index(int(np.argmax(counts)), counts.shape)
        alt = (
            f"Requests by input and output tokens. The fullest cell has {counts.max():,} of "
            f"{counts.sum():,}: input {_between(x_edges, int(at[0]))}, output "
            f"{_between(y_edges, int(at[1]))} tokens."
        )
        caption = "Requests by input and output tokens; cells of equal size on logarithmic scales."
        return sheet.plot(figure, "input-against-output", "Input against output", alt, caption)


def _draw_cells(
    axes: Axes,
    cells: NDArray[np.int64],
    x_edges: NDArray[np.float64],
    y_edges: NDArray[np.float64],
    alpha: float,
    low: int,
    high: int,
) -> Any:
    """Draw all cells of one level as one path, and return its legend entry."""
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    i, j = cells.T
    corners = np.stack(
        [
            np.column_stack((x_edges[i + a], y_edges[j + b]))
            for a, b in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))
        ],
        axis=1,
    )
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(i))
    if len(i):
        path = Path(corners.reshape(-1, 2), codes)
        axes.add_patch(PathPatch(path, facecolor=svg.BLUE, alpha=alpha, lw=0))
    label = f"{low:,}" if high - low == 1 else f"{low:,} to {high - 1:,}"
    return Patch(facecolor=svg.BLUE, alpha=alpha, lw=0, label=label)
