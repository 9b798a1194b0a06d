"""How a plan writes money, fleets and targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.words import LATENCY_LABELS, humanised, listed, significant, target

Content = dict[str, Any]
"""What plan.json holds."""


def usd(value: float) -> str:
    """An hourly rent: $7.50, $1,240."""
    return f"${value:,.2f}" if value < 1000 else f"${value:,.0f}"


def share_text(share: float) -> str:
    """A share in the digits an SLO needs: 99%, 98.84%."""
    if share in (0, 1):
        return f"{share:.0%}"
    text = f"{min(max(share * 100, 0.01), 99.99):.2f}".rstrip("0").rstrip(".")
    return f"{text}%"


def target_name(row: Mapping[str, Any]) -> str:
    """``TTFT p99``, or ``chat TTFT p99``."""
    of = f"{row['of_class']} " if row["of_class"] else ""
    return f"{of}{LATENCY_LABELS[row['metric']]} p{row['share'] * 100:g}"


def target_text(row: Mapping[str, Any]) -> str:
    """``TTFT p99 ≤ 500 ms``."""
    return f"{target_name(row)} ≤ {target(row['within_s'])}"


def targets_text(content: Content) -> str:
    """All of them."""
    return ", ".join(target_text(row) for row in content["question"]["targets"])


def level_text(content: Content, level: float) -> str:
    """A load with its unit."""
    unit = content["question"]["unit"]
    text = f"{level:,.0f}" if unit in ("users", "requests in flight") else significant(level)
    return f"{text} {unit}"


def runs_text(content: Content) -> str:
    """``19 runs of 5,000 counted requests``."""
    asked = content["question"]
    runs = asked["replications"]
    return f"{runs:,} run{'s' * (runs != 1)} of {asked['requests']:,} counted requests"


def gpus_of(fleet: Mapping[str, Any]) -> str:
    """``24 x H100`` (with a sign for times), of several kinds all of them."""
    counts: dict[str, int] = {}
    for engine in fleet["engines"]:
        count = engine["replicas"] * engine["gpus"]
        counts[engine["gpu"]] = counts.get(engine["gpu"], 0) + count
    return listed(f"{count:,} \N{MULTIPLICATION SIGN} {gpu}" for gpu, count in counts.items())


def engines_of(fleet: Mapping[str, Any]) -> str:
    """``3 replicas of TP 2``, or ``2 prefill engines of TP 4 and 5 decode engines of TP 8``."""
    parts = []
    for engine in fleet["engines"]:
        role, count = engine["role"], engine["replicas"]
        what = "replica" if role == "mixed" else f"{role} engine"
        parts.append(f"{count:,} {what}{'s' * (count != 1)} of {engine['layout']}")
    return listed(parts)


def fleet_text(fleet: Mapping[str, Any]) -> str:
    """A fleet in a line: GPUs, engines and options."""
    options = [option_text(key, value) for key, value in fleet["options"].items()]
    return f"{gpus_of(fleet)} ({', '.join([engines_of(fleet), *options])})"


def option_text(key: str, value: Any) -> str:
    """``kv cache_dtype fp8``."""
    section, _, name = key.rpartition(".")
    shown = f"{value:,}" if isinstance(value, int) else str(value)
    if value is None or isinstance(value, bool):
        shown = {True: "on", False: "off", None: "none"}[value]
    return f"{section} {name} {shown}".strip()


def account_text(name: str | None) -> str:
    """An account as words."""
    return "" if name is None else humanised(name)
