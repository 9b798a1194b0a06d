"""The figures a what-if compares, and how each is read off a run."""

from __future__ import annotations

from typing import Any, NamedTuple

Values = dict[str, float | None]
"""Figure by key; None where there is no number."""


class ComparedFigure(NamedTuple):
    """One figure of the comparison."""

    key: str
    unit: str
    better: str | None
    """``lower``, ``higher``, or None where neither is a gain in itself."""
    compact: bool = False
    """Whether it stands in the table of the terminal, besides the page and the JSON."""

    @property
    def multiplies(self) -> bool:
        """Whether a product of several changes means anything; shares end at 100%."""
        return self.better is not None and self.unit not in ("fraction", "count")


_LATENCIES = tuple(
    ComparedFigure(f"{name}.{statistic}", "s", "lower", statistic in ("mean", "p99"))
    for name in ("ttft", "tpot", "e2e")
    for statistic in ("mean", "p50", "p90", "p99")
)
FIGURES = (
    *_LATENCIES,
    ComparedFigure("attainment", "fraction", "higher", True),
    ComparedFigure("goodput", "requests/s", "higher", True),
    ComparedFigure("availability", "fraction", "higher"),
    ComparedFigure("request_throughput", "requests/s", "higher", True),
    ComparedFigure("output_throughput", "tokens/s", "higher", True),
    ComparedFigure("gpu_busy", "fraction", None, True),
    ComparedFigure("kv_occupancy.mean", "fraction", None, True),
    ComparedFigure("preemptions", "count", "lower"),
    ComparedFigure("saturation", "requests/s", "higher", True),
    ComparedFigure("load", "fraction", None, True),
    ComparedFigure("gpus", "GPUs", None, True),
    ComparedFigure("goodput_per_gpu", "requests/s", "higher"),
    ComparedFigure("output_throughput_per_gpu", "tokens/s", "higher"),
    ComparedFigure("total_throughput_per_gpu", "tokens/s", "higher"),
    ComparedFigure("saturation_per_gpu", "requests/s", "higher", True),
)
KEYS = tuple(figure.key for figure in FIGURES)
_OF_SLO = ("attainment", "goodput", "goodput_per_gpu")


def compared_values(summary: dict[str, Any], *, has_slo: bool) -> Values:
    """The compared figures of a run's summary, in the order of `FIGURES`."""
    by_key: Values = {}
    for figure in summary["figures"]:
        name, statistic = figure["name"], figure["statistic"]
        by_key[name if statistic == "value" else f"{name}.{statistic}"] = figure["value"]
    limit = summary["saturation"] or {}
    gpus = float(summary["conditions"]["gpus"])
    by_key |= {
        "saturation": limit.get("saturation_per_s"),
        "load": limit.get("load"),
        "gpus": gpus,
    }
    for name in ("goodput", "output_throughput", "saturation"):
        value = by_key.get(name)
        by_key[f"{name}_per_gpu"] = None if value is None else value / gpus
    if not has_slo:
        by_key |= dict.fromkeys(_OF_SLO)
    return {key: by_key.get(key) for key in KEYS}
