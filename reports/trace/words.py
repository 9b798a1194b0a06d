"""How quantities of a trace are written: tokens, long times, sizes of a KV cache."""

from __future__ import annotations

from typing import Any

from reports.words import MISSING, duration, is_number, significant, target


def tokens(count: float) -> str:
    """Write a number of tokens: 512, 45,300, 16.1 M."""
    if count >= 1e9:
        return f"{_plain(count / 1e9)} G"
    return f"{_plain(count / 1e6)} M" if count >= 1e6 else f"{count:,.0f}"


def span(seconds: float) -> str:
    """Write a long time in the unit people would use: 58 min, 7 days."""
    for unit, length_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            value = seconds / length_s
            text = f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")
            return f"{text} {unit}"
    return target(seconds) if float(seconds).is_integer() else duration(seconds)


def gap(seconds: float) -> str:
    """Write a time between two events: 40.0 s, 9.9 h."""
    return span(seconds) if seconds >= 7200 else duration(seconds)


def gib(row: dict[str, Any]) -> str:
    """The ``capacity_bytes`` of a row in GiB (2**30 bytes)."""
    value = row.get("capacity_bytes")
    return f"{significant(value / 2**30)} GiB" if is_number(value) else MISSING


def _plain(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else significant(value)
