"""Tables of a run: classes, engines, cache tiers, accounts of time and memory, kernel times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reports.document import Cell, Column, Row, Table
from reports.facts import (
    GaugeRow,
    Summary,
    account_rows,
    entries,
    figures_by_name,
    latency_rows,
    section,
    value_of,
    weakest_evidence,
)
from reports.numbers import (
    LATENCY_LABELS,
    LATENCY_MEANINGS,
    MISSING,
    byte_size,
    duration,
    humanised,
    is_number,
    percent,
    significant,
    spread_note,
    target,
    whole_percent,
)
from reports.run.answer import slo_targets
from reports.series import replica_series
from sim.accounts import TIME_ACCOUNTS
from sim.books.metrics import STATISTICS

if TYPE_CHECKING:
    import pandas as pd


def slo_table(summary: Summary) -> Table:
    """Return the latency targets and how many requests met each."""
    met, attainment = (
        section(summary, "slo", "by_target"),
        section(summary, "slo").get("attainment"),
    )
    by_name = figures_by_name(summary)
    rows = [
        (
            LATENCY_LABELS[name],
            f"≤ {target(target_s)}",
            percent(met[name]) if is_number(met.get(name)) else MISSING,
            duration(value_of(summary, name, "p99")),
            weakest_evidence(list(by_name.get(name, {}).values())),
        )
        for name, target_s in slo_targets(summary).items()
    ]
    return Table(
        [
            Column("Metric"),
            Column("Target", "number"),
            Column("Requests that met it", "number"),
            Column("p99", "number"),
            Column("Evidence", "evidence"),
        ],
        rows,
        total=("All", "", percent(attainment) if is_number(attainment) else MISSING, "", ""),
        note="Attainment is good requests over arrived requests. A good request finished and met "
        "every target; a rejected, failed or unfinished one is not good.",
    )


def latency_table(summary: Summary) -> Table:
    """Return the statistics of each latency metric."""
    rows: list[Row] = []
    for row in latency_rows(summary):
        spreads = zip(*row.spreads, strict=True) if row.spreads else ((),) * len(STATISTICS)
        cells = [
            Cell(text, spread=tuple(spread), value=value_s)
            for text, spread, value_s in zip(row.cells, spreads, row.values_s, strict=True)
        ]
        label = Cell(row.label, note=LATENCY_MEANINGS.get(row.name, ""))
        rows.append((label, *cells, row.unit, row.population, row.evidence))
    spread = spread_note(summary)
    return Table(
        [
            Column("Metric", terminal="", wraps=True),
            *(Column(name, "number") for name in STATISTICS),
            Column("Unit", terminal="", wraps=True),
            Column("Over", "note", on="page"),
            Column("Evidence", "evidence", terminal="evidence", wraps=True),
        ],
        rows,
        note=f"Below a figure: {spread}." if spread else "",
    )


def class_table(summary: Summary) -> Table:
    """Return the classes of requests, one row each; without rows if there are none."""
    p99s = [LATENCY_LABELS[name] for name in ("ttft", "tpot", "e2e")]
    return Table(
        [
            Column("Class"),
            Column("Requests", "number"),
            Column("Good", "number"),
            Column("Goodput", "number"),
            *(Column(f"{name} p99", "number") for name in p99s),
            Column("Targets, and who met them", "note", wraps=True, below=True),
        ],
        [_class_row(facts) for facts in entries(summary, "classes") if isinstance(facts, dict)],
    )


def _class_row(facts: dict[str, Any]) -> tuple[str, ...]:
    attainment, goodput = facts.get("attainment"), facts.get("goodput_per_s")
    figures = figures_by_name(facts)
    p99 = (figures.get(name, {}).get("p99", {}).get("value") for name in ("ttft", "tpot", "e2e"))
    return (
        str(facts.get("name")),
        f"{facts.get('arrived', 0):,}",
        percent(attainment) if is_number(attainment) else MISSING,
        f"{significant(goodput)}/s" if is_number(goodput) else MISSING,
        *(duration(value) for value in p99),
        _class_targets_text(facts),
    )


def _class_targets_text(facts: dict[str, Any]) -> str:
    met = facts.get("by_target") or {}
    said = []
    for name, target_s in (facts.get("targets") or {}).items():
        metric = name.removesuffix("_s")
        share = f" {percent(met[metric])}" if is_number(met.get(metric)) else ""
        said.append(f"{LATENCY_LABELS.get(metric, metric)} ≤ {target(target_s)}:{share}")
    return ", ".join(said) or "none: finishing is enough"


def gauge_table(title: str, rows: list[GaugeRow]) -> Table:
    """Return figures that are not latencies, one row each."""
    return Table(
        [
            Column("Figure"),
            Column("Value or mean", "number"),
            Column("Max", "number"),
            Column("Unit"),
            Column("Over", "note"),
            Column("Evidence", "evidence"),
        ],
        [
            (
                row.label,
                Cell(row.value, note=row.spread),
                row.maximum,
                row.unit,
                row.population,
                row.evidence,
            )
            for row in rows
        ],
        title=title,
        on="page",
    )


_MOST_ROWS = 16
_ENGINE_COLUMNS = {
    "requests": Column("Requests", "number"),
    "good": Column("Met the SLO", "number"),
    "busy": Column("GPU busy", "number"),
    "running": Column("mean", "number", group="Running"),
    "most_running": Column("most", "number", group="Running"),
    "waiting": Column("mean", "number", group="Waiting"),
    "most_waiting": Column("most", "number", group="Waiting"),
    "kv": Column("mean", "number", group="KV occupancy"),
    "most_kv": Column("most", "number", group="KV occupancy"),
    "preemptions": Column("Preemptions", "number"),
}
_SHARES = ("good", "busy", "kv", "most_kv")
_MEANS = ("running", "waiting")


def usable_blocks(summary: Summary) -> float | None:
    """Return the KV blocks of an engine that can hold tokens; None if the summary does not state
    them."""
    blocks = section(summary, "conditions").get("num_gpu_blocks")
    # vLLM reserves one block as the null block, which never holds tokens.
    return blocks - 1 if is_number(blocks) and blocks > 1 else None


def engine_table(summary: Summary, requests: pd.DataFrame, steps: pd.DataFrame) -> Table:
    """Return the engines of a run, one row each; without rows if there are fewer than two.

    With more than 16 engines, the eight with the most GPU time and the eight with the least are
    shown.
    """
    import pandas as pd

    if steps["replica"].nunique() < 2:
        return Table([], [])
    engines = _engines(requests, steps, usable_blocks(summary))
    names = [name for name in _ENGINE_COLUMNS if name != "good" or slo_targets(summary)]
    ordered = engines.sort_values("busy", ascending=False, kind="stable")
    if len(ordered) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        ordered = pd.concat([ordered.head(half), ordered.tail(half)])
    rows = [
        (f"replica {replica}", *(_written(name, float(row[name])) for name in names))
        for replica, row in ordered.sort_index().to_dict("index").items()
    ]
    columns = [Column("Engine"), *(_ENGINE_COLUMNS[name] for name in names)]
    note = _engine_note(engines, len(rows))
    return Table(columns, rows, "Engine by engine", note=note, on="page")


def _engines(requests: pd.DataFrame, steps: pd.DataFrame, usable: float | None) -> pd.DataFrame:
    """Return `_ENGINE_COLUMNS` by replica. Means are over the run, from first arrival to last
    step."""
    import pandas as pd

    blocks = usable or float(steps["free_blocks"].max())
    start_s, end_s = float(requests["arrival_s"].min()), float(steps["gpu_end_s"].max())
    edges_s = np.array([start_s, max(end_s, start_s + 1e-9)])
    by_steps, by_requests = steps.groupby("replica"), requests.groupby("replica")
    means = replica_series(steps, edges_s, blocks)
    replicas = [one.replica for one in means]
    return pd.DataFrame(
        {
            "requests": by_requests.size(),
            "good": by_requests["good"].mean(),
            "busy": by_steps["gpu_s"].sum() / (edges_s[1] - edges_s[0]),
            "running": pd.Series([float(one.running[0]) for one in means], replicas),
            "most_running": by_steps["running"].max(),
            "waiting": pd.Series([float(one.waiting[0]) for one in means], replicas),
            "most_waiting": by_steps["waiting"].max(),
            "kv": pd.Series([float(one.kv_occupancy[0]) for one in means], replicas),
            "most_kv": 1 - by_steps["free_blocks"].min() / blocks,
            "preemptions": by_requests["preemptions"].sum(),
        }
    ).fillna(0.0)


def _written(name: str, value: float) -> str:
    if name in _SHARES:
        return percent(value)
    return significant(value) if name in _MEANS else f"{value:,.0f}"


def _engine_note(engines: pd.DataFrame, num_shown: int) -> str:
    said = "Over the whole run, idle time included."
    spread = {
        name: float(engines[name].max() / engines[name].mean())
        for name in ("busy", "waiting")
        if engines[name].mean() > 0
    }
    if "busy" in spread:
        said += f" The busiest engine had {significant(spread['busy'])} times the mean GPU time"
        if "waiting" in spread:
            said += f", the longest queue was {significant(spread['waiting'])} times the mean"
        said += "; 1 would be an even spread."
    if num_shown < len(engines):
        half = num_shown // 2
        said += f" Of {len(engines):,} engines, the {half} busiest and the {half} least busy."
    return said


def operator_table(summary: Summary) -> Table:
    """Return the sources of the kernel times of the model's operators, one row a family; without
    rows if one set of constants serves all."""
    found = section(summary, "conditions").get("operators")
    families = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    if not any(one.get("tables") or one.get("source") == "datasheet" for one in families):
        families = []
    return Table(
        [
            Column("Operators", terminal=""),
            Column("Source", terminal="source", wraps=True),
            Column("Tables (SHA-256)", terminal="tables (SHA-256)", wraps=True),
            Column("Evidence", "evidence", terminal="evidence"),
        ],
        [
            (str(one.get("family")), str(one.get("source")), _tables(one), str(one.get("label")))
            for one in families
        ],
    )


def _tables(family: dict[str, Any]) -> str:
    """Return the number of tables, their kernels, and a hash of all; empty for constants."""
    tables = family.get("tables") or ()
    if not tables:
        return ""
    kernels = dict.fromkeys(str(table["kernel"]) for table in tables)
    count = f"{len(tables)} of " if len(tables) > 1 else ""
    return f"{count}{', '.join(kernels)} {str(family.get('hash'))[:12]}"


_NAMES = {"device": "device memory", "host": "host memory", "ssd": "disks", "remote": "remote pool"}


def tier_table(summary: Summary) -> Table:
    """Return the tiers of the prefix cache; without rows if there is only device memory."""
    facts = [f for f in entries(summary, "kv_tiers") if isinstance(f, dict)]
    several = len({f.get("pool") for f in facts}) > 1
    names = ("Hits", "Peak", "Capacity", "Loaded", "Written", "Link")
    return Table(
        [Column("Tier"), *(Column(name, "number") for name in names)],
        [_tier_row(f, several) for f in facts],
        note="Hits are shares of the prompt tokens of finished requests; a link is busy a share of "
        "the run. Bytes are of the whole run and all engines; what came to a tier is held, or was "
        "evicted or lost with its engine.",
    )


def _tier_row(facts: dict[str, Any], several: bool) -> tuple[str, ...]:
    name = str(facts.get("tier"))
    label = _NAMES.get(name, name)
    if several:
        label = f"{label} ({facts.get('pool')})"
    hits = facts.get("hit_fraction")
    share = percent(hits) if is_number(hits) else MISSING
    if name == "device":
        return (label, share, "", "", "", "", "")
    capacity, busy = facts.get("capacity_bytes"), facts.get("link_busy")
    return (
        label,
        share,
        _size(facts.get("peak_bytes")),
        _size(capacity) if is_number(capacity) else "no bound",
        _size(facts.get("loaded_bytes")),
        _size(facts.get("written_bytes")),
        whole_percent(busy) if is_number(busy) else MISSING,
    )


def _size(num_bytes: object) -> str:
    """Write bytes in GiB with three significant digits, so that a column of sizes can be
    compared."""
    return f"{significant(num_bytes / 2**30)} GiB" if is_number(num_bytes) else MISSING


_BOOKS = {
    "GPU time, all steps": "step_accounts_s",
    "E2E, mean": "e2e_accounts_s",
    "TTFT, mean": "ttft_accounts_s",
}


def account_table(summary: Summary) -> Table:
    """Return the time accounts of the GPUs, E2E and TTFT, one row per account."""
    books = {
        heading: {row.account: row for row in account_rows(summary, key)}
        for heading, key in _BOOKS.items()
    }
    books = {heading: rows for heading, rows in books.items() if rows}
    met = {row.account: row.label for rows in books.values() for row in rows.values()}
    columns, total = [Column("Account")], ["total"]
    for heading, rows in books.items():
        columns += [Column(name, "number", group=heading) for name in ("time", "share")]
        total += [duration(sum(row.seconds for row in rows.values())), "100%"]
    table: list[Row] = []
    for account in sorted(met, key=_account_order):
        posted = [rows.get(account) for rows in books.values()]
        cells = [(duration(row.seconds), percent(row.share)) if row else ("", "") for row in posted]
        table.append((met[account], *(text for pair in cells for text in pair)))
    return Table(
        columns,
        table,
        total=total,
        note="GPU time is what the engines were busy, each counted once whatever its tensor "
        "parallel size; the others are means over finished requests, waiting included. An account "
        "that nothing was posted to is left out.",
        on="page",
    )


def _account_order(account: str) -> int:
    return TIME_ACCOUNTS.index(account) if account in TIME_ACCOUNTS else len(TIME_ACCOUNTS)


def account_bars(summary: Summary) -> Table:
    """Return the accounts of the mean end-to-end time as bars."""
    rows = account_rows(summary, "e2e_accounts_s")
    widest = max((row.share for row in rows), default=1.0)
    return Table(
        [Column("Account"), Column("", "bar"), Column("Share", "number"), Column("Time", "number")],
        [
            (
                row.label,
                Cell("", share=row.share / widest),
                percent(row.share),
                duration(row.seconds),
            )
            for row in rows
        ],
        headed=False,
        on="terminal",
    )


def memory_table(summary: Summary) -> Table:
    """Return the bytes of one GPU by account, and their total."""
    device = {
        name: value for name, value in section(summary, "device_bytes").items() if is_number(value)
    }
    total = device.pop("total", None)
    if total is not None and sum(device.values()) != total:
        # Accounts that do not balance are shown, because that is a finding.
        device["not posted"] = total - sum(device.values())
    whole = total or sum(device.values())
    rows: list[Row] = []
    for name, value in device.items():
        share = value / whole if whole else None
        rows.append(
            (
                humanised(name),
                byte_size(value),
                f"{value:,.0f}",
                "" if share is None else percent(share),
                Cell("", share=share if share is not None and 0 <= share <= 1 else None),
            )
        )
    return Table(
        [
            Column("One GPU"),
            *(Column(name, "number") for name in ("Size", "Bytes", "Share")),
            Column("", "bar"),
        ],
        rows,
        total=None if total is None else ("total", byte_size(total), f"{total:,.0f}", "", ""),
        on="page",
    )
