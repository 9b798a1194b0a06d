"""Tables of a run: targets, latency, classes, cache tiers, accounts of time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.document import Cell, Column, Row, Table, numbers
from reports.facts import (
    Summary,
    account_rows,
    entries,
    figures_by_name,
    section,
    value_of,
    weakest_evidence,
)
from reports.numbers import (
    LATENCY_LABELS,
    LATENCY_MEANINGS,
    MISSING,
    THROUGHPUT_LABELS,
    UTILIZATION_LABELS,
    byte_size,
    count_of,
    duration,
    duration_unit,
    humanised,
    is_number,
    number,
    percent,
    significant,
    spread,
    spread_note,
    spreads,
    target,
    target_label,
    unit_text,
    whole_percent,
)
from reports.run.answer import slo_targets
from sim.accounts import TIME_ACCOUNTS
from sim.books.metrics import STATISTICS

if TYPE_CHECKING:
    pass


def slo_table(summary: Summary) -> Table:
    """Return the latency targets and how many requests met each."""
    met, attainment = (
        section(summary, "slo", "by_target"),
        section(summary, "slo").get("attainment"),
    )
    by_name = figures_by_name(summary)
    rows = [
        (
            target_label(name, section(summary, "conditions", "slo").get("itl_of")),
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
            *numbers("Target", "Requests that met it", "p99"),
            Column("Evidence", "evidence"),
        ],
        rows,
        total=("All", "", percent(attainment) if is_number(attainment) else MISSING, "", ""),
        note="Attainment is good requests over arrived requests. A good request finished and met "
        "every target; a rejected, failed or unfinished one is not good.",
    )


def latency_table(summary: Summary) -> Table:
    """Return the statistics of each latency metric: the known ones in their usual order, then any
    others in seconds."""
    by_name = figures_by_name(summary)
    names = [name for name in LATENCY_LABELS if name in by_name]
    names += [name for name in by_name if name not in names and _is_latency(by_name[name])]
    explained = spread_note(summary)
    return Table(
        [
            Column("Metric", terminal="", wraps=True),
            *numbers(*STATISTICS),
            Column("Unit", terminal="", wraps=True),
            Column("Over", "note", on="page"),
            Column("Evidence", "evidence", wraps=True),
        ],
        [_latency_row(name, by_name[name]) for name in names],
        note=f"Below a figure: {explained}." if explained else "",
    )


def _latency_row(name: str, figures: dict[str, dict[str, Any]]) -> Row:
    values_s = [figures.get(statistic, {}).get("value") for statistic in STATISTICS]
    unit, per_second = duration_unit(values_s)
    cells = [
        Cell(significant(value * per_second), spread=lines, value=value)
        if is_number(value)
        else Cell(MISSING)
        for value, lines in zip(values_s, spreads(figures), strict=True)
    ]
    over = (count_of(figure.get("count"), figure.get("population")) for figure in figures.values())
    return (
        Cell(LATENCY_LABELS.get(name, humanised(name)), note=LATENCY_MEANINGS.get(name, "")),
        *cells,
        unit if any(map(is_number, values_s)) else "",
        next(filter(None, over), ""),
        weakest_evidence(list(figures.values())),
    )


def _is_latency(figures: dict[str, dict[str, Any]]) -> bool:
    in_seconds = all(figure.get("unit") == "s" for figure in figures.values())
    return in_seconds and any(statistic in figures for statistic in ("p50", "p90", "p99"))


def class_table(summary: Summary) -> Table:
    """Return the classes of requests, one row each; without rows if there are none."""
    p99s = [LATENCY_LABELS[name] for name in ("ttft", "tpot", "e2e")]
    return Table(
        [
            Column("Class"),
            *numbers("Requests", "Good", "Goodput", *(f"{name} p99" for name in p99s)),
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


def gauge_tables(summary: Summary) -> list[Table]:
    """Return the figures that are not latencies, one row each: rates, then how busy the engines
    are and whatever no other table shows."""
    by_name = figures_by_name(summary)
    rows: dict[str, Row] = {}
    for name, label in (THROUGHPUT_LABELS | UTILIZATION_LABELS).items():
        if figures := by_name.get(name, {}):
            main = figures.get("value") or figures.get("mean") or next(iter(figures.values()))
            rows[name] = _gauge_row(label, name, list(figures.values()), main, figures.get("max"))
    for name, figures in by_name.items():
        if name in rows or name in LATENCY_LABELS or _is_latency(figures):
            continue
        for statistic, figure in figures.items():
            label = humanised(name) + ("" if statistic == "value" else f", {statistic}")
            rows[f"{name}.{statistic}"] = _gauge_row(label, name, [figure], figure, None)
    columns = [
        Column("Figure"),
        *numbers("Value or mean", "Max"),
        Column("Unit"),
        Column("Over", "note"),
        Column("Evidence", "evidence"),
    ]
    rates = [row for name, row in rows.items() if name in THROUGHPUT_LABELS]
    others = [row for name, row in rows.items() if name not in THROUGHPUT_LABELS]
    titles = {"Throughput and requests": rates, "Utilisation": others}
    return [Table(columns, found, title, on="page") for title, found in titles.items()]


def _gauge_row(
    label: str,
    name: str,
    figures: list[dict[str, Any]],
    main: dict[str, Any],
    maximum: dict[str, Any] | None,
) -> Row:
    unit, highest = str(main.get("unit") or ""), (maximum or {}).get("value")
    return (
        label,
        Cell(number(main.get("value"), unit), note=spread(main)),
        number(highest, unit) if is_number(highest) else "",
        unit_text(name, unit),
        count_of(main.get("count"), main.get("population")),
        weakest_evidence(figures),
    )


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
            Column("Source", wraps=True),
            Column("Tables (SHA-256)", wraps=True),
            Column("Evidence", "evidence"),
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
    return Table(
        [Column("Tier"), *numbers("Hits", "Peak", "Capacity", "Loaded", "Written", "Link")],
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
        [Column("Account"), Column("", "bar"), *numbers("Share", "Time")],
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
            *numbers("Size", "Bytes", "Share"),
            Column("", "bar"),
        ],
        rows,
        total=None if total is None else ("total", byte_size(total), f"{total:,.0f}", "", ""),
        on="page",
    )
