"""The page of a run: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reports import templates
from reports.facts import (
    Summary,
    account_rows,
    entries,
    evidence_shares,
    figures_by_name,
    latency_rows,
    other_rows,
    section,
    throughput_rows,
    utilization_rows,
    value_of,
    warning_texts,
    weakest_evidence,
)
from reports.folder import read_requests, read_scenario, read_steps, read_summary
from reports.numbers import (
    LATENCY_LABELS,
    LATENCY_MEANINGS,
    MISSING,
    byte_size,
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
from reports.run.figures import draw_figures
from reports.run.rows import TIER_COLUMNS as TIER_COLUMNS
from reports.run.rows import engine_table, operator_rows, tier_rows
from reports.run.speculation import speculation_text
from reports.run.verdict import CLASS_COLUMNS as CLASS_COLUMNS
from reports.run.verdict import SENTENCES, class_rows, pool_texts, slo_targets, system_text, verdict
from reports.templates import Column, Tile
from sim.accounts import TIME_ACCOUNTS
from sim.books.metrics import STATISTICS

if TYPE_CHECKING:
    import pandas as pd

_BOOKS = {
    "GPU time, all steps": "step_accounts_s",
    "E2E, mean": "e2e_accounts_s",
    "TTFT, mean": "ttft_accounts_s",
}


class ByteRow(NamedTuple):
    """One account of a GPU's memory in bytes."""

    label: str
    size: str
    num_bytes: str
    share: float | None


def account_table(summary: Summary) -> dict[str, Any]:
    """Return the time accounts of the GPUs, E2E and TTFT, one row per account."""
    books = {
        heading: {row.account: row for row in account_rows(summary, key)}
        for heading, key in _BOOKS.items()
    }
    books = {heading: rows for heading, rows in books.items() if rows}
    met = {row.account: row.label for rows in books.values() for row in rows.values()}
    cells: list[tuple[str, ...]] = []
    for account in sorted(met, key=_account_order):
        row = [met[account]]
        for rows in books.values():
            posted = rows.get(account)
            row += [duration(posted.seconds), percent(posted.share)] if posted else ["", ""]
        cells.append(tuple(row))
    total = ["total"]
    for rows in books.values():
        total += [duration(sum(row.seconds for row in rows.values())), "100%"]
    columns = [Column(name, "n") for heading in books for name in (heading, "share")]
    return {
        "account_columns": [Column("Account"), *columns],
        "account_cells": cells,
        "account_total": tuple(total),
    }


def _account_order(account: str) -> int:
    return TIME_ACCOUNTS.index(account) if account in TIME_ACCOUNTS else len(TIME_ACCOUNTS)


def byte_rows(summary: Summary) -> list[ByteRow]:
    """Return the bytes of one GPU by account, and their total."""
    device = {
        name: value for name, value in section(summary, "device_bytes").items() if is_number(value)
    }
    total = device.pop("total", None)
    if total is not None and sum(device.values()) != total:
        # Accounts that do not balance are shown, because that is a finding.
        device["not posted"] = total - sum(device.values())
    whole = total or sum(device.values())
    rows = [
        ByteRow(
            humanised(name), byte_size(value), f"{value:,.0f}", value / whole if whole else None
        )
        for name, value in device.items()
    ]
    if total is not None:
        rows.append(ByteRow("total", byte_size(total), f"{total:,.0f}", None))
    return rows


_CONDITIONS = {
    "model": "Model",
    "gpu": "GPU",
    "gpus": "GPUs in all",
    "replicas": "Replicas",
    "tensor_parallel_size": "Tensor parallel size",
    "pipeline_parallel_size": "Pipeline parallel size",
    "data_parallel_size": "Data parallel size",
    "prefill_context_parallel_size": "Prefill context parallel size",
    "decode_context_parallel_size": "Decode context parallel size",
    "expert_parallel_size": "Expert parallel size",
    "engine": "Engine",
    "scheduler": "Scheduler",
    "router": "Router",
    "workload": "Workload",
    "cost_model": "Cost model",
    "calibration_sha256": "Calibration (SHA-256)",
    "seed": "Seed",
}
# Metrics that each figure shows; the figure's evidence is theirs.
_FIGURE_METRICS = {
    "latency-distributions": ("ttft", "tpot", "e2e"),
    "latency-over-time": ("ttft", "tpot"),
    "engines-over-time": ("running", "waiting", "kv_occupancy", "output_throughput"),
    "account-breakdown": ("e2e", "ttft"),
}


class SloRow(NamedTuple):
    """One latency target and how many requests met it."""

    label: str
    target: str
    met: str
    p99: str
    evidence: str


def page_facts(summary: Summary) -> dict[str, Any]:
    """Return the words and tables of the page, keyed by the names that the template uses."""
    answer = verdict(summary)
    return {
        "title": f"{system_text(summary)}: capacity report",
        "eyebrow": "Capacity report",
        "heading": system_text(summary),
        "answer": answer.sentence,
        "tone": answer.tone,
        "reason": " ".join(filter(None, [answer.reason, *(told(summary) for told in SENTENCES)])),
        "tiles": _tiles(summary),
        "slo_rows": _slo_rows(summary),
        "class_columns": CLASS_COLUMNS,
        "class_rows": class_rows(summary),
        "spread_note": spread_note(summary),
        "attainment": _attainment_text(summary),
        "statistics": STATISTICS,
        "latency_rows": latency_rows(summary),
        "meanings": LATENCY_MEANINGS,
        "gauges": {
            "Throughput and requests": throughput_rows(summary),
            "Utilisation": [*utilization_rows(summary), *other_rows(summary)],
        },
        "speculation": speculation_text(summary),
        **account_table(summary),
        "figure_evidence": {
            name: _evidence_of(summary, metrics) for name, metrics in _FIGURE_METRICS.items()
        },
        "byte_rows": byte_rows(summary),
        "tier_columns": TIER_COLUMNS,
        "tier_rows": tier_rows(summary),
        "alerts": warning_texts(summary, grave=True),
        "warnings": warning_texts(summary, grave=False),
        "conditions": condition_rows(summary),
        "evidence": evidence_shares(summary),
        "sources": [source for source in entries(summary, "sources") if isinstance(source, dict)],
        "run": [
            (humanised(name), f"{value:,.0f}")
            for name, value in section(summary, "run").items()
            if is_number(value) and name != "wall_s"
        ],
        "wall": section(summary, "run").get("wall_s"),
        "version": summary.get("fleetcast_version") or "",
    }


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


def _slo_rows(summary: Summary) -> list[SloRow]:
    met = section(summary, "slo", "by_target")
    by_name = figures_by_name(summary)
    return [
        SloRow(
            label=LATENCY_LABELS[name],
            target=f"≤ {target(target_s)}",
            met=percent(met[name]) if is_number(met.get(name)) else MISSING,
            p99=duration(value_of(summary, name, "p99")),
            evidence=weakest_evidence(list(by_name.get(name, {}).values())),
        )
        for name, target_s in slo_targets(summary).items()
    ]


def _attainment_text(summary: Summary) -> str:
    attainment = section(summary, "slo").get("attainment")
    return percent(attainment) if is_number(attainment) else MISSING


def _evidence_of(summary: Summary, metrics: tuple[str, ...]) -> dict[str, str]:
    """Return evidence label -> the metrics that carry it, for the caption of a figure."""
    by_name = figures_by_name(summary)
    carried: dict[str, list[str]] = {}
    for name in metrics:
        label = weakest_evidence(list(by_name.get(name, {}).values()))
        if label != MISSING:
            carried.setdefault(label, []).append(LATENCY_LABELS.get(name, humanised(name)))
    return {label: listed(names) for label, names in carried.items()}


def condition_rows(summary: Summary) -> list[tuple[str, str]]:
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
    names = [name for name in _CONDITIONS if conditions.get(name) is not None]
    names += [
        name
        for name, value in conditions.items()
        if name not in (*_CONDITIONS, "slo", "notes", "operators") and value is not None
    ]
    # Engine options keep the names the engine knows them by.
    rows = [(_CONDITIONS.get(name, name), condition_text(conditions[name])) for name in names]
    rows += [
        (f"Operators: {row.family}", ", ".join(filter(None, (row.source, row.tables, row.label))))
        for row in operator_rows(summary)
    ]
    notes = conditions.get("notes")
    if isinstance(notes, list):
        rows += [("Note", str(note)) for note in notes]
    saturation = section(summary, "saturation")
    for key, label in (("offered_per_s", "Offered load"), ("saturation_per_s", "Saturation")):
        if is_number(saturation.get(key)):
            rows.append((label, f"{significant(saturation[key])} requests/s"))
    return rows


def write_page(folder: Path | str) -> Path:
    """Write ``report.html`` into a result folder and return its path.

    The page needs no network and no script, and is identical for identical folders. Raises
    `ScenarioError` if a file of the result folder is missing or cannot be read.
    """
    folder = Path(folder)
    summary = read_summary(folder)
    html = render_page(summary, read_requests(folder), read_steps(folder), read_scenario(folder))
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def render_page(
    summary: Summary, requests: pd.DataFrame, steps: pd.DataFrame, scenario_yaml: str
) -> str:
    """Render the page as HTML text. Arguments are as the readers of ``reports.folder`` return
    them."""
    return templates.render_page(
        "run/page.html.j2",
        plots=draw_figures(summary, requests, steps),
        engines=engine_table(summary, requests, steps),
        scenario_yaml=scenario_yaml,
        **page_facts(summary),
    )
