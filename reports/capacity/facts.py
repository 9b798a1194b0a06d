"""Sentences and rows of a capacity search that the terminal and the page share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from reports.numbers import (
    LATENCY_LABELS,
    MISSING,
    duration,
    humanised,
    is_number,
    percent,
    share_text,
    significant,
    target,
    whole_percent,
)
from reports.schemas import CAPACITY
from sim.errors import ScenarioError

Content = dict[str, Any]
"""Content of capacity.json."""


def targets_text(content: Content) -> str:
    """Write the latency targets: ``TTFT ≤ 500 ms, TPOT ≤ 20 ms``."""
    targets = content["question"]["targets"]
    return ", ".join(f"{LATENCY_LABELS[name]} ≤ {target(value)}" for name, value in targets.items())


def amount(content: Content, level: float) -> str:
    """Write a load with its unit."""
    return f"{level_text(content, level)} {content['question']['unit']}"


def level_text(content: Content, level: float) -> str:
    """Write a load without its unit: users as a whole number, a rate in three digits."""
    if content["question"]["vary"] in ("users", "max_concurrency"):
        return f"{level:,.0f}"
    return significant(level)


class CurveRow(NamedTuple):
    """A simulated load, as text."""

    level: str
    load: str
    """Share of saturation; empty in a closed loop."""
    attainment: str
    interval: str
    """Half-width of the 95% interval; empty if it is negligible."""
    latencies: tuple[str, ...]
    """99th percentile of each of `curve_metrics`."""
    runs: str
    grows: str
    """``grows`` if the queue grows for as long as requests arrive, else empty."""
    tone: str
    """``good`` if the load keeps the attainment, else ``poor``."""


def is_capacity(folder: Path | str) -> bool:
    """Return whether a folder holds the result of a capacity search."""
    return (Path(folder) / "capacity.json").is_file()


def read_capacity(folder: Path | str) -> Content:
    """Read ``capacity.json``. Raises `ScenarioError` if it is missing or has another schema."""
    path = Path(folder) / "capacity.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: no readable capacity search ({error})") from None
    if not isinstance(content, dict) or content.get("schema") != CAPACITY:
        raise ScenarioError(f"{path}: not of schema {CAPACITY!r}; run `fleetcast capacity` again")
    return content


def curve_metrics(content: Content) -> list[str]:
    """Return the latencies shown beside the attainment: TTFT, TPOT and those with a target."""
    named = {"ttft", "tpot", *content["question"]["targets"]}
    return [name for name in LATENCY_LABELS if name in named]


def curve_rows(content: Content) -> list[CurveRow]:
    """Return one row per load that was simulated."""
    wanted, metrics = content["question"]["attainment"], curve_metrics(content)
    rows = []
    for row in content["curve"]:
        low, high = row["interval"] or (0.0, 0.0)
        attainment, saturation = row["attainment"], row["saturation_per_s"]
        kept = row["stable"] and (wanted is None or (attainment or 0.0) >= wanted)
        p99s = [row["latency_s"].get(name, {}).get("p99") for name in metrics]
        is_rate = content["question"]["unit"] == "requests/s" and saturation
        rows.append(
            CurveRow(
                level=level_text(content, row["level"]),
                load=whole_percent(row["level"] / saturation) if is_rate else "",
                attainment=share_text(attainment) if is_number(attainment) else MISSING,
                interval="" if high - low < 5e-5 else f"±{(high - low) / 2:.2%}",
                latencies=tuple(duration(value) for value in p99s),
                runs=f"{row['replications']}",
                grows="" if row["stable"] else "grows",
                tone="good" if kept else "poor",
            )
        )
    return rows


def account_rows(content: Content) -> list[tuple[str, str, str, str]]:
    """Return account, seconds at light load, seconds at the capacity, and share at the capacity."""
    accounts = content["binding"]["accounts"]
    return [
        (
            humanised(row["account"]),
            duration(row["light_seconds"]) if row["light_seconds"] else MISSING,
            duration(row["seconds"]) if row["seconds"] else MISSING,
            percent(row["share"]),
        )
        for row in accounts
        if row["share"] >= 0.001 or row["light_seconds"] >= 0.001 * _total(accounts)
    ]


def account_total(content: Content) -> tuple[str, str, str, str]:
    """Return the last row of `account_rows`: the total time."""
    accounts = content["binding"]["accounts"]
    light_s = sum(row["light_seconds"] for row in accounts)
    return "all", duration(light_s), duration(_total(accounts)), "100%"


def is_light(content: Content) -> bool:
    """Return whether the binding load is the lightest one, so that there is none to compare it
    with."""
    binding = content["binding"]
    return bool(binding["level"] == binding["light_level"])


def tail_text(content: Content) -> str:
    """Name the metric and the requests that the accounts cover."""
    metric = content["binding"]["metric"]
    wanted = content["question"]["attainment"]
    slowest = "requests" if wanted is None else f"the slowest {share_text(1 - wanted)}"
    return f"{LATENCY_LABELS.get(metric, metric)} of {slowest}"


def state_rows(content: Content) -> list[tuple[str, str, str]]:
    """Return the state of the engines at the capacity as rows of name, value and note."""
    state, conditions = content["binding"]["state"], content["conditions"]
    if not state:
        return []
    rows = [
        ("GPU busy", percent(state["gpu_busy"]), ""),
        (
            "KV cache",
            percent(state["kv_occupancy"]),
            f"at most {percent(state['kv_occupancy_max'])}",
        ),
        (
            "Running",
            _held(state["running"]),
            f"at most {state['running_max']:,.0f} of {conditions['max_num_seqs']:,}, an engine",
        ),
        ("Waiting", _held(state["waiting"]), f"at most {state['waiting_max']:,.0f}, an engine"),
        (
            "At max_num_seqs",
            percent(state["at_max_num_seqs"]),
            "of the time",
        ),
        (
            "At max_num_batched_tokens",
            percent(state["at_max_num_batched_tokens"]),
            f"of the time, {conditions['max_num_batched_tokens']:,} tokens a step",
        ),
        ("Preempted", percent(state["preempted_share"]), "of requests"),
    ]
    if state["cached_share"]:
        rows.append(("Prompt tokens cached", percent(state["cached_share"]), ""))
    return rows


def miss_rows(content: Content) -> list[tuple[str, str]]:
    """Return which targets are missed by requests that miss the SLO, most frequent first. A
    request may miss several."""
    shares = content["binding"]["missed_by"]
    names = sorted(shares, key=lambda name: -shares[name])
    labels = {**LATENCY_LABELS, "unfinished": "rejected or never ended"}
    return [(labels[name], percent(shares[name])) for name in names if shares[name]]


def _held(count: float) -> str:
    """Write a mean number of requests; below 0.05 it is negligible and written as 0."""
    return significant(count) if count >= 0.05 else "0"


def _total(accounts: list[dict[str, Any]]) -> float:
    return float(sum(row["seconds"] for row in accounts))
