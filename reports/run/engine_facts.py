"""Each engine beside the others: how evenly the router spread the load."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reports.facts import Summary, section
from reports.parts import Column
from reports.run.verdict import slo_targets
from reports.series import replica_series
from reports.words import is_number, percent, significant

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
    """A table of engines and the words below it."""

    columns: list[Column]
    rows: list[tuple[str, ...]]
    note: str


def usable_blocks(summary: Summary) -> float | None:
    """KV blocks of an engine that can hold something; None where the summary does not say."""
    blocks = section(summary, "conditions").get("num_gpu_blocks")
    # vLLM keeps one block as the null block; it never holds anything.
    return blocks - 1 if is_number(blocks) and blocks > 1 else None


def engine_table(
    summary: Summary, requests: pd.DataFrame, steps: pd.DataFrame
) -> EngineTable | None:
    """The engines of a run, a row each; None where there are fewer than two.

    Of more than 16, the eight with the most GPU time and the eight with the least are shown.
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
    """``_COLUMNS`` by replica; means are over the run, from the first arrival to the last step."""
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
