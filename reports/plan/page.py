"""The page of a plan: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.numbers import share_text, significant, whole_percent
from reports.plan.answer import headline, reasons, relaxed_sentences
from reports.plan.facts import (
    Content,
    attained_rows,
    candidate_rows,
    engines_of,
    fleet_rows,
    gpus_of,
    level_text,
    option_text,
    ranked_rows,
    read_plan_result,
    runs_text,
    targets_text,
    usd,
)
from reports.plan.figures import draw_plan
from reports.templates import Cell, Column, Tile, render_page, save_page
from sim.errors import ScenarioError

_TONES = {"kept": "good", "misses": "poor", "too slow": "poor", "cannot run": "poor"}


def write_plan_page(folder: Path | str) -> Path:
    """Write ``plan.html`` into a folder with plan.json and plan.yaml.

    The page needs no network and no script, and is identical for identical folders. Raises
    `ScenarioError` if a file is missing or cannot be read.
    """
    folder = Path(folder)
    content = read_plan_result(folder)
    try:
        asked = (folder / "plan.yaml").read_text(encoding="utf-8")
        text = render_plan(content, asked)
    except OSError as error:
        raise ScenarioError(f"{folder / 'plan.yaml'}: {error.strerror}") from None
    except KeyError as error:
        raise ScenarioError(
            f"{folder / 'plan.json'}: lacks {error}; run `fleetcast plan` again"
        ) from None
    return save_page(text, folder / "plan.html")


def render_plan(content: Content, plan_yaml: str) -> str:
    """Render the page as HTML text."""
    found = bool(content["ranked"])
    best: dict[str, Any] = content["ranked"][0]["binding"] if found else {}
    heading = f"A fleet for {content['conditions']['model']}"
    return render_page(
        "plan/page.html.j2",
        plots=draw_plan(content),
        title=f"{heading}: plan",
        eyebrow="Plan",
        heading=heading,
        answer=headline(content),
        tone="good" if found else "bad",
        reason=" ".join(line for line in reasons(content) if line),
        tiles=_tiles(content),
        relaxed=relaxed_sentences(content),
        ranked_columns=[
            Column("Candidate"),
            Column("Engines", "n"),
            Column("GPUs", "n"),
            Column("An hour", "n"),
            Column("Headroom", "n"),
            Column("Binds"),
            Column("By", "over"),
        ],
        ranked_rows=[list(row) for row in ranked_rows(content)],
        binding_sentence=best.get("sentence", ""),
        advice=best.get("advice", ""),
        attained_columns=[
            Column("Target"),
            Column("Percentile", "n"),
            Column("Within", "n"),
            Column("Worst run", "n"),
            Column("Asked", "n"),
        ],
        attained_rows=attained_rows(content),
        fleet_columns=[
            Column("Fleet"),
            Column("GPUs", "n"),
            Column("An hour", "n"),
            Column("Of target", "n"),
            Column("Which", "over"),
        ],
        fleet_rows=fleet_rows(content),
        candidate_columns=[Column("Candidate"), Column(""), Column("Why", "over")],
        candidate_rows=[
            [name, Cell(stage, _TONES.get(stage, "")), why]
            for name, stage, why in candidate_rows(content)
        ],
        commands=_commands(content),
        scenario_yaml=content["winner"]["scenario"] if content["winner"] else "",
        conditions=_conditions(content),
        method=content["method"],
        evidence=list(content["evidence"]["shares"].items()),
        label=content["evidence"]["label"],
        plan_yaml=plan_yaml,
        run=content["run"],
        version=content["fleetcast_version"],
    )


def _tiles(content: Content) -> list[Tile]:
    """Return the three fleets of the answer, and the cheapest fleet's cost and headroom."""
    counts, tiles = content["counts"], []
    fewest = "Fewest tried that fit" if content["sampled"] else "Fewest that fit"
    labels = (("fits", fewest), ("cheapest", "Cheapest"), ("spare", "With N+1"))
    for key, label in labels:
        fleet = counts[key]
        if fleet is not None:
            note = f"GPUs: {gpus_of(fleet)}, {usd(fleet['usd_per_h'])}/h"
            tiles.append(Tile(label, f"{fleet['gpus']:,}", note))
    if content["ranked"]:
        best = content["ranked"][0]
        tiles.append(Tile("A month", usd(round(best["usd_per_month"])), engines_of(best)))
        if best["headroom"] is not None:
            note = f"carries {level_text(content, best['capacity'])}"
            tiles.append(Tile("Headroom", whole_percent(best["headroom"]), note))
        if best["usd_per_million_tokens"] is not None:
            cost = f"${significant(best['usd_per_million_tokens'])}"
            tiles.append(Tile("A million tokens", cost, "in and out, at the planned load"))
    return tiles


def _commands(content: Content) -> list[dict[str, str]]:
    if content["winner"] is None:
        return []
    names = {"vllm": "vLLM", "sglang": "SGLang"}
    return [
        {
            "title": f"{names[row['engine']]} {row['version']}: {row['replicas']:,} "
            f"{'replicas' if row['role'] == 'mixed' else row['role'] + ' engines'} on {row['gpu']}",
            "command": row["command"],
            "unsaid": _unsaid(row["unsaid"]),
        }
        for row in content["winner"]["commands"]
    ]


def _unsaid(fields: dict[str, Any]) -> str:
    """Name the engine and KV fields that no flag of this version expresses; empty if there are
    none."""
    own = {key: value for key, value in fields.items() if key.startswith(("engine.", "kv."))}
    if not own:
        return ""
    told = ", ".join(f"{key}: {value}" for key, value in own.items())
    return f"No flag of this version says {told}."


def _conditions(content: Content) -> list[tuple[str, str]]:
    asked, conditions = content["question"], content["conditions"]
    rows = [
        ("Targets", targets_text(content)),
        ("Load planned for", level_text(content, asked["level"])),
        ("Load today", level_text(content, asked["now"])),
        ("Workload", conditions["workload"]),
        (
            "A request, mean",
            f"{asked['prompt_tokens']:,.0f} tokens in, {asked['output_tokens']:,.0f} out",
        ),
        ("Confidence", share_text(asked["confidence"])),
        ("A fleet that passes", runs_text(content)),
    ]
    for offer in asked["gpus"]:
        had = "any number" if offer["available"] is None else f"{offer['available']:,}"
        where = ", ".join(x for x in (offer["source"], offer["date"]) if x) or "assumed"
        rows.append((offer["gpu"], f"{usd(offer['usd_per_gpu_h'])} an hour ({where}), {had}"))
    winner = content["ranked"][0]["options"] if content["ranked"] else {}
    rows += [("Option", option_text(key, value)) for key, value in winner.items()]
    return rows + [("Note", note) for note in conditions["notes"]]
