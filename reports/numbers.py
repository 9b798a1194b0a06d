"""Write numbers and names for people: units, significant digits, labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from sim.books.metrics import STATISTICS

MISSING = "\N{EN DASH}"
"""Text shown in place of a missing number."""

LATENCY_LABELS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
    "queue": "Queue",
}
LATENCY_MEANINGS = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "gap between tokens",
    "e2e": "arrival to last token",
    "queue": "arrival to first prefill",
}

GAP_LABELS = {"max": "longest ITL", "longest_tenth": "mean of the longest tenth of ITL"}
"""What a target limits of a request's gaps between tokens, where it is no percentile."""


def target_label(metric: str, itl_of: Any = None) -> str:
    """Return the label of what a target limits: ``TTFT``, or ``p99 of a request's ITL``."""
    if metric != "itl" or not itl_of:
        return LATENCY_LABELS.get(metric, metric)
    return f"{GAP_LABELS.get(str(itl_of), f'{itl_of} of ITL')} in a request"


THROUGHPUT_LABELS = {
    "request_throughput": "Requests",
    "goodput": "Goodput",
    "input_throughput": "Input",
    "output_throughput": "Output",
    "total_throughput_per_gpu": "All tokens, a GPU",
    "attainment": "SLO attainment",
    "availability": "Availability",
}
UTILIZATION_LABELS = {
    "gpu_busy": "GPU busy in time",
    "arithmetic_in_use": "Peak FLOP/s in use",
    "bandwidth_in_use": "Peak bandwidth in use",
    "kv_occupancy": "KV occupancy",
    "running": "Running",
    "waiting": "Waiting",
    "cache_hit_fraction": "Prefix cache hits",
    "accepted_length": "Accepted length",
    "acceptance_rate": "Drafts accepted",
    "gpu_hours": "GPU-hours",
    "energy": "Energy",
    "mean_power_per_gpu": "Mean power of a GPU",
    "cost": "Cost",
    "usd_per_hour": "Cost an hour",
    "usd_per_million_tokens": "A million tokens",
    "usd_per_million_input_tokens": "A million in",
    "usd_per_million_output_tokens": "A million out",
    "usd_per_good_request": "A good request",
    "cache_hit_tokens": "Tokens from cache",
    "preemptions": "Preemptions",
}
_UNITS = {"1/s": "requests/s", "count": "", "fraction": "", "": ""}
_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))
_COUNTED = ("arrived requests", "finished requests", "gaps")
_PLAIN_UNITS = {"running": "requests", "waiting": "requests", "cache_hit_tokens": "tokens"}


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of a summary is a finite number; null, NaN and text are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def significant(value: float, digits: int = 3) -> str:
    """Write a value to ``digits`` significant digits without dropping whole digits: 8.52, 213,
    1,234."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    decimals = max(digits - 1 - magnitude, 0)
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > magnitude:
        decimals = max(decimals - 1, 0)  # 9.996 becomes 10.0, not 10.00
    return f"{rounded:,.{decimals}f}"


def band_text(band: object) -> str:
    """Write a relative band as ``-5% +12%``, or as ``±5%`` if its ends are equal; "" without
    one."""
    if not isinstance(band, list) or len(band) != 2 or not all(map(is_number, band)):
        return ""
    low, high = (max(abs(end), 0.01) for end in band)
    if f"{low:.0%}" == f"{high:.0%}":
        return f"±{high:.0%}"
    return f"\N{MINUS SIGN}{low:.0%} +{high:.0%}"


def interval_text(value: object, interval: object) -> str:
    """Write the half-width of a confidence interval relative to its value, or "" if there is no
    interval."""
    if not isinstance(interval, list) or not is_number(value) or not value:
        return ""
    half = (interval[1] - interval[0]) / 2 / abs(value)
    if half < 0.0005:
        return ""
    return f"±{half:.1%}" if half < 0.01 else f"±{half:.0%}"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage; only exactly 0 and 1 are written as 0% and 100%."""
    if fraction in (0, 1):
        return f"{fraction:.0%}"
    if 0 < fraction < 0.001:
        return "<0.1%"
    if 0.999 < fraction < 1:
        # Round down: three nines must not read as four.
        return f"{math.floor(fraction * 10_000) / 100:.2f}%"
    return f"{fraction:.1%}"


def whole_percent(fraction: float) -> str:
    """Write a fraction as a percentage without decimals, for shares that need none: 23%."""
    return "<1%" if 0 < fraction < 0.005 else f"{fraction:.0%}"


def duration_unit(values_s: Iterable[object]) -> tuple[str, float]:
    """Choose a unit for a row of durations. Returns its name and how many of it make a second.

    The middle value decides, so that most of the row is written in few digits.
    """
    known = sorted(value for value in values_s if is_number(value))
    middle = known[len(known) // 2] if known else 0.0
    if 0 < middle < 1e-4:
        return "µs", 1e6
    return ("ms", 1e3) if middle < 1 else ("s", 1.0)


def duration(value_s: object) -> str:
    """Write seconds with a suitable unit: 213 ms, 3.41 s."""
    if not is_number(value_s):
        return MISSING
    unit, per_second = duration_unit([value_s])
    return f"{significant(value_s * per_second)} {unit}"


def target(value_s: float) -> str:
    """Write a latency target as it was set, without adding digits: 50 ms."""
    unit, per_second = duration_unit([value_s])
    return f"{value_s * per_second:.6g} {unit}"


def byte_size(num_bytes: float) -> str:
    """Write bytes in GiB (2**30 bytes), or in MiB if below a tenth of a GiB: 14.96 GiB."""
    if abs(num_bytes) < 2**30 / 10:
        return f"{num_bytes / 2**20:,.1f} MiB"
    return f"{num_bytes / 2**30:,.2f} GiB"


def named_quantity(name: str, value: object) -> str:
    """Write a value whose name ends in its unit: ``hbm_bytes_per_s`` of 4.8e12 is 4.8 TB/s."""
    if not is_number(value):
        return "" if value is None else str(value)
    for suffix, unit in (("_flop_per_s", "FLOP/s"), ("_bytes_per_s", "B/s")):
        if name.endswith(suffix) and value >= 1e6:
            prefix, size = next(pair for pair in _PREFIXES if value >= pair[1])
            return f"{value / size:.4g} {prefix}{unit}"
    if name.endswith("_bytes"):
        return byte_size(value)
    return duration(value) if name.endswith("_s") and value else f"{value:,.6g}"


def unit_text(name: str, unit: str) -> str:
    """Name the unit of a figure as a reader would: ``1/s`` becomes ``requests/s``."""
    if unit in ("", "count") and name in _PLAIN_UNITS:
        return _PLAIN_UNITS[name]
    return _UNITS.get(unit, unit)


def number(value: object, unit: str) -> str:
    """Write a value without its unit, except that a fraction carries its percent sign."""
    if not is_number(value):
        return MISSING
    if unit == "fraction":
        return percent(value)
    return f"{value:,.0f}" if float(value).is_integer() else significant(value)


def count_of(count: object, population: object) -> str:
    """Write the size of a figure's population: ``19,366 finished requests``."""
    words = str(population) if population else ""
    # Time windows and durations are not counted in requests, even if the figure has a count.
    if not is_number(count) or not words.startswith(_COUNTED):
        return words
    if count == 1:
        words = words.replace("requests", "request").replace("gaps", "gap")
    return f"{count:,.0f} {words}".strip()


def sentence(text: str) -> str:
    """Give a text a capital first letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def humanised(name: str) -> str:
    """Write a machine name as words: ``decode_weight_reads`` becomes ``decode weight reads``."""
    text = name.replace("_", " ").strip()
    return {"others prefill": "others' prefill", "kv cache": "KV cache"}.get(
        text, text.replace("kv cache", "KV cache")
    )


def listed(items: Iterable[str]) -> str:
    """Join items as in a sentence: ``a, b and c``."""
    parts = list(items)
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def gpus_text(facts: Mapping[str, Any]) -> str:
    """Write the devices of a replica: ``8 x H200-SXM (TP 4, PP 2)``."""
    return f"{facts['gpus']} \N{MULTIPLICATION SIGN} {facts['gpu']} ({facts['layout']})"


def share_text(share: float) -> str:
    """A share in the digits an SLO needs: 99%, 98.84%, 99.9%."""
    if share in (0, 1):
        return f"{share:.0%}"
    text = f"{min(max(share * 100, 0.01), 99.99):.2f}".rstrip("0").rstrip(".")
    return f"{text}%"


def condition_text(value: object) -> str:
    """A condition of a run: yes or no, or its own text."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def spread_note(summary: dict[str, Any]) -> str:
    """Explain the ``±`` of a summary's figures; empty if no figure has a band and the run has no
    replications."""
    figures = [f for f in summary.get("figures") or [] if is_number(f.get("value"))]
    count = (summary.get("replications") or {}).get("count")
    said = []
    if any(band_text(figure.get("band")) for figure in figures):
        said.append("the 90% band of a metric, from forecasts of this kind that were measured")
    if is_number(count):
        said.append(f"the 95% interval of the mean of {count:,.0f} replications")
    return f"± is {', then '.join(said)}" if said else ""


def spreads(figures: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the band and the interval of each of a metric's ``STATISTICS``; kinds that none of
    them has are left out, and a band that all share stands at the first alone."""
    each = [_spread(figures.get(name, {})) for name in STATISTICS]
    bands, intervals = zip(*each, strict=True)
    if len(set(bands)) == 1:
        bands = (bands[0], *[""] * (len(bands) - 1))
    kinds = [texts for texts in (bands, intervals) if any(texts)]
    return list(zip(*kinds, strict=True)) if kinds else [()] * len(STATISTICS)


def spread(figure: dict[str, Any]) -> str:
    """Write a figure's band and its interval, if it has them: ``±7% ±0.4%``."""
    return " ".join(text for text in _spread(figure) if text)


def _spread(figure: dict[str, Any]) -> tuple[str, str]:
    interval = interval_text(figure.get("value"), figure.get("interval"))
    return band_text(figure.get("band")), interval


def latencies_beside(targets: Iterable[str]) -> list[str]:
    """Return the latencies shown beside an attainment: TTFT, TPOT and those with a target."""
    named = {"ttft", "tpot", *targets}
    return [name for name in LATENCY_LABELS if name in named]
