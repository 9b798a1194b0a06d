"""Which points keep what is required, and which of them is best, by means over replications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scenarios.sweep.expressions import Expression
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

_DEFAULT_REQUIRE = "attainment >= 0.99"
_UNITS = {
    "s": ("ttft.", "tpot.", "itl.", "e2e.", "queue.", "e2e_account."),
    "fraction": ("attainment", "availability", "gpu_busy", "kv_occupancy", "load", "class."),
    "tokens/s": ("input_throughput", "output_throughput", "total_throughput"),
    "requests/s": ("request_throughput", "goodput", "saturation"),
    "USD/h": ("usd_per_hour",),
    "USD": ("usd_", "cost"),
    "GPU-h": ("gpu_hours",),
    "GPUs": ("gpus",),
    "kWh": ("energy",),
    "W": ("mean_power",),
    "tokens": ("cache_hit_tokens",),
    "requests": ("running.", "waiting.", "requests."),
    "count": ("preemptions",),
}
_LOWER = ("s", "USD", "USD/h", "GPU-h", "GPUs", "kWh", "W", "count")
_HIGHER = ("tokens/s", "requests/s")
_SHARES = ("attainment", "availability", "class.")
"""Shares of which more is better; of how busy a GPU is, or how full, neither is."""


def column_facts(columns: list[str]) -> dict[str, dict[str, str | None]]:
    """The unit of each figure, and whether ``lower`` or ``higher`` is better, None for neither."""
    facts = {}
    for name in columns:
        unit = next((u for u, starts in _UNITS.items() if name.startswith(starts)), None)
        if name == "cache_hit_fraction":
            unit = "fraction"
        if unit is not None:
            facts[name] = {"unit": unit, "better": _better(name, unit)}
    return facts


def _better(name: str, unit: str) -> str | None:
    if unit in _LOWER:
        return "lower"
    return "higher" if unit in _HIGHER or name.startswith(_SHARES) else None


def default_best(frame: pd.DataFrame) -> str:
    """What a scenario asks about: money where it has prices, its SLO, else the work of a GPU."""
    choices = ("usd_per_good_request", "goodput_per_gpu", "usd_per_million_tokens")
    has_slo = "attainment" in frame and frame["attainment"].notna().any()
    for name in choices:
        if name in frame and frame[name].notna().any() and (has_slo or name == choices[-1]):
            return name
    return "total_throughput_per_gpu"


def choose(
    frame: pd.DataFrame, best: str | None, require: str | None, where: str
) -> dict[str, Any]:
    """The points, best first, of those that keep ``require``; ``where`` says where it was given.

    Without one, 99% of requests meet the SLO, where there is an SLO. A point whose queue grows for
    as long as requests come keeps nothing, as in a capacity search. A point counts where all its
    runs were done.
    """
    best = best or default_best(frame)
    text = require
    has_slo = "attainment" in frame and frame["attainment"].notna().any()
    if text is None and has_slo:
        text = _DEFAULT_REQUIRE
    whole = frame.groupby("point")["status"].transform(lambda of_point: (of_point == "done").all())
    means = frame[whole].groupby("point").mean(numeric_only=True)
    cells = frame[whole].drop_duplicates("point").set_index("point")
    expression = None if text is None else Expression(text, where)
    grows = frame[frame["warnings"].str.contains("unstable", na=False)]
    growing = set(grows["point"]) if text is not None else set()
    rows = {**cells.to_dict("index")}
    for point, figures in means.to_dict("index").items():
        rows[point] |= figures
    keeps = [
        expression is None or (point not in growing and _keeps(expression, row))
        for point, row in rows.items()
    ]
    facts = column_facts([best]).get(best)
    better = (facts or {}).get("better") or "higher"
    values = means[best][keeps].dropna() if best in means else means.index[:0].to_series()
    ranked = values.sort_values(ascending=better == "lower", kind="stable")
    return {
        "best": best,
        "better": better,
        "require": text,
        "measured": len(means),
        "growing": len(growing & set(rows)),
        "kept": sum(keeps),
        "ranking": [int(point) for point in ranked.index],
    }


def _keeps(expression: Expression, row: dict[Any, Any]) -> bool:
    import pandas as pd

    values = {str(name): None if pd.isna(value) else value for name, value in row.items()}
    try:
        return bool(expression.value(values))
    except ScenarioError:  # a figure that this point does not have keeps nothing
        return False
