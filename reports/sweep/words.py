"""Names and texts of a sweep's axes, figures and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from reports.numbers import (
    MISSING,
    duration,
    duration_unit,
    humanised,
    is_number,
    number,
    percent,
    significant,
)
from reports.sweep.folder import Content
from reports.whatif.words import label_of as compared_label

_AXES = {
    "workload.rate_per_s": ("Request rate", "requests/s"),
    "workload.max_concurrency": ("Concurrency", "requests"),
    "workload.users": ("Users", ""),
    "workload.sessions_per_h": ("Sessions", "/h"),
    "hardware.gpu": ("GPU", ""),
    "pool.replicas": ("Replicas", ""),
    "engine.tensor_parallel_size": ("TP", ""),
    "engine.pipeline_parallel_size": ("PP", ""),
    "engine.data_parallel_size": ("DP", ""),
    "engine.scheduler": ("Scheduler", ""),
    "engine.quantization": ("Quantisation", ""),
    "engine.profile": ("Engine", ""),
    "pool.router": ("Router", ""),
    "model": ("Model", ""),
    "seed": ("Seed", ""),
}
_WARNINGS = {
    "failed_estimates": "an estimate made after the run failed; the run itself is whole",
    "few_samples": "few requests lie beyond the 99th percentile, so it is rough",
    "near_saturation": "the load is near saturation, where a small change matters much",
    "unstable": "the queue grows for as long as requests come: no place to operate at",
    "nothing_finished": "no request finished",
    "rejected": "requests were rejected",
    "unfinished": "requests were left unfinished",
}
_SMALL_USD = 0.01
_FIGURES = {
    "usd_per_good_request": "Cost of a good request",
    "usd_per_million_tokens": "Cost of a million tokens",
    "usd_per_million_input_tokens": "Cost of a million input tokens",
    "usd_per_million_output_tokens": "Cost of a million output tokens",
    "usd_per_hour": "Cost an hour",
    "gpu_hours": "GPU-hours",
    "input_throughput": "Input",
    "cache_hit_fraction": "Prefix cache hits",
    "load": "Load (of saturation)",
}


def axis_label(key: str, keys: Sequence[str]) -> str:
    """Name an axis, by its whole field if several fields end in the same part."""
    if key in _AXES:
        return _AXES[key][0]
    last = key.rpartition(".")[2]
    return last if sum(k.rpartition(".")[2] == last for k in keys) == 1 else key


def axis_unit(key: str) -> str:
    """Return the unit of an axis; empty if it has none."""
    if key in _AXES:
        return _AXES[key][1]
    return "s" if key.endswith("_s") and not key.endswith("_per_s") else ""


def small(label: str) -> str:
    """Write a label for the middle of a sentence: ``request rate``, but ``TP``, ``GPU`` and
    field names are unchanged."""
    is_name = label[1:2].isupper() or "_" in label or "." in label
    return label if is_name else label[:1].lower() + label[1:]


def axis_title(key: str, keys: Sequence[str], *, unit: bool = False) -> str:
    """Name an axis for the top of a panel or the side of a plot, with its unit if ``unit``."""
    shown = axis_unit(key) if unit else ""
    return axis_label(key, keys) + (f" ({shown})" if shown else "")


def axis_value(value: Any) -> str:
    """Write a value as a reader would."""
    if value is None or str(value) in ("nan", "<NA>"):
        return "none"
    if isinstance(value, bool) or str(value) in ("True", "False"):
        return str(value).lower()
    return f"{value:,.6g}" if is_number(value) else str(value).strip("{}").removeprefix("name: ")


def settings_text(cells: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Write the settings of a point: ``GPU H200, TP 2, request rate 8 requests/s``."""
    parts = []
    for key in keys:
        unit, label = axis_unit(key), small(axis_label(key, keys))
        parts.append(f"{label} {axis_value(cells[key])}{' ' + unit if unit else ''}")
    return ", ".join(parts)


def figure_label(name: str) -> str:
    """Name a column: ``ttft.p99`` becomes ``TTFT p99``."""
    if name in _FIGURES:
        return _FIGURES[name]
    first, _, rest = name.partition(".")
    if first == "e2e_account":
        return f"E2E account: {humanised(rest)}"
    if first == "class":
        return f"{rest.rpartition('.')[0]}: SLO attainment"
    if first == "attainment_of":
        return f"{rest.upper()} target met"
    return compared_label(name)


def in_a_sentence(name: str) -> str:
    """Name a figure for the middle of a sentence: ``goodput a GPU``, but ``TTFT p99``."""
    label = figure_label(name)
    return label if label[1:2].isupper() or label[2:3].isupper() else label[0].lower() + label[1:]


def unit_of(content: Content, name: str) -> str:
    """Return the unit of a figure; empty for a count or an unknown column."""
    unit = (content["columns"].get(name) or {}).get("unit") or ""
    return "" if unit == "count" else unit


def better_of(content: Content, name: str) -> str | None:
    """Return ``lower``, ``higher``, or None if neither direction is better."""
    better: str | None = (content["columns"].get(name) or {}).get("better")
    return better


def warning_text(code: str) -> str:
    """Describe the warning with this code in a few words."""
    return _WARNINGS.get(code, humanised(code))


class Scale(NamedTuple):
    """How the values of one figure are written in a row or on an axis."""

    unit: str
    factor: float


def scale_of(content: Content, name: str, values: Iterable[Any]) -> Scale:
    """Choose ms or s for durations, and `money_scale` for anything else."""
    known = [float(value) for value in values if is_number(value)]
    if unit_of(content, name) == "s":
        return Scale(*duration_unit(known))
    return money_scale(content, name, known)


def money_scale(content: Content, name: str, values: Iterable[Any]) -> Scale:
    """Write small fractions of a cent per thousand, and anything else in its own unit."""
    unit = unit_of(content, name)
    known = [float(value) for value in values if is_number(value)]
    if name == "usd_per_good_request" and known and sorted(known)[len(known) // 2] < _SMALL_USD:
        return Scale("USD for 1,000", 1000.0)
    return Scale(unit, 1.0)


def value_text(content: Content, name: str, value: Any) -> str:
    """Write a figure with its unit."""
    if not is_number(value):
        return MISSING
    unit = unit_of(content, name)
    if unit == "s":
        return duration(value) if value else "0"
    if unit == "fraction":
        return percent(value)
    if name == "usd_per_good_request" and value < _SMALL_USD:
        return f"${significant(value * 1000)} for 1,000"
    if unit in ("USD", "USD/h"):
        return f"${significant(value)}{unit.removeprefix('USD')}"
    if unit == "GPUs":
        return f"{value:,.0f} GPU{'s' if value != 1 else ''}"
    return f"{number(value, unit)} {unit}".strip()
