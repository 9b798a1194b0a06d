"""Rows of a plan that the terminal and the page share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reports.numbers import (
    LATENCY_LABELS,
    MISSING,
    duration,
    humanised,
    listed,
    share_text,
    significant,
    target,
    whole_percent,
)
from reports.schemas import PLAN
from sim.errors import ScenarioError

Content = dict[str, Any]
"""Content of plan.json."""


def usd(value: float) -> str:
    """Write a price per hour in dollars: $7.50, $1,240."""
    return f"${value:,.2f}" if value < 1000 else f"${value:,.0f}"


def target_name(row: Mapping[str, Any]) -> str:
    """Name a target: ``TTFT p99``, or ``chat TTFT p99`` for a class."""
    of = f"{row['of_class']} " if row["of_class"] else ""
    return f"{of}{LATENCY_LABELS[row['metric']]} p{row['share'] * 100:g}"


def target_text(row: Mapping[str, Any]) -> str:
    """Write a target with its limit: ``TTFT p99 ≤ 500 ms``."""
    return f"{target_name(row)} ≤ {target(row['within_s'])}"


def targets_text(content: Content) -> str:
    """Write all targets with their limits."""
    return ", ".join(target_text(row) for row in content["question"]["targets"])


def level_text(content: Content, level: float) -> str:
    """Write a load with its unit."""
    unit = content["question"]["unit"]
    text = f"{level:,.0f}" if unit in ("users", "requests in flight") else significant(level)
    return f"{text} {unit}"


def runs_text(content: Content) -> str:
    """Write how much was simulated: ``19 runs of 5,000 counted requests``."""
    asked = content["question"]
    runs = asked["replications"]
    return f"{runs:,} run{'s' * (runs != 1)} of {asked['requests']:,} counted requests"


def gpus_of(fleet: Mapping[str, Any]) -> str:
    """Write a fleet's GPUs, ``24 x H100`` (with a multiplication sign), listing every kind."""
    counts: dict[str, int] = {}
    for engine in fleet["engines"]:
        count = engine["replicas"] * engine["gpus"]
        counts[engine["gpu"]] = counts.get(engine["gpu"], 0) + count
    return listed(f"{count:,} \N{MULTIPLICATION SIGN} {gpu}" for gpu, count in counts.items())


def engines_of(fleet: Mapping[str, Any]) -> str:
    """Write a fleet's engines: ``3 replicas of TP 2``, or ``2 prefill engines of TP 4 and 5
    decode engines of TP 8``."""
    parts = []
    for engine in fleet["engines"]:
        role, count = engine["role"], engine["replicas"]
        what = "replica" if role == "mixed" else f"{role} engine"
        parts.append(f"{count:,} {what}{'s' * (count != 1)} of {engine['layout']}")
    return listed(parts)


def fleet_text(fleet: Mapping[str, Any]) -> str:
    """Write a fleet in one line: GPUs, engines and options."""
    options = [option_text(key, value) for key, value in fleet["options"].items()]
    return f"{gpus_of(fleet)} ({', '.join([engines_of(fleet), *options])})"


def option_text(key: str, value: Any) -> str:
    """Write an option as words: ``kv cache_dtype fp8``."""
    section, _, name = key.rpartition(".")
    shown = f"{value:,}" if isinstance(value, int) else str(value)
    if value is None or isinstance(value, bool):
        shown = {True: "on", False: "off", None: "none"}[value]
    return f"{section} {name} {shown}".strip()


def account_text(name: str | None) -> str:
    """Write an account's name as words."""
    return "" if name is None else humanised(name)


STAGES = {
    "ranked": "kept",
    "cost": "dearer",
    "simulated": "misses",
    "supply": "not to be had",
    "latency": "too slow",
    "memory": "cannot run",
}


class RankedRow(NamedTuple):
    """A ranked fleet, as text."""

    name: str
    engines: str
    gpus: str
    cost: str
    headroom: str
    binds: str
    account: str


def read_plan_result(folder: Path | str) -> Content:
    """Read ``plan.json``. Raises `ScenarioError` if it is missing or has another schema."""
    path = Path(folder) / "plan.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: no readable plan ({error})") from None
    if not isinstance(content, dict) or content.get("schema") != PLAN:
        raise ScenarioError(f"{path}: not of schema {PLAN!r}; run `fleetcast plan` again")
    return content


def is_plan(folder: Path | str) -> bool:
    """Return whether a folder holds a plan's result."""
    return (Path(folder) / "plan.json").is_file()


def ranked_rows(content: Content) -> list[RankedRow]:
    """Return the ranked fleets, cheapest first."""
    rows = []
    for one in content["ranked"]:
        headroom = MISSING if one["headroom"] is None else f"{one['headroom']:+.0%}"
        if one["headroom"] is None and one["at_least"]:
            headroom = f"over {one['at_least'] / content['question']['level'] - 1:+.0%}"
        binding = one["binding"]
        metric = "queue" if one["limit"] == "stability" else binding["metric"].upper()
        rows.append(
            RankedRow(
                name=one["name"],
                engines=_engines(one),
                gpus=f"{one['gpus']:,}",
                cost=usd(one["usd_per_h"]),
                headroom=headroom,
                binds=metric,
                account=account_text(binding["cause"]),
            )
        )
    return rows


def _engines(fleet: dict[str, Any]) -> str:
    return " + ".join(f"{engine['replicas']:,}" for engine in fleet["engines"])


def attained_rows(content: Content) -> list[tuple[str, str, str, str, str]]:
    """Return rows of the cheapest fleet, one per target: name, percentile, share, lowest share
    of any run, share required."""
    if not content["ranked"]:
        return []
    pairs = zip(content["question"]["targets"], content["ranked"][0]["attained"], strict=True)
    return [
        (
            f"{target_name(asked)} ≤ {target(asked['within_s'])}",
            duration(row["value_s"]),
            share_text(row["share"]),
            MISSING if row["lowest"] is None else share_text(max(row["lowest"], 0.0)),
            share_text(asked["share"]),
        )
        for asked, row in pairs
    ]


def candidate_rows(content: Content) -> list[tuple[str, str, str]]:
    """Return every candidate: name, stage it reached, and reason."""
    return [(row["name"], _stage(row), _why(content, row)) for row in content["candidates"]]


def _stage(row: dict[str, Any]) -> str:
    """Name the stage a candidate reached. For one that failed in simulation, say whether more
    engines would cost too much or are not available."""
    if row["stage"] == "simulated" and not row["alone"]:
        return STAGES["supply" if row["tried"] == row["most_units"] else "cost"]
    return STAGES[row["stage"]]


def _why(content: Content, row: dict[str, Any]) -> str:
    targets = content["question"]["targets"]
    if row["stage"] == "memory":
        return str(row["why"]).splitlines()[0]
    if row["stage"] == "latency":
        asked = targets[row["refused"]["target"]]
        least = row["refused"]["least_s"]
        if least is None:
            return f"{target_name(asked)}: too many requests are longer than an engine takes"
        return (
            f"{target_name(asked)} is at least {duration(least)} on idle engines, and must keep "
            f"within {target(asked['within_s'])}"
        )
    units = f"{row['unit']}{'s' * (row['least_units'] != 1)}"
    least = f"{row['least_units']:,} {units} needed at least, by the GPU time of the requests"
    if row["stage"] == "supply":
        return f"{least}; {row['most_units']:,} to be had ({row['limit']})"
    if row["units"] is not None:
        said = f"{row['units']:,} {row['unit']}{'s' * (row['units'] != 1)}"
        said += f" {'meet' if row['units'] != 1 else 'meets'}"
        said += f" the targets, {usd(row['usd_per_h'])}/h"
        if row["missed"] is not None:
            said += f"; {_missed(content, row)}"
        return said
    if row["stage"] == "cost":
        return f"{least}: {usd(row['least_usd_per_h'])}/h"
    return _missed(content, row)


def _missed(content: Content, row: dict[str, Any]) -> str:
    """Say how the largest fleet that failed missed its targets."""
    missed = row["missed"]
    asked = content["question"]["targets"][missed["target"]]
    count = missed["units"]
    many = count != 1
    how = {
        "share": f"{'miss' if many else 'misses'} {target_name(asked)}",
        "queue": f"{'have queues that grow' if many else 'has a queue that grows'}",
        "confidence": f"{'meet' if many else 'meets'} {target_name(asked)}, but not surely",
    }[missed["why"]]
    if missed["share"] is not None and missed["why"] == "share":
        how += f" ({share_text(missed['share'])} within {target(asked['within_s'])})"
    elif missed["share"] is None:
        how += " by far"
    if missed["account"]:
        how += f": {account_text(missed['account'])}"
    which = f"{count:,} {row['unit']}{'s' * many}"
    if row["units"] is None:
        which += _most(row)
    return f"{which} {how}"


def _most(row: dict[str, Any]) -> str:
    if row["alone"]:
        return ", with engines to themselves,"
    if row["tried"] == row["most_units"]:
        return f", all that can be had ({row['limit']}),"
    return ", the most that would be cheaper,"


def fleet_rows(content: Content) -> list[tuple[str, str, str, str, str]]:
    """Return the fleets on the front of cost and latency, cheapest first: name, GPUs, cost,
    share of the nearest target."""
    targets = content["question"]["targets"]
    return [
        (
            f"{row['units']:,} \N{MULTIPLICATION SIGN} {row['name']}",
            f"{row['gpus']:,}",
            usd(row["usd_per_h"]),
            whole_percent(row["of_target"]),
            target_name(targets[row["target"]]),
        )
        for row in content["fleets"]
        if row["on_front"]
    ]
