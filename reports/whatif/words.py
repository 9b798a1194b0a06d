"""Texts of a what-if's figures, changes and intervals."""

from __future__ import annotations

from typing import Any

from reports.document import Tone
from reports.numbers import (
    LATENCY_LABELS,
    MISSING,
    duration,
    duration_unit,
    humanised,
    is_number,
    number,
    percent,
    significant,
)

Content = dict[str, Any]
"""Content of whatif.json."""
Variant = dict[str, Any]

LABELS = {
    "attainment": "SLO attainment",
    "goodput": "Goodput",
    "availability": "Availability",
    "request_throughput": "Requests",
    "output_throughput": "Output",
    "gpu_busy": "GPU busy in time",
    "kv_occupancy.mean": "KV occupancy",
    "preemptions": "Preemptions",
    "saturation": "Saturation",
    "load": "Load",
    "gpus": "GPUs",
    "goodput_per_gpu": "Goodput a GPU",
    "output_throughput_per_gpu": "Output a GPU",
    "total_throughput_per_gpu": "All tokens a GPU",
    "saturation_per_gpu": "Saturation a GPU",
}
_UNITS = {"requests/s": "req/s", "tokens/s": "tok/s", "fraction": "", "count": "", "GPUs": ""}

_MANY_TIMES = 10


def ran(content: Content) -> list[Variant]:
    """Return the variants that were simulated, without the baseline."""
    return [variant for variant in content["variants"] if variant["refused"] is None]


def label_of(key: str) -> str:
    """Name a figure: ``ttft.p99`` becomes ``TTFT p99``."""
    name, _, statistic = key.partition(".")
    if name in LATENCY_LABELS:
        return f"{LATENCY_LABELS[name]} {statistic}"
    return LABELS.get(key, humanised(key))


def in_a_sentence(key: str) -> str:
    """Name a figure for the middle of a sentence: ``goodput``, but ``TTFT p99``."""
    label = label_of(key)
    return label if label[1:2].isupper() or label[2:3].isupper() else label[0].lower() + label[1:]


def unit_of(figure: dict[str, Any], values: list[object]) -> tuple[str, float]:
    """Return the unit of a row, and how many of it make one of the figure's own unit."""
    if figure["unit"] == "s":
        return duration_unit(values)
    return _UNITS.get(figure["unit"], figure["unit"]), 1.0


def value_text(value: object, figure: dict[str, Any], per_unit: float = 1.0) -> str:
    """Write a value in its row's unit, without naming it; a share carries its percent sign."""
    if not is_number(value):
        return MISSING
    if figure["unit"] == "fraction":
        return percent(value)
    if figure["unit"] == "s":
        return significant(value * per_unit)
    return number(value, figure["unit"])


def spelled(value: object, figure: dict[str, Any]) -> str:
    """Write a value with its unit, for a sentence."""
    if figure["unit"] == "s":
        return duration(value)
    unit = "" if figure["unit"] in ("fraction", "count") else f" {figure['unit']}"
    return f"{value_text(value, figure)}{unit}"


def spelled_pair(after: object, before: object, figure: dict[str, Any]) -> tuple[str, str]:
    """Write two values in one unit, which the second value decides."""
    if figure["unit"] != "s" or not (is_number(after) and is_number(before)):
        return spelled(after, figure), value_text(before, figure)
    unit, per_second = duration_unit([before])
    return f"{significant(after * per_second)} {unit}", f"{significant(before * per_second)} {unit}"


def change_text(change: dict[str, Any], figure: dict[str, Any]) -> str:
    """Write a change with its interval: ``-27.6% ±0.3``, ``same``, or "" if there is no change to
    state.

    In percent of the baseline, or as a multiple from 10 on (``x181``). Shares change in percentage
    points, and counts in absolute numbers. A change that rounds to zero, interval included, is
    ``0.0%``.
    """
    delta, half = change.get("delta"), change.get("half_width")
    if not is_number(delta):
        return ""
    if delta == 0 and not half:
        return "same"
    if figure["unit"] in ("count", "GPUs"):
        return f"{delta:+,.3g}" + ("" if not half else f" ±{half:,.2g}")
    if figure["unit"] != "fraction":
        delta, half = change.get("relative"), change.get("relative_half_width")
    if not is_number(delta):
        return ""
    if figure["unit"] != "fraction" and delta >= _MANY_TIMES - 1:
        ratio = significant(1 + delta)
        return f"x{ratio} ±{significant(half, 2)}" if is_number(half) and half else f"x{ratio}"
    sign = " pt" if figure["unit"] == "fraction" else "%"
    return _in_hundredths(delta * 100, half * 100 if is_number(half) else None, sign)


def told_apart(change: dict[str, Any]) -> bool:
    """Return whether a change is distinguishable from zero given its interval."""
    return is_number(change.get("delta")) and change["delta"] != 0 and not change["holds_zero"]


def tone_of(change: dict[str, Any], better: str | None) -> Tone:
    """Return ``good``, ``bad``, or "" for a change that is neither or is not distinguishable
    from zero."""
    if better is None or not told_apart(change):
        return ""
    return "good" if (change["delta"] < 0) == (better == "lower") else "bad"


def _in_hundredths(value: float, half: float | None, sign: str) -> str:
    """Write a value in percent with as many decimals as its interval supports."""
    precise = abs(value) < 99.95 if half is None else half < 1.95 and abs(value) < 999.5
    decimals = int(precise)
    if abs(value) < 0.05 and (half is None or half < 0.05):
        return f"0.0{sign}"
    text = f"{value:+,.{decimals}f}"
    text = f"{text if text.strip('+-0.') else text[1:]}{sign}"
    if not half:
        return text
    return f"{text} ±{half:,.{decimals}f}" if half >= 0.05 else f"{text} ±<0.1"


def settings_text(variant: Variant) -> str:
    """Write what a variant changes: ``engine.tensor_parallel_size=2, kv.cache_dtype=fp8``."""
    return ", ".join(f"{key}={_setting(value)}" for key, value in variant["settings"].items())


def _setting(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
