"""The page of a capacity search: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from reports.capacity.answer import certainty, distance, heading, headline, wanted_lines
from reports.capacity.facts import (
    Content,
    account_rows,
    account_total,
    amount,
    curve_metrics,
    curve_rows,
    is_light,
    level_text,
    miss_rows,
    read_capacity,
    state_rows,
    tail_text,
)
from reports.capacity.figures import draw_capacity
from reports.numbers import (
    LATENCY_LABELS,
    condition_text,
    duration,
    sentence,
    share_text,
    significant,
    target,
    whole_percent,
)
from reports.templates import Cell, Column, Tile, render_page
from sim.errors import ScenarioError


def write_capacity_page(folder: Path | str) -> Path:
    """Write ``capacity.html`` into a folder with capacity.json and scenario.yaml.

    The page needs no network and no script, and is identical for identical folders. Raises
    `ScenarioError` if a file is missing or cannot be read.
    """
    from reports.folder import read_scenario

    folder = Path(folder)
    content = read_capacity(folder)
    page = folder / "capacity.html"
    try:
        text = render_capacity(content, read_scenario(folder))
    except KeyError as error:
        raise ScenarioError(
            f"{folder / 'capacity.json'}: lacks {error}; run `fleetcast capacity` again"
        ) from None
    page.write_text(text, encoding="utf-8")
    return page


def render_capacity(content: Content, scenario_yaml: str) -> str:
    """Render the page as HTML text."""
    binding = content["binding"]
    found = content["answer"]["capacity"] is not None
    return render_page(
        "capacity/page.html.j2",
        plots=draw_capacity(content),
        title=f"{heading(content)}: capacity",
        eyebrow="Capacity",
        heading=heading(content),
        answer=headline(content),
        tone="good" if found else "bad",
        reason=" ".join(part for part in (certainty(content), distance(content)) if part),
        alerts=[],
        tiles=_tiles(content),
        binding_sentence=binding["sentence"],
        advice=binding["advice"],
        wanted=wanted_lines(content),
        at=amount(content, binding["level"]),
        miss_rows=miss_rows(content),
        account_columns=_account_columns(content),
        account_rows=[_account_cells(content, row) for row in account_rows(content)],
        account_total=_account_cells(content, account_total(content)),
        tail=tail_text(content),
        state_rows=state_rows(content),
        curve_columns=_curve_columns(content),
        curve_rows=_curve_cells(content),
        warnings=[sentence(warning["text"]) for warning in content["warnings"]],
        conditions=_conditions(content),
        method=content["method"],
        evidence=list(content["evidence"].items()),
        label=content["label"],
        sources=content["sources"],
        scenario_yaml=scenario_yaml,
        run=content["run"],
        version=content["fleetcast_version"],
    )


def _tiles(content: Content) -> list[Tile]:
    question, answer, binding = content["question"], content["answer"], content["binding"]
    tiles = []
    if answer["capacity"] is not None:
        low, high = (level_text(content, x) for x in answer["interval"])
        note = question["unit"] if low == high else f"{question['unit']}, {low} to {high}"
        tiles.append(Tile("Capacity", level_text(content, answer["capacity"]), note))
        if answer["gpus"] > 1:
            tiles.append(Tile("A GPU", significant(answer["per_gpu"]), question["unit"]))
        if answer["of_saturation"]:
            note = f"of {significant(answer['saturation_per_s'])} requests/s"
            tiles.append(Tile("Of saturation", whole_percent(answer["of_saturation"]), note))
    if content["wanted"]:
        wanted = content["wanted"]
        note = f"for {amount(content, wanted['level'])}"
        replicas = wanted["simulated_replicas"] or wanted["replicas"]
        tiles.append(Tile("Replicas", f"{replicas:,}", note))
    for name in curve_metrics(content):
        value = binding["latency_s"].get(name, {}).get("p99")
        aim = question["targets"].get(name)
        note = f"target {target(aim)}" if aim else f"at {amount(content, binding['level'])}"
        tiles.append(Tile(f"{LATENCY_LABELS[name]} p99", duration(value), note))
    return tiles


def _account_columns(content: Content) -> list[Column]:
    binding = content["binding"]
    loads = ("level",) if is_light(content) else ("light_level", "level")
    columns = [Column(f"at {amount(content, binding[load])}", "n") for load in loads]
    return [Column("Account"), *columns, Column("Share", "n")]


def _account_cells(content: Content, row: tuple[str, str, str, str]) -> list[str]:
    name, light, at, share = row
    return [name, at, share] if is_light(content) else [name, light, at, share]


def _curve_columns(content: Content) -> list[Column]:
    columns = [Column(content["question"]["unit"])]
    if any(row.load for row in curve_rows(content)):
        columns.append(Column("Of saturation", "n"))
    columns += [Column("Attainment", "n"), Column("95%", "n")]
    columns += [Column(f"{LATENCY_LABELS[name]} p99", "n") for name in curve_metrics(content)]
    columns.append(Column("Runs", "n"))
    return [*columns, Column("Queue", "over")] if _grows(content) else columns


def _grows(content: Content) -> bool:
    return any(row.grows for row in curve_rows(content))


def _curve_cells(content: Content) -> list[list[str | Cell]]:
    rows = curve_rows(content)
    has_load = any(row.load for row in rows)
    return [
        [
            row.level,
            *([row.load] if has_load else []),
            Cell(row.attainment, row.tone),
            *(row.interval, *row.latencies, row.runs),
            *([row.grows] if _grows(content) else []),
        ]
        for row in rows
    ]


def _conditions(content: Content) -> list[tuple[str, str]]:
    question, conditions = content["question"], content["conditions"]
    rows = []
    if question["attainment"] is not None:
        rows.append(("Requests that must meet the SLO", share_text(question["attainment"])))
    rows += [
        (f"{LATENCY_LABELS[name]} target", target(value))
        for name, value in question["targets"].items()
    ]
    rows.append(("Precision asked for", f"±{question['precision']:.1%}"))
    rows += [
        (_LABELS.get(name, name), condition_text(value))
        for name, value in conditions.items()
        if name not in ("slo", "notes", "operators") and value is not None
    ]
    return rows + [("Note", note) for note in conditions["notes"]]


_LABELS = {
    "model": "Model",
    "gpu": "GPU",
    "gpus": "GPUs in all",
    "replicas": "Replicas",
    "tensor_parallel_size": "Tensor parallel size",
    "engine": "Engine",
    "scheduler": "Scheduler",
    "router": "Router",
    "workload": "Workload",
    "runs": "Runs",
    "cost_model": "Cost model",
    "calibration_sha256": "Calibration (SHA-256)",
    "seed": "Seeds",
}
