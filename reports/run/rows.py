"""Rows that terminal and page share: engines, sources of kernel times, cache tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reports.facts import Summary, entries, section
from reports.numbers import MISSING, is_number, percent, significant, whole_percent
from reports.run.verdict import slo_targets
from reports.series import replica_series
from reports.templates import Column

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 16
_COLUMNS = {
    "requests": "Requests",
    "good": "Met the SLO",
    "busy": "GPU busy",
    "running": "Running",
    "most_running": "most",
    "waiting": "Waiting",
    "most_waiting": "most",
    "kv": "KV occupancy",
    "most_kv": "most",
    "preemptions": "Preemptions",
}
_SHARES = ("good", "busy", "kv", "most_kv")
_MEANS = ("running", "waiting")


class EngineTable(NamedTuple):
    """A table of engines and the note below it."""

    columns: list[Column]
    rows: list[tuple[str, ...]]
    note: str


def usable_blocks(summary: Summary) -> float | None:
    """Return the KV blocks of an engine that can hold tokens; None if the summary does not state
    them."""
    blocks = section(summary, "conditions").get("num_gpu_blocks")
    # vLLM reserves one block as the null block, which never holds tokens.
    return blocks - 1 if is_number(blocks) and blocks > 1 else None


def engine_table(
    summary: Summary, requests: pd.DataFrame, steps: pd.DataFrame
) -> EngineTable | None:
    """Return the engines of a run, one row each; None if there are fewer than two.

    With more than 16 engines, the eight with the most GPU time and the eight with the least are
    shown.
    """
    import pandas as pd

    if steps["replica"].nunique() < 2:
        return None
    engines = _engines(requests, steps, usable_blocks(summary))
    names = [name for name in _COLUMNS if name != "good" or slo_targets(summary)]
    ordered = engines.sort_values("busy", ascending=False, kind="stable")
    if len(ordered) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        ordered = pd.concat([ordered.head(half), ordered.tail(half)])
    rows = [
        (f"replica {replica}", *(_written(name, float(row[name])) for name in names))
        for replica, row in ordered.sort_index().to_dict("index").items()
    ]
    columns = [Column("Engine"), *(Column(_COLUMNS[name], "n") for name in names)]
    return EngineTable(columns, rows, _note(engines, len(rows)))


def _engines(requests: pd.DataFrame, steps: pd.DataFrame, usable: float | None) -> pd.DataFrame:
    """Return ``_COLUMNS`` by replica. Means are over the run, from the first arrival to the last
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


def _note(engines: pd.DataFrame, num_shown: int) -> str:
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


class OperatorRow(NamedTuple):
    """One operator family and the source of its kernel times."""

    family: str
    source: str
    tables: str
    """Number of tables, their kernels, and a hash of all; empty for constants."""
    label: str


def operator_rows(summary: Summary) -> list[OperatorRow]:
    """Return the families of the model's operators; empty if one set of constants serves all."""
    found = section(summary, "conditions").get("operators")
    families = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    if not any(one.get("tables") or one.get("source") == "datasheet" for one in families):
        return []
    return [
        OperatorRow(
            str(one.get("family")),
            str(one.get("source")),
            _tables(one),
            str(one.get("label")),
        )
        for one in families
    ]


def _tables(family: dict[str, Any]) -> str:
    tables = family.get("tables") or ()
    if not tables:
        return ""
    kernels = dict.fromkeys(str(table["kernel"]) for table in tables)
    count = f"{len(tables)} of " if len(tables) > 1 else ""
    return f"{count}{', '.join(kernels)} {str(family.get('hash'))[:12]}"


TIER_COLUMNS = (
    Column("Tier"),
    Column("Hits", "n"),
    Column("Peak", "n"),
    Column("Capacity", "n"),
    Column("Loaded", "n"),
    Column("Written", "n"),
    Column("Link", "n"),
)
_NAMES = {"device": "device memory", "host": "host memory", "ssd": "disks", "remote": "remote pool"}


def tier_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return one row of texts per cache tier, with one text per column of ``TIER_COLUMNS``; empty
    if there is only device memory.

    Hits are shares of the prompt tokens of finished requests; a link's busy time is a share of the
    run.
    """
    facts = [f for f in entries(summary, "kv_tiers") if isinstance(f, dict)]
    several = len({f.get("pool") for f in facts}) > 1
    return [_tier_row(f, several) for f in facts]


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
