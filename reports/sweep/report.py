"""The report of a sweep, section by section."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.document import (
    WEAKER,
    Cell,
    Column,
    Fact,
    Figure,
    Report,
    Row,
    Section,
    Table,
    Text,
    Tile,
    Warnings,
    conditions_section,
    numbers,
    scenario_section,
)
from reports.numbers import humanised, sentence, whole_percent
from reports.sweep.answer import alerts, best_note, heading, headline, reason
from reports.sweep.facts import (
    Effect,
    axis_keys,
    effects,
    failures,
    kept_points,
    nearest_points,
    points_table,
    row_of,
    warning_codes,
)
from reports.sweep.figures import draw
from reports.sweep.folder import Content, read_sweep, read_text
from reports.sweep.plots import PlotSpec, parse_plot, wanted_plots
from reports.sweep.words import (
    axis_label,
    axis_unit,
    axis_value,
    figure_label,
    in_a_sentence,
    value_text,
    warning_text,
)

if TYPE_CHECKING:
    import pandas as pd

_SHOWN, _SHOWN_ON_TERMINAL = 15, 8
"""Most points in the table of the best."""
_KEPT = 2
"""Columns after the first that a terminal never leaves out."""
_TILES = ("attainment", "ttft.p99", "tpot.p99")
_FAILURES = 5
"""Most failures that a terminal shows, each of at most ``_LONGEST`` characters."""
_LONGEST = 240


def write_sweep_page(folder: Path | str, plots: Sequence[str] = ()) -> Path:
    """Write ``sweep.html`` into the folder of a sweep and return its path.

    ``plots`` are figures that replace those the sweep asks for, each ``figure,axis[,axis[,kind]]``.
    The page is identical for identical folders. Raises `ScenarioError` if a file is missing or a
    figure cannot be drawn.
    """
    from reports.html import write_page

    folder = Path(folder)
    content, table = read_sweep(folder)
    files = {
        "The sweep file": read_text(folder, "sweep.yaml"),
        "The scenario of the first point, defaults filled in": read_text(folder, "scenario.yaml"),
    }
    points = points_table(content, table)
    specs = [parse_plot(content, points, text) for text in plots]
    report = sweep_report(content, table, files, specs or wanted_plots(content, points))
    return write_page(report, folder / "sweep.html")


def sweep_report(
    content: Content,
    table: pd.DataFrame,
    files: dict[str, str] | None = None,
    specs: Sequence[PlotSpec] = (),
) -> Report:
    """Return the report of a sweep from the content of sweep.json and its table.

    The page alone shows the figures of ``specs`` and ``files``, YAML texts by what they are.
    """
    points = points_table(content, table)
    return Report(
        eyebrow="Sweep",
        heading=heading(content),
        headline=headline(content, points),
        tone="good" if kept_points(content) else "bad",
        sentences=[reason(content, points), best_note(content, points)],
        alerts=alerts(content, table),
        tiles=_tiles(content, points),
        sections=[
            _figures(content, table, points, specs),
            _best(content, points),
            _effects(content, points),
            _cause(content, points),
            _failures(content, table),
            _warnings(content, table),
            _conditions(content, table),
            _evidence(table),
            scenario_section("Sweep", files or {}),
        ],
        footer=[f"{content['points']:,} points", f"{len(table):,} runs"],
        version=content["fleetcast_version"],
    )


def _tiles(content: Content, points: pd.DataFrame) -> list[Tile]:
    """Return the headline numbers of the best point."""
    ranking = kept_points(content)
    if not ranking:
        return []
    best, choice = row_of(points, ranking[0]), content["choice"]
    tiles = []
    for name in dict.fromkeys((choice["best"], *_TILES)):
        if name in points and best[name] == best[name]:
            text = value_text(content, name, best[name])
            value, _, unit = text.partition(" ")
            is_time = unit in ("ms", "s", "µs", "")
            tile = (text, "") if is_time else (value, unit)
            tiles.append(Tile(figure_label(name), *tile))
    tiles.append(Tile("Points kept", f"{choice['kept']:,}", f"of {choice['measured']:,}"))
    return tiles


def _figures(
    content: Content, table: pd.DataFrame, points: pd.DataFrame, specs: Sequence[PlotSpec]
) -> Section:
    shares = _evidence_shares(table)
    evidence = {shares[-1][0]: ""} if len(shares) == 1 else None
    figures = [
        Figure(partial(draw, content, table, points, spec, f"sweep-{place}"), evidence)
        for place, spec in enumerate(specs)
    ]
    return Section("figures", "Over the axes", figures, on="page")


def _best(content: Content, points: pd.DataFrame) -> Section:
    """Return the best points that meet the requirement, or those nearest to it if none does."""
    choice, ranking = content["choice"], kept_points(content)
    if choice is None:
        return Section("best", "", [])
    chosen = ranking[:_SHOWN]
    title = f"The best {min(_SHOWN, len(ranking))} of {len(ranking):,} points"
    if not chosen:
        title = "The points nearest to what is required"
        chosen = nearest_points(points)[:_SHOWN] if "attainment" in points else []
    if not chosen:
        return Section("best", "", [])
    words = f"By {in_a_sentence(choice['best'])}, the {choice['better']} the better"
    words += f", of points that keep {choice['require']}" if choice["require"] else ""
    words += "; figures are means over the seeds" if content["replications"] > 1 else ""
    table = _points(content, points, chosen)
    return Section("best", title, [table, Text(sentence(words), "note", on="page")], terminal="")


def _points(content: Content, points: pd.DataFrame, chosen: list[int]) -> Table:
    """Return points as rows of their axes, the deciding figure, the SLO's figures, and what they
    rest on. A narrow terminal leaves out the last columns."""
    keys = [key for key in axis_keys(content) if points[key].nunique(dropna=False) > 1]
    names = [content["choice"]["best"], "attainment", "ttft.p99", "tpot.p99", "e2e.p99"]
    names += ["gpu_busy", "gpus"]
    known = [n for n in dict.fromkeys(names) if n in points and points[n].notna().any()]
    figures = [name for name in known if name != "gpus" or points[name].nunique() > 1]
    rows = []
    for point in chosen:
        cells = row_of(points, point)
        axes = (axis_value(cells[key]) for key in keys)
        rows.append([f"{point}", *axes, *(value_text(content, n, cells[n]) for n in figures)])
    headings = [axis_label(key, axis_keys(content)) for key in keys]
    is_text = [points[key].dtype.kind not in "if" for key in keys] + [False] * len(figures)
    headings += [figure_label(name) for name in figures]
    columns = [Column("Point", terminal="Point")]
    for place, (name, has_words) in enumerate(zip(headings, is_text, strict=True)):
        drop = len(headings) - place if place >= _KEPT else 0
        columns.append(Column(name, "text" if has_words else "number", terminal=name, drop=drop))
    return Table(columns, rows, most_rows=_SHOWN_ON_TERMINAL)


def _effects(content: Content, points: pd.DataFrame) -> Section:
    """Return the best result with each value of an axis, a table an axis."""
    by_axis: dict[str, list[Effect]] = {}
    for effect in effects(content, points):
        by_axis.setdefault(effect.axis, []).append(effect)
    if not by_axis:
        return Section("axes", "", [])
    choice = content["choice"]
    required = f" that keep {choice['require']}" if choice["require"] else ""
    said = (
        f"For each value, the best {in_a_sentence(choice['best'])} of all points with it"
        f"{required}, whatever the other axes are."
    )
    tables = [
        Table(
            [
                Column(axis_unit(key) or "Value"),
                *numbers(figure_label(choice["best"]), "Points kept", "Point"),
            ],
            _effect_rows(content, found),
            title=axis_label(key, axis_keys(content)),
        )
        for key, found in by_axis.items()
    ]
    return Section("axes", "The best with each value of an axis", [Text(said), *tables], on="page")


def _effect_rows(content: Content, found: list[Effect]) -> list[Row]:
    choice = content["choice"]
    known = [effect.best for effect in found if effect.best is not None]
    best_of = min if choice["better"] == "lower" else max
    top = best_of(known) if known else None
    return [
        [
            effect.value,
            Cell(
                value_text(content, choice["best"], effect.best),
                "good" if effect.best is not None and effect.best == top else "",
            ),
            f"{effect.kept:,} of {effect.measured:,}",
            "" if effect.point is None else f"{effect.point}",
        ]
        for effect in found
    ]


def _cause(content: Content, points: pd.DataFrame) -> Section:
    """Return where the end-to-end time of the best point goes, the largest account first."""
    ranking = kept_points(content)
    row = row_of(points, ranking[0]) if ranking else {}
    accounts = {
        name.partition(".")[2]: float(value)
        for name, value in row.items()
        if name.startswith("e2e_account.") and value == value and value > 0
    }
    total_s = sum(accounts.values())
    rows: list[Row] = [
        [humanised(name), whole_percent(seconds / total_s), Cell("", share=seconds / total_s)]
        for name, seconds in sorted(accounts.items(), key=lambda item: -item[1])
        if seconds > total_s / 100
    ]
    columns = [Column("Account of end-to-end time"), *numbers("Share"), Column("", "bar")]
    return Section("cause", "Where the time of the best goes", [Table(columns, rows)], on="page")


def _failures(content: Content, table: pd.DataFrame) -> Section:
    rows = [[f.message, f"{f.points:,}", f.example] for f in failures(content, table)]
    columns = [Column("Message"), *numbers("Points"), Column("For example", "note")]
    return Section("failures", "Points that could not be run", [Table(columns, rows)], on="page")


def _warnings(content: Content, table: pd.DataFrame) -> Section:
    """Return on the page what runs warn of, and on a terminal what a reader must see."""
    warned = [
        f"{count:,} of {len(table):,} runs warn: {warning_text(code)}."
        for code, count in warning_codes(table).items()
    ]
    failed = [
        f"{failure.points:,}: {_shortened(failure.message)}"
        for failure in failures(content, table)[:_FAILURES]
    ]
    seen = [*alerts(content, table), *failed]
    blocks = [Warnings(warned, on="page"), Warnings(seen, on="terminal")]
    return Section("warnings", "Mind", blocks)


def _shortened(message: str) -> str:
    return message if len(message) < _LONGEST else f"{message[:_LONGEST]} ..."


def _conditions(content: Content, table: pd.DataFrame) -> Section:
    """Return the conditions that all points share, and the axes."""
    keys = axis_keys(content)
    rows = [
        Fact(axis_label(key, keys), axis_value(value)) for key, value in content["base"].items()
    ]
    rows += [
        Fact(f"Axis {axis_label(axis['key'], keys)}", _axis_text(axis, table))
        for axis in content["axes"]
    ]
    rows += [
        Fact(f"Left out by {text}", f"{count:,} points")
        for text, count in content["left_out"].items()
        if count
    ]
    rows += [
        Fact("Points", f"{content['points']:,}"),
        Fact("Runs of a point", f"{content['replications']:,}"),
    ]
    hashes: list[str] = []
    if "calibration_sha256" in table:
        hashes = sorted(set(table["calibration_sha256"].dropna()))
    if len(hashes) == 1:
        rows.append(Fact("Calibration (SHA-256)", hashes[0]))
    elif hashes:
        rows.append(Fact("Calibrations", f"{len(hashes)}, by column calibration_sha256"))
    rows.append(Fact("Code (SHA-256)", content["code_sha256"]))
    said = (
        "Every figure of every run is in sweep.parquet, beside this page: a row a run, a column an "
        "axis and a figure."
    )
    return conditions_section(rows, said)


def _axis_text(axis: dict[str, Any], table: pd.DataFrame) -> str:
    if axis["kind"] != "random":
        text = ", ".join(axis_value(value) for value in axis["values"])
        return text + (" (zipped)" if axis["kind"] == "zipped" else "")
    drawn = table[axis["key"]].dropna()
    span = ", ".join(dict.fromkeys(axis_value(value) for value in drawn))
    if drawn.dtype.kind in "if":
        span = f"{axis_value(drawn.min())} to {axis_value(drawn.max())}"
    return f"{axis['draws']:,} draws, {span}"


def _evidence(table: pd.DataFrame) -> Section:
    shares = ", ".join(
        f"{whole_percent(share)} {label}" for label, share in _evidence_shares(table)
    )
    said = (
        f"Share of runs by the weakest evidence that carries at least 5% of their time: {shares}."
    )
    blocks = [Text(said if shares else ""), Text(WEAKER, "note")]
    return Section("evidence", "Evidence", blocks, on="page")


def _evidence_shares(table: pd.DataFrame) -> list[tuple[str, float]]:
    """Return the evidence labels of the points' figures, and the share of runs with each."""
    if "evidence" not in table:
        return []
    shares: Any = table["evidence"].dropna().value_counts(normalize=True, sort=True)
    return [(str(label), float(share)) for label, share in shares.items()]
