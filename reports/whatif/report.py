"""The report of a what-if, section by section."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reports.document import (
    WEAKER,
    Block,
    Cell,
    Code,
    Column,
    Details,
    Figure,
    Report,
    Section,
    Table,
    Text,
    Tile,
    warning_section,
)
from reports.facts import evidence_shares
from reports.numbers import (
    MISSING,
    whole_percent,
)
from reports.schemas import WHATIF
from reports.whatif.answer import (
    figure_of,
    find,
    heading,
    headline,
    method_text,
    nothing_sentence,
    per_gpu_sentence,
    slo_sentence,
    together_sentence,
    together_verdict,
    why_sentence,
    zero_text,
)
from reports.whatif.figures import distributions, rates, waterfall
from reports.whatif.tables import (
    account_bars,
    account_table,
    condition_table,
    figure_table,
    warning_texts,
)
from reports.whatif.words import (
    Content,
    change_text,
    label_of,
    ran,
    settings_text,
    spelled,
)
from sim.errors import ScenarioError

FILE = "whatif.json"

_PARTS = ("method", "figures", "shares", "baseline", "variants", "together", "answer")


def read_whatif(folder: Path | str) -> Content:
    """Read ``whatif.json``.

    Raises `ScenarioError` if the file is missing, is not JSON, has another schema, or lacks a part.
    """
    path = Path(folder) / FILE
    again = "Run `fleetcast whatif ... --out` again."
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror}). {again}") from None
    except ValueError as error:
        raise ScenarioError(f"{path}: not valid JSON ({error}). {again}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != WHATIF:
        found = f"schema {schema!r}" if schema is not None else "no 'schema' key"
        raise ScenarioError(f"{path}: {found}; this version reads {WHATIF!r}. {again}")
    assert isinstance(content, dict)
    missing = [part for part in _PARTS if part not in content]
    if missing:
        raise ScenarioError(f"{path}: lacks {', '.join(missing)}. {again}")
    return content


def read_scenarios(folder: Path | str, content: Content) -> dict[str, str]:
    """Read the YAML of each variant's scenario that was written, by variant name.

    Raises `ScenarioError` if a file that whatif.json names is missing.
    """
    texts = {}
    for variant in (content["baseline"], *content["variants"]):
        name = variant.get("scenario_file")
        if name:
            path = Path(folder) / name
            try:
                texts[variant["name"]] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ScenarioError(f"{path}: cannot be read ({error})") from None
    return texts


def write_whatif_page(folder: Path | str) -> Path:
    """Write ``whatif.html`` into the folder of a what-if and return its path.

    The page is identical for identical folders. Raises `ScenarioError` if a file is missing or
    cannot be read.
    """
    from reports.html import write_page

    folder = Path(folder)
    content = read_whatif(folder)
    return write_page(
        whatif_report(content, read_scenarios(folder, content)), folder / "whatif.html"
    )


def whatif_report(content: Content, scenarios: Mapping[str, str] | None = None) -> Report:
    """Return the report of a what-if from the content of whatif.json. ``scenarios`` are YAML texts
    by variant, for the page alone."""
    workload = content["baseline"]["conditions"].get("workload") or ""
    return Report(
        eyebrow="What if",
        heading=heading(content),
        headline=headline(content),
        sentences=[
            nothing_sentence(content),
            slo_sentence(content),
            per_gpu_sentence(content),
            together_sentence(content),
        ],
        alerts=_refusals(content),
        tiles=_tiles(content),
        sections=[
            _changes(content, workload),
            _figures(content),
            _accounts(content),
            Section("latency", "Latency", [Figure(partial(distributions, content))], on="page"),
            Section("capacity", "Capacity", [Figure(partial(rates, content))], on="page"),
            _together(content),
            warning_section(warning_texts(content)),
            Section("conditions", "Conditions that differ", [condition_table(content)], on="page"),
            _evidence(content),
            Section(
                "scenarios",
                "Scenarios",
                [
                    Details(f"{name}, defaults filled in", [Code(text)])
                    for name, text in (scenarios or {}).items()
                ],
                on="page",
            ),
        ],
        closing=[
            f"Baseline: {heading(content)}, {workload}. {why_sentence(content)}",
            method_text(content),
        ],
        version=content["fleetcast_version"],
        width=120,
        pipe_width=110,
    )


def _refusals(content: Content) -> list[str]:
    return [
        f"{variant['name']} is refused: {variant['refused']}"
        for variant in content["variants"]
        if variant["refused"] is not None
    ]


def _tiles(content: Content) -> list[Tile]:
    """Return the headline numbers of the best variant, or of the baseline if none is better."""
    best = find(content, content["answer"]["best"])
    if best is None:
        return []
    tiles = []
    by_slo = content["answer"]["figure"] == "goodput"
    latencies = ("attainment", "goodput", "ttft.p99") if by_slo else ("ttft.p99", "tpot.p99")
    for key in (*latencies, *(() if by_slo else ("e2e.mean",)), "saturation", "gpus"):
        figure = figure_of(content, key)
        value = best["values"].get(key)
        if value is None:
            continue
        note = change_text(best["deltas"][key], figure)
        base = spelled(content["baseline"]["values"][key], figure).removesuffix(" requests/s")
        note = "as before" if note == "same" else f"{base.removesuffix(' GPUs')} before, {note}"
        value_text = spelled(value, figure).removesuffix(" GPUs").removesuffix(" requests/s")
        tiles.append(Tile(label_of(key), value_text, note))
    return tiles


def _changes(content: Content, workload: str) -> Section:
    rows = [[variant["name"], settings_text(variant)] for variant in content["variants"]]
    blocks: list[Block] = [
        Text(f"Baseline: {workload}."),
        Table([Column("Variant"), Column("Settings")], rows),
    ]
    return Section("changes", "What was changed", blocks, on="page")


def _figures(content: Content) -> Section:
    short = figure_table(content, compact=True)
    is_unsure = any(isinstance(c, Cell) and c.tone == "unsure" for row in short.rows for c in row)
    zero = zero_text(content)
    refused = _refusals(content)
    return Section(
        "figures",
        "All figures",
        [
            short,
            Text(f"{zero}; pt: percentage points" if is_unsure else "", "note", on="terminal"),
            *(Text(text, "bad", on="terminal") for text in refused),
            figure_table(content, compact=False),
            Text(f"{why_sentence(content)} {method_text(content)}", "note", on="page"),
            Text(
                "Changes are in percent of the baseline; those of shares in percentage points "
                f"(pt). Grey is what is not told apart; {zero}.",
                "note",
                on="page",
            ),
        ],
        terminal="",
    )


def _accounts(content: Content) -> Section:
    return Section(
        "accounts",
        "Which accounts moved",
        [
            account_bars(content),
            Figure(lambda sheet: waterfall(content, "e2e", sheet)),
            Figure(lambda sheet: waterfall(content, "ttft", sheet)),
            account_table(content, "e2e", "End-to-end time, mean a finished request"),
            account_table(content, "ttft", "Time to first token, mean a finished request"),
            Text(
                "Every nanosecond of a request is in exactly one account, so each column sums to "
                "the change of the mean.",
                "note",
                on="page",
            ),
        ],
        terminal="Which accounts of mean end-to-end time moved",
    )


def _together(content: Content) -> Section:
    rows = []
    for key, row in content["together"]["figures"].items():
        figure = figure_of(content, key)
        if figure["better"] is not None:
            whole = spelled(row["product"] + row["delta"], figure)
            product, gap = spelled(row["product"], figure), change_text(row, figure)
            rows.append([label_of(key), whole, product, gap, together_verdict(row, figure)])
    if not rows:
        return Section("together", "", [])
    headings = ("All together", "Product", "Difference")
    columns = [Column("Figure"), *(Column(name, "number") for name in headings)]
    return Section(
        "together",
        "All together, and the product of each alone",
        [
            Text(
                "Gains rarely multiply: two changes may shorten the same account, or one may move "
                "the limit to where the other has nothing to gain. The product is the baseline "
                "times each single change's ratio."
            ),
            Table(
                [*columns, Column("In words")],
                rows,
                note="Differences are in percent of the baseline, with the interval of the paired "
                "differences.",
            ),
        ],
        on="page",
    )


def _evidence(content: Content) -> Section:
    rows = []
    for variant in (content["baseline"], *ran(content)):
        shares = evidence_shares(variant)
        words = ", ".join(f"{whole_percent(share)} {label}" for label, share in shares)
        rows.append([variant["name"], variant["label"] or MISSING, words])
    return Section(
        "evidence",
        "Evidence",
        [
            Table(
                [
                    Column("Variant"),
                    Column("Weakest label", "evidence"),
                    Column("Share of simulated time", "note"),
                ],
                rows,
                note="A label is the weakest that carries at least 5% of the simulated time. "
                f"{WEAKER} A change of evidence between baseline and variant is not covered by the "
                "intervals.",
            )
        ],
        on="page",
    )
