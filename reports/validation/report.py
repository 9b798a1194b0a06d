"""The report of a validation, section by section."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from reports.document import (
    Block,
    Cell,
    Column,
    Fact,
    Facts,
    Figure,
    Report,
    Row,
    Section,
    Table,
    Text,
    Tile,
    numbers,
    warning_section,
)
from reports.numbers import (
    LATENCY_LABELS,
    MISSING,
    duration_unit,
    is_number,
    listed,
    percent,
    significant,
)
from reports.schemas import VALIDATION
from reports.validation.errors import (
    PERCENTILES,
    Content,
    absolute_errors,
    error_cell,
    headline,
    run_names,
)
from reports.validation.figures import latency_distributions, percentile_errors, steps_scatter
from sim.books.metrics import LATENCIES
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

_REGIMES = ("light", "busy", "saturated")
_LOADS = (
    ("request_throughput", "mean", "req/s"),
    ("running", "mean", "running"),
    ("running", "max", "most"),
)
"""Metric, statistic and heading of each figure of a run's load."""


def write_validation_page(folder: Path | str) -> Path:
    """Write ``validation.html`` into a folder with accuracy.json and latencies.parquet.

    The page is identical for identical folders. Raises `ScenarioError` if a file is missing or
    cannot be read.
    """
    import pandas as pd

    from reports.html import write_page

    folder = Path(folder)
    path = folder / "accuracy.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        latencies = pd.read_parquet(folder / "latencies.parquet")
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{folder}: no readable validation ({error})") from None
    if not isinstance(content, dict) or content.get("schema") != VALIDATION:
        raise ScenarioError(f"{path}: not of schema {VALIDATION!r}; run `fleetcast validate` again")
    return write_page(validation_report(content, latencies), folder / "validation.html")


def validation_report(content: Content, latencies: pd.DataFrame | None = None) -> Report:
    """Return the report of the content of accuracy.json.

    ``latencies`` has the columns run, metric, predicted and measured (s), one row per request; a
    terminal needs none.
    """
    return Report(
        eyebrow=f"Validation against measurements: {content.get('folder', '')}",
        heading=_heading(content),
        headline=headline(content),
        tiles=_tiles(content),
        sections=[
            _glance(content),
            _runs(content, latencies),
            _steps(content),
            _conformance(content),
            _blocks(content),
            warning_section(content["warnings"]),
            _conditions(content),
        ],
        closing=[
            f"{key}: {conditions['engine']}, {conditions['model']} on {conditions['gpus']} x "
            f"{conditions['gpu']}; profile {conditions['profile']}, efficiency "
            f"{conditions['efficiency']}"
            for key, conditions in content["conditions"].items()
        ],
        version=content.get("fleetcast_version", ""),
        width=110,
        pipe_width=110,
    )


def _heading(content: Content) -> str:
    """Name the models and devices, each once, without what is in brackets."""
    conditions = content["conditions"].values()
    models = dict.fromkeys(str(c["model"]).partition(" (")[0] for c in conditions)
    gpus = dict.fromkeys(str(c["gpu"]) for c in conditions)
    return f"{listed(models)} on {listed(gpus)}"


def _tiles(content: Content) -> list[Tile]:
    tiles = []
    below = [f for f in content["figures"] if f["regime"] in ("light", "busy")]
    figures = below or content["figures"]
    where = "below saturation" if below else "in overload"
    for metric in LATENCIES:
        errors = absolute_errors(figures, [metric])
        if errors:
            note = f"median error {where}; worst {max(errors):.0%}"
            tiles.append(Tile(LATENCY_LABELS[metric], percent(median(errors)), note))
    points: list[Any] = content["step_points"]
    if points:
        note = f"median error of {len(points)} points"
        held_out = [abs(p["error"]) for p in points if p["held_out"]]
        if held_out:
            note += f"; held out {percent(median(held_out))}"
        error = median(abs(p["error"]) for p in points)
        tiles.append(Tile("Controlled steps", percent(error), note))
    equal = [s["equal"] for s in content["conformance"] if is_number(s["equal"])]
    if equal:
        count = sum(s["steps"] for s in content["conformance"])
        note = f"of {count:,} steps composed as recorded"
        tiles.append(Tile("Scheduler", percent(min(equal)), note))
    return tiles


def _glance(content: Content) -> Section:
    """Return the median and the worst absolute error by regime and metric."""
    metrics: dict[str, tuple[str, ...]]
    metrics = {LATENCY_LABELS[metric]: (metric,) for metric in LATENCIES}
    metrics |= {"Throughput": ("request_throughput", "output_throughput")}
    rows: list[Row] = []
    for regime in _REGIMES:
        figures = [f for f in content["figures"] if f["regime"] == regime]
        runs = dict.fromkeys(f["run"] for f in figures)
        cells = [_median_and_worst(absolute_errors(figures, names)) for names in metrics.values()]
        if runs:
            rows.append([regime, *(cell for pair in cells for cell in pair), listed(runs)])
    columns = [Column("Regime")]
    for name in metrics:
        columns += [
            Column("Median", "number", terminal=_small(name), group=name),
            Column("Worst", "number", group=name),
        ]
    if not rows:
        return Section("glance", "", [])
    return Section(
        "glance",
        "How far off, by load",
        [
            Table([*columns, Column("Runs", "note", on="page")], rows),
            Text(
                "Median of the absolute errors of mean, p50, p90 and p99, and the worst. Load is "
                "the offered rate over the rate at which the engine saturates: light below 50%, "
                "busy below 90%. The nearer to saturation, the more an error in step times weighs.",
                "note",
                on="page",
            ),
            Figure(partial(percentile_errors, content)),
        ],
        terminal="Serving runs at a glance: median of the absolute errors, and the worst",
    )


def _small(label: str) -> str:
    return label if label[1].isupper() or label[1].isdigit() else label.lower()


def _median_and_worst(errors: list[float]) -> tuple[str | Cell, str]:
    if not errors:
        return MISSING, ""
    return error_cell(median(errors), signed=False), f"{max(errors):.1%}"


def _runs(content: Content, latencies: pd.DataFrame | None) -> Section:
    runs = run_names(content)
    if not runs:
        return Section("runs", "", [])
    notes = [(run, note) for run in runs if (note := _run_note(content, run))]
    on_page = " ".join(f"{run}: {note}." for run, note in notes)
    blocks: list[Block] = [
        Text(
            "Each run is simulated freely: the prediction knows when requests arrive and how long "
            "they are, nothing of what the engine did.",
            on="page",
        ),
        _latency_table(content),
        *(Text(f"{r}: {note}", "note", on="terminal") for r, note in notes if "stalled" in note),
        Text(on_page, "note", on="page"),
    ]
    if latencies is not None:
        blocks.append(Figure(partial(latency_distributions, content, latencies)))
    return Section("runs", "Serving runs", [*blocks, _load_table(content)], terminal="")


def _latency_table(content: Content) -> Table:
    """Return one row per run and latency: predicted, measured and error at each percentile."""
    rows: list[Row] = []
    before = ""
    for run in run_names(content):
        for metric in LATENCIES:
            found = [_figure(content, run, metric, name) for name in PERCENTILES]
            if not any(found):
                continue
            sides = [f[side] for f in found if f for side in ("predicted", "measured")]
            unit, per_second = duration_unit(sides)
            cells = (cell for figure in found for cell in _triple(figure, per_second))
            shown = "" if run == before else run
            rows.append([run, shown, LATENCY_LABELS[metric], unit, *cells])
            before = run
    columns = [
        Column("Run", on="page"),
        Column("Run", on="terminal"),
        Column("Metric"),
        Column("Unit", terminal=""),
    ]
    for name in PERCENTILES:
        columns += _triple_columns(name, "measured")
    return Table(
        columns, rows, terminal="Latency of the serving runs, predicted from arrivals alone"
    )


def _load_table(content: Content) -> Table:
    """Return one row per run: throughput and requests running, predicted and measured."""
    rows: list[Row] = []
    for run in run_names(content):
        conditions = _run_conditions(content, run)
        load = percent(conditions["load"]) if is_number(conditions.get("load")) else MISSING
        found = (_figure(content, run, metric, name) for metric, name, _ in _LOADS)
        cells = (cell for figure in found for cell in _triple(figure))
        rows.append([run, str(conditions.get("regime", MISSING)), load, *cells])
    columns = [Column("Run"), Column("Regime"), *numbers("Load")]
    for *_, name in _LOADS:
        columns += _triple_columns(name, "meas.")
    return Table(
        columns,
        rows,
        title="Throughput and requests running",
        terminal="Throughput and requests running; load is offered over saturation rate",
        note="Requests finished over the time of the last finish; requests running, mean over time "
        "and most at once.",
    )


def _triple_columns(name: str, measured: str) -> list[Column]:
    """Return columns for what was predicted, what was measured, and the error. A narrow terminal
    leaves out what was measured, because the error implies it."""
    return [
        Column("Predicted", "number", terminal=name, group=name),
        Column("Measured", "number", terminal=measured, group=name, drop=1),
        Column("Error", "number", group=name),
    ]


def _triple(figure: dict[str, Any] | None, factor: float = 1.0) -> tuple[str, str, str | Cell]:
    """Return a figure's predicted and measured values, times ``factor``, and its error."""
    if figure is None:
        return MISSING, MISSING, MISSING
    predicted, measured = (
        f"{value:,.0f}" if factor == 1 and float(value).is_integer() else significant(value)
        for value in (figure["predicted"] * factor, figure["measured"] * factor)
    )
    return predicted, measured, error_cell(figure["error"])


def _figure(content: Content, run: str, metric: str, statistic: str) -> dict[str, Any] | None:
    wanted = (run, metric, statistic)
    return next(
        (f for f in content["figures"] if (f["run"], f["metric"], f["statistic"]) == wanted), None
    )


def _run_conditions(content: Content, run: str) -> dict[str, Any]:
    """Return the load, regime and loop of a run."""
    key, _, name = run.partition(":")
    conditions: dict[str, Any] = content["conditions"].get(key, {}).get("runs", {}).get(name, {})
    return conditions


def _run_note(content: Content, run: str) -> str:
    """Say what a reader must know about a run to interpret its figures."""
    conditions = _run_conditions(content, run)
    parts = []
    if is_number(conditions.get("load")):
        parts.append(f"{conditions['regime']}, {conditions['load']:.0%} of saturation")
    if str(conditions.get("loop", "")).startswith("closed"):
        parts.append("closed loop")
    if conditions.get("scored_from_s"):
        parts.append(
            f"scored from {conditions['scored_from_s']:.1f} s on: the engine stalled before"
        )
    return "; ".join(parts)


def _steps(content: Content) -> Section:
    """Return the errors of the controlled steps, one row per engine and kind of step."""
    scores = {(s["key"], s["kind"], s["half"]): s for s in content["steps"]}
    rows: list[Row] = []
    strong = []
    for (key, kind, half), score in scores.items():
        if half != "all":
            continue
        held_out = scores.get((key, kind, "held_out"))
        if kind == "all":
            strong.append(len(rows))
        rows.append(
            [
                key,
                "all kinds" if kind == "all" else kind,
                f"{score['count']}",
                *(error_cell(score[f"{name}_abs"], signed=False) for name in _SIZES),
                f"{score['bias']:+.1%}",
                percent(score["within"]),
                str(held_out["count"]) if held_out else "0",
                error_cell(held_out and held_out["median_abs"], signed=False),
            ]
        )
    if not rows:
        return Section("steps", "", [])
    columns = [
        Column("Engine"),
        Column("Kind"),
        Column("Points", "number", terminal="n"),
        *numbers("Median"),
        Column("p95", "number"),
        *numbers("Worst", "Bias"),
        Column("In range", "number", on="page"),
        Column("Held out", "number", terminal="set aside"),
        Column("Their median", "number", terminal="median"),
    ]
    return Section(
        "steps",
        "Controlled steps",
        [
            Text(
                "One batch composition at a time on an otherwise quiet engine: what the cost model "
                "alone gets right.",
                on="page",
            ),
            Figure(partial(steps_scatter, content)),
            Table(
                columns,
                rows,
                strong=strong,
                note="Absolute errors of the step time; bias is the median signed error. In range: "
                "points predicted within the range of their own repeats. Held out: the half of the "
                "points set aside to judge a fit.",
            ),
        ],
        terminal="Controlled steps: absolute errors of the step time, and of the half set aside",
    )


_SIZES = ("median", "p95", "worst")


def _conformance(content: Content) -> Section:
    """Return the share of steps that the scheduler composes as recorded, one row per run."""
    rows: list[Row] = []
    for score in content["conformance"]:
        differ = [f"{n} {percent(s)}" for n, s in score["by_column"].items() if s not in (1, None)]
        shares = [
            percent(share) if is_number(share) else MISSING
            for share in (score["equal"], score["cached_equal"])
        ]
        run = f"{score['key']}:{score['run']}"
        rows.append([run, f"{score['steps']:,}", *shares, Cell(", ".join(differ))])
    columns = [
        Column("Run"),
        *numbers("Steps"),
        Column("Composed as recorded", "number", terminal="equal"),
        Column("Prefix hits equal", "number"),
        Column("Columns that differ", "note", wraps=True),
    ]
    return Section(
        "scheduler",
        "Scheduler",
        [
            Table(
                columns,
                rows,
                note="Each run is replayed on its recorded clock and every step composed anew: "
                "tokens, sequences, context, running, waiting, preemptions and free blocks must "
                "all be equal.",
            )
        ],
        terminal="Scheduler, replayed on the recorded clock: share of steps composed as recorded",
    )


def _blocks(content: Content) -> Section:
    rows = [
        [figure["run"].partition(":")[0], *_triple(figure)]
        for figure in content["figures"]
        if figure["metric"] == "num_gpu_blocks"
    ]
    columns = [
        Column("Engine"),
        Column("Memory plan", "number", terminal="predicted"),
        Column("Allocated by the engine", "number", terminal="recorded"),
        *numbers("Error"),
    ]
    return Section(
        "memory",
        "KV blocks",
        [Table(columns, rows)],
        terminal="KV blocks: the memory plan against what the engine allocated",
    )


def _conditions(content: Content) -> Section:
    facts = [
        Facts([Fact(name, _plain(v)) for name, v in conditions.items() if name != "runs"], key)
        for key, conditions in content["conditions"].items()
    ]
    return Section("conditions", "Conditions", facts, on="page")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        labels = dict.fromkeys(str(label) for label in value.values())
        return ", ".join(labels)
    return f"{value:,}" if isinstance(value, int) else str(value)
