"""The page of a sweep: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.numbers import sentence
from reports.sweep.answer import alerts, best_note, heading, headline, reason
from reports.sweep.facts import (
    Effect,
    axis_keys,
    failures,
    kept_points,
    points_table,
    row_of,
    warning_codes,
)
from reports.sweep.figures import draw_plots
from reports.sweep.folder import Content, read_sweep, read_text
from reports.sweep.plots import PlotSpec, parse_plot, wanted_plots
from reports.sweep.text import SHOWN, cause_rows, condition_rows, effect_rows, evidence_rows, ranked
from reports.sweep.words import (
    axis_label,
    axis_unit,
    figure_label,
    in_a_sentence,
    value_text,
    warning_text,
)
from reports.templates import Cell, Column, Tile, render_page

if TYPE_CHECKING:
    import pandas as pd

_TILES = ("attainment", "ttft.p99", "tpot.p99")


def write_sweep_page(folder: Path | str, plots: Sequence[str] = ()) -> Path:
    """Write ``sweep.html`` into the folder of a sweep and return its path.

    ``plots`` are figures that replace those the sweep asks for, each ``figure,axis[,axis[,kind]]``.
    The page needs no network and no script, and is identical for identical folders. Raises
    `ScenarioError` if a file is missing or a figure cannot be drawn.
    """
    folder = Path(folder)
    content, table = read_sweep(folder)
    page = folder / "sweep.html"
    sweep_yaml, scenario_yaml = (read_text(folder, n) for n in ("sweep.yaml", "scenario.yaml"))
    text = render_sweep(content, table, sweep_yaml, scenario_yaml, plots)
    page.write_text(text, encoding="utf-8")
    return page


def render_sweep(
    content: Content,
    table: pd.DataFrame,
    sweep_yaml: str,
    scenario_yaml: str,
    plots: Sequence[str] = (),
) -> str:
    """Render the page as HTML text."""
    points = points_table(content, table)
    specs: list[PlotSpec] = [parse_plot(content, points, text) for text in plots]
    drawn = draw_plots(content, table, points, specs or wanted_plots(content, points))
    shares = evidence_rows(table)
    bad = failures(content, table)
    best = ranked(content, points) if content["choice"] else None
    return render_page(
        "sweep/page.html.j2",
        plots={plot.name: plot for plot in drawn},
        figures=[plot.name for plot in drawn],
        title=f"{heading(content)}: sweep",
        eyebrow="Sweep",
        heading=heading(content),
        answer=headline(content, points),
        tone="good" if kept_points(content) else "bad",
        reason=" ".join(
            text for text in (reason(content, points), best_note(content, points)) if text
        ),
        alerts=alerts(content, table),
        tiles=_tiles(content, points),
        version=content["fleetcast_version"],
        evidence={shares[-1][0]: ""} if len(shares) == 1 else None,
        ranked=best or {"rows": []},
        best_heading=_best_heading(content),
        ranked_columns=_ranked_columns(content, points, best.headings if best else []),
        ranked_note=_ranked_note(content),
        effects=[
            (
                axis_label(key, axis_keys(content)),
                _effect_columns(content, key),
                _cells(content, of),
            )
            for key, of in effect_rows(content, points)
        ],
        effects_note=_effects_note(content),
        causes=cause_rows(content, points),
        failure_columns=[Column("Message"), Column("Points", "n"), Column("For example", "over")],
        failures=[[f.message, f"{f.points:,}", f.example] for f in bad],
        warnings=_warnings(table),
        conditions=condition_rows(content, table),
        evidence_shares=shares,
        sweep_yaml=sweep_yaml,
        scenario_yaml=scenario_yaml,
        counts=f"{content['points']:,} points · {len(table):,} runs",
    )


def _tiles(content: Content, points: pd.DataFrame) -> list[Tile]:
    """Return the headline numbers of the best point."""
    ranking = kept_points(content)
    if not ranking:
        return []
    best, choice = row_of(points, ranking[0]), content["choice"]
    names = [choice["best"], *(name for name in _TILES if name != choice["best"])]
    tiles = []
    for name in names:
        if name in points and best[name] == best[name]:
            text = value_text(content, name, best[name])
            value, _, unit = text.partition(" ")
            is_time = unit in ("ms", "s", "µs", "")
            tiles.append(
                Tile(figure_label(name), text if is_time else value, _tile_note(name, unit))
            )
    tiles.append(Tile("Points kept", f"{choice['kept']:,}", f"of {choice['measured']:,}"))
    return tiles


def _tile_note(name: str, unit: str) -> str:
    return "" if unit in ("ms", "s", "µs", "") else unit


def _best_heading(content: Content) -> str:
    ranking = kept_points(content)
    if not ranking:
        return "The points nearest to what is required"
    return f"The best {min(SHOWN, len(ranking))} of {len(ranking):,} points"


def _ranked_note(content: Content) -> str:
    choice = content["choice"]
    if choice is None:
        return ""
    words = f"By {in_a_sentence(choice['best'])}, the {choice['better']} the better"
    words += f", of points that keep {choice['require']}" if choice["require"] else ""
    several = content["replications"] > 1
    return sentence(words + ("; figures are means over the seeds" if several else ""))


def _ranked_columns(content: Content, points: pd.DataFrame, headings: list[str]) -> list[Column]:
    keys = {axis_label(key, axis_keys(content)): key for key in axis_keys(content)}
    return [
        Column(
            heading, "" if heading in keys and points[keys[heading]].dtype.kind not in "if" else "n"
        )
        for heading in headings
    ]


def _effect_columns(content: Content, key: str) -> list[Column]:
    unit = axis_unit(key)
    return [
        Column(unit or "Value"),
        Column(figure_label(content["choice"]["best"]), "n"),
        Column("Points kept", "n"),
        Column("Point", "n"),
    ]


def _cells(content: Content, of_axis: list[Effect]) -> list[list[str | Cell]]:
    lower = content["choice"]["better"] == "lower"
    known = [effect.best for effect in of_axis if effect.best is not None]
    top: Any = (min(known) if lower else max(known)) if known else None
    return [
        [
            effect.value,
            Cell(
                value_text(content, content["choice"]["best"], effect.best),
                "gain" if effect.best is not None and effect.best == top else "",
            ),
            f"{effect.kept:,} of {effect.measured:,}",
            "" if effect.point is None else f"{effect.point}",
        ]
        for effect in of_axis
    ]


def _effects_note(content: Content) -> str:
    choice = content["choice"]
    if choice is None:
        return ""
    required = f" that keep {choice['require']}" if choice["require"] else ""
    return (
        f"For each value, the best {in_a_sentence(choice['best'])} of all points with it"
        f"{required}, whatever the other axes are."
    )


def _warnings(table: pd.DataFrame) -> list[str]:
    return [
        f"{count:,} of {len(table):,} runs warn: {warning_text(code)}."
        for code, count in warning_codes(table).items()
    ]
