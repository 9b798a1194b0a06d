"""The report of a run, section by section."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reports.document import (
    Beside,
    Block,
    Fact,
    Facts,
    Figure,
    Report,
    Section,
    Table,
    Text,
    Tile,
    Warnings,
    cell,
    evidence_section,
    scenario_section,
)
from reports.facts import (
    CONDITION_LABELS,
    Summary,
    account_rows,
    entries,
    evidence_shares,
    figures_by_name,
    section,
    value_of,
    warning_texts,
    weakest_evidence,
)
from reports.folder import read_requests, read_scenario, read_steps, read_summary
from reports.numbers import (
    LATENCY_LABELS,
    MISSING,
    UTILIZATION_LABELS,
    condition_text,
    duration,
    humanised,
    is_number,
    listed,
    percent,
    significant,
    spread_note,
    target,
    whole_percent,
)
from reports.run.answer import (
    SENTENCES,
    conditions_text,
    pool_texts,
    slo_targets,
    speculation_text,
    system_text,
    verdict,
)
from reports.run.engines import engine_table, engines_over_time, usable_blocks
from reports.run.figures import (
    account_breakdown,
    latency_distributions,
    latency_over_time,
)
from reports.run.tables import (
    account_bars,
    account_table,
    class_table,
    gauge_tables,
    latency_table,
    memory_table,
    operator_table,
    slo_table,
    tier_table,
)

if TYPE_CHECKING:
    import pandas as pd


class RunFiles(NamedTuple):
    """What a result folder holds beside its summary, as the readers of ``reports.folder`` return
    it."""

    requests: pd.DataFrame
    steps: pd.DataFrame
    scenario_yaml: str


def write_run_page(folder: Path | str) -> Path:
    """Write ``report.html`` into a result folder and return its path.

    The page is identical for identical folders. Raises `ScenarioError` if a file of the folder is
    missing or cannot be read.
    """
    from reports.html import write_page

    folder = Path(folder)
    summary = read_summary(folder)
    files = RunFiles(read_requests(folder), read_steps(folder), read_scenario(folder))
    return write_page(run_report(summary, files), folder / "report.html")


def run_report(summary: Summary, files: RunFiles | None = None) -> Report:
    """Return the report of a run. Its figures, engines and scenario need the ``files``; a terminal
    shows none of them."""
    answer = verdict(summary)
    return Report(
        eyebrow="Capacity report",
        heading=system_text(summary),
        headline=answer.sentence,
        tone=answer.tone,
        sentences=[answer.reason, *(told(summary) for told in SENTENCES)],
        alerts=warning_texts(summary, grave=True),
        tiles=_tiles(summary),
        sections=[
            _objective(summary),
            _latency(summary, files),
            Section("classes", "Classes of requests", [class_table(summary)]),
            _load(summary, files),
            _tiers(summary),
            *_features(summary),
            _time(summary, files),
            Section("operators", "Where kernel times come from", [operator_table(summary)]),
            Section("memory", "Device memory", [memory_table(summary)]),
            _warnings(summary),
            Section("conditions", "Conditions", [Facts(condition_rows(summary))], on="page"),
            evidence_section(
                evidence_shares(summary),
                [source for source in entries(summary, "sources") if isinstance(source, dict)],
            ),
            scenario_section(
                "Scenario",
                {"The scenario as it was run, defaults filled in": files.scenario_yaml}
                if files
                else {},
            ),
        ],
        closing=[conditions_text(summary)],
        footer=_footer(summary),
        version=str(summary.get("fleetcast_version") or ""),
        pipe_width=None,
    )


def _objective(summary: Summary) -> Section:
    blocks: list[Block] = [slo_table(summary)]
    if not slo_targets(summary) and not class_table(summary).rows:
        blocks = [Text("No target is set, so every finished request counts as good.")]
    return Section("slo", "Service level objective", blocks, on="page")


def _latency(summary: Summary, files: RunFiles | None) -> Section:
    table = latency_table(summary)
    blocks: list[Block] = [table] if table.rows else [Text("No latency was recorded.", on="page")]
    if table.rows:
        blocks.append(Text(_latency_note(table, summary), "note", on="terminal"))
    if files:
        blocks += [
            Figure(
                lambda sheet: latency_distributions(files.requests, slo_targets(summary), sheet),
                _evidence_of(summary, ("ttft", "tpot", "e2e")),
                absent="No request finished, so there is no latency to draw.",
            ),
            Figure(
                lambda sheet: latency_over_time(files.requests, slo_targets(summary), sheet),
                _evidence_of(summary, ("ttft", "tpot")),
            ),
        ]
    return Section("latency", "Latency", blocks)


def _latency_note(table: Table, summary: Summary) -> str:
    """Say which requests the latencies are over, and what their spread is."""
    metrics_over: dict[str, list[str]] = {}
    for row in table.rows:
        metric, over = cell(row[0]).text, cell(row[-2]).text
        metrics_over.setdefault(over, []).append(metric)
    over_all = [
        f"{listed(metrics)} over {over}" if len(metrics_over) > 1 else f"over {over}"
        for over, metrics in metrics_over.items()
        if over
    ]
    return "; ".join(filter(None, (*over_all, spread_note(summary))))


def _load(summary: Summary, files: RunFiles | None) -> Section:
    tables = gauge_tables(summary)
    gauges = [Facts(_gauges(table)) for table in tables]
    blocks: list[Block] = [
        Beside([facts for facts in gauges if facts.rows]),
        *tables,
        Text(speculation_text(summary), "note"),
    ]
    if files:
        metrics = ("running", "waiting", "kv_occupancy", "output_throughput")
        blocks += [
            Figure(
                lambda sheet: engines_over_time(files.steps, usable_blocks(summary), sheet),
                _evidence_of(summary, metrics),
            ),
            engine_table(summary, files.requests, files.steps),
        ]
    return Section("load", "Throughput and utilisation", blocks)


def _gauges(table: Table) -> list[Fact]:
    """Return the rows as facts: the two peaks on one line, hits as a share alone."""
    rows = {cell(row[0]).text: row for row in table.rows}
    bandwidth = rows.pop(UTILIZATION_LABELS["bandwidth_in_use"], None)
    rows.pop(UTILIZATION_LABELS["cache_hit_tokens"], None)
    facts = []
    for label, row in rows.items():
        value, maximum, unit = (cell(one).text for one in row[1:4])
        beside = f"max {maximum}" if maximum else unit
        if label == UTILIZATION_LABELS["arithmetic_in_use"] and bandwidth is not None:
            beside = f"bandwidth {cell(bandwidth[1]).text}"
        facts.append(Fact(label, value, beside, cell(row[1]).note))
    return facts


def _tiers(summary: Summary) -> Section:
    return Section(
        "tiers",
        "Prefix cache by tier",
        [tier_table(summary)],
        terminal="Where prefix hits come from, as shares of the prompt tokens",
    )


def _features(summary: Summary) -> list[Section]:
    """Return a section of facts for each optional feature that the run had."""
    found = [one for one in entries(summary, "features") if isinstance(one, dict)]
    return [
        Section(
            f"feature-{number}",
            str(one["title"]),
            [Facts([Fact(str(fact["name"]), str(fact["value"])) for fact in one["facts"]])],
        )
        for number, one in enumerate(found, 1)
    ]


def _time(summary: Summary, files: RunFiles | None) -> Section:
    books = {
        name: account_rows(summary, f"{key}_accounts_s")
        for name, key in (("GPU", "step"), ("E2E", "e2e"), ("TTFT", "ttft"))
    }
    total_s = sum(row.seconds for row in books["E2E"])
    table = account_table(summary)
    blocks: list[Block] = [account_bars(summary)]
    if files:
        evidence = _evidence_of(summary, ("e2e", "ttft"))
        blocks.append(Figure(lambda sheet: account_breakdown(books, sheet), evidence))
    if not table.rows:
        blocks = [Text("No step was taken, so there is no time to account for.", on="page")]
    return Section(
        "time",
        "Where the time goes",
        [*blocks, table],
        terminal=f"Where end-to-end time goes, mean {duration(total_s)} a finished request",
    )


def _warnings(summary: Summary) -> Section:
    """Return the warnings: on a terminal all, on the page those that do not stand on top."""
    blocks = [
        Warnings(warning_texts(summary), on="terminal"),
        Warnings(warning_texts(summary, grave=False), on="page"),
    ]
    return Section("warnings", "Mind", blocks)


def _tiles(summary: Summary) -> list[Tile]:
    slo, saturation = section(summary, "slo"), section(summary, "saturation")
    tiles = []
    if slo_targets(summary):
        attainment, goodput = slo.get("attainment"), slo.get("goodput_per_s")
        tiles.append(
            Tile(
                "SLO attainment",
                percent(attainment) if is_number(attainment) else MISSING,
                "of arrived requests",
            )
        )
        tiles.append(
            Tile(
                "Goodput",
                significant(goodput) if is_number(goodput) else MISSING,
                "good requests/s",
            )
        )
    targets = slo_targets(summary)
    for name in ("ttft", "tpot"):
        value = value_of(summary, name, "p99")
        note = f"target {target(targets[name])}" if name in targets else "of finished requests"
        tiles.append(Tile(f"{LATENCY_LABELS[name]} p99", duration(value), note))
    load, limit = saturation.get("load"), saturation.get("saturation_per_s")
    if is_number(load):
        note = f"of {significant(limit)} requests/s" if is_number(limit) else "of saturation"
        tiles.append(Tile("Load", whole_percent(load), note))
    return tiles


def _evidence_of(summary: Summary, metrics: tuple[str, ...]) -> dict[str, str]:
    """Return evidence label -> the metrics that carry it, for the caption of a figure."""
    by_name = figures_by_name(summary)
    carried: dict[str, list[str]] = {}
    for name in metrics:
        label = weakest_evidence(list(by_name.get(name, {}).values()))
        if label != MISSING:
            carried.setdefault(label, []).append(LATENCY_LABELS.get(name, humanised(name)))
    return {label: listed(names) for label, names in carried.items()}


def condition_rows(summary: Summary) -> list[Fact]:
    """Return the conditions of the result as rows of label and value."""
    conditions = section(summary, "conditions")
    pools = conditions.get("pools")
    if pools:
        own = ("gpu", *pools[0])
        conditions = {name: value for name, value in conditions.items() if name not in own}
        texts = zip(pools, pool_texts(summary), strict=True)
        of_pools = {
            f"Pool {pool['name']}": f"{text}, {pool['scheduler']}, {pool['num_gpu_blocks']:,} KV "
            f"blocks, max_num_seqs {pool['max_num_seqs']:,}"
            for pool, text in texts
        }
        conditions = {**of_pools, **conditions, "pools": None}
    names = [name for name in CONDITION_LABELS if conditions.get(name) is not None]
    names += [
        name
        for name, value in conditions.items()
        if name not in (*CONDITION_LABELS, "slo", "notes", "operators") and value is not None
    ]
    rows = [
        Fact(CONDITION_LABELS.get(name, name), condition_text(conditions[name])) for name in names
    ]
    notes = conditions.get("notes")
    if isinstance(notes, list):
        rows += [Fact("Note", str(note)) for note in notes]
    saturation = section(summary, "saturation")
    for key, label in (("offered_per_s", "Offered load"), ("saturation_per_s", "Saturation")):
        if is_number(saturation.get(key)):
            rows.append(Fact(label, f"{significant(saturation[key])} requests/s"))
    return rows


def _footer(summary: Summary) -> list[str]:
    run = section(summary, "run")
    counts = [
        f"{value:,.0f} {humanised(name)}"
        for name, value in run.items()
        if is_number(value) and name != "wall_s"
    ]
    return [*counts, *([f"simulated in {duration(run['wall_s'])}"] if run.get("wall_s") else [])]
