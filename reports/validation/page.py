"""The page of a validation: one self-contained HTML file."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from reports.numbers import LATENCY_LABELS, is_number, listed, percent
from reports.schemas import VALIDATION
from reports.templates import Tile, render_page
from reports.validation.facts import (
    GLANCE_COLUMNS,
    LOAD_COLUMNS,
    PERCENTILES,
    Content,
    absolute_errors,
    block_rows,
    condition_rows,
    conformance_rows,
    glance_rows,
    headline,
    latency_rows,
    load_rows,
    run_names,
    run_note,
    step_rows,
)
from reports.validation.figures import draw_validation
from sim.books.metrics import LATENCIES
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd


def write_validation_page(folder: Path | str) -> Path:
    """Write ``validation.html`` into a folder with accuracy.json and latencies.parquet.

    The page needs no network and no script, and is identical for identical folders. Raises
    `ScenarioError` if a file is missing or cannot be read.
    """
    import pandas as pd

    folder = Path(folder)
    path = folder / "accuracy.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        latencies = pd.read_parquet(folder / "latencies.parquet")
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{folder}: no readable validation ({error})") from None
    if not isinstance(content, dict) or content.get("schema") != VALIDATION:
        raise ScenarioError(f"{path}: not of schema {VALIDATION!r}; run `fleetcast validate` again")
    page = folder / "validation.html"
    page.write_text(render_validation(content, latencies), encoding="utf-8")
    return page


def render_validation(content: Content, latencies: pd.DataFrame) -> str:
    """Render the page as HTML text. ``latencies`` has the columns run, metric, predicted and
    measured (s), one row per request."""
    return render_page(
        "validation/page.html.j2",
        "validation/page.css.j2",
        plots=draw_validation(content, latencies),
        title=f"{_title(content)}: validation",
        eyebrow=f"Validation against measurements: {content['folder']}",
        heading=_title(content),
        answer=headline(content),
        tiles=_tiles(content),
        percentiles=PERCENTILES,
        glance_columns=GLANCE_COLUMNS,
        glance=glance_rows(content),
        latencies=latency_rows(content),
        notes=[(run, note) for run in run_names(content) if (note := run_note(content, run))],
        load_columns=[name for *_, name in LOAD_COLUMNS],
        loads=load_rows(content),
        steps=step_rows(content),
        conformance=conformance_rows(content),
        blocks=block_rows(content),
        warnings=content["warnings"],
        conditions=condition_rows(content),
        version=content["fleetcast_version"],
    )


def _title(content: Content) -> str:
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
