"""What a what-if keeps of each run: its figures, its books, and estimates from its sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scenarios.experiments.whatif.intervals import values_without_each
from scenarios.run.result import RunResult
from sim.accounts import TIME_ACCOUNTS
from sim.books.metrics import LATENCIES

Values = dict[str, float | None]
"""Figure by key; None where there is no number."""


class ComparedFigure(NamedTuple):
    """One figure of the comparison."""

    key: str
    unit: str
    better: str | None
    """``lower``, ``higher``, or None where neither is a gain in itself."""
    compact: bool = False
    """Whether it is in the terminal's table, besides the page and the JSON."""

    @property
    def multiplies(self) -> bool:
        """Whether a product of several changes is meaningful; shares are bounded by 100%."""
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
    """Return the compared figures of a run's summary, in the order of `FIGURES`."""
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


# Shares of requests at which distributions are kept: the tail closely, where the questions are.
SHARES = np.unique(
    np.concatenate([np.linspace(0, 0.98, 99), 1 - np.geomspace(0.02, 1e-4, 47), [1]])
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one simulation returns; small, because it travels between processes."""

    values: Values
    without_each: dict[str, list[float | None]]
    """Figure by key -> its value without each section of the run; empty if it is not cut."""
    accounts_ns: dict[str, dict[str, Fraction]]
    """``e2e`` and ``ttft`` -> account -> mean ns per finished request; each sums to the whole."""
    quantiles_s: dict[str, list[float]]
    """``ttft``, ``tpot``, ``e2e`` -> values at `SHARES`; empty if nothing finished."""
    counted: int
    """Measured requests that finished."""
    summary: dict[str, Any]
    """Conditions, evidence, warnings and requests of the run's summary."""


def reduce_run(result: RunResult, *, with_sections: bool = False) -> Run:
    """Return the part of a run that a comparison needs, with sections only if it is the only
    run."""
    has_slo = bool(result.metrics.met)
    counted = result.metrics.counted
    books = {"e2e": result.books.e2e_ns, "ttft": result.books.ttft_ns}
    kept = ("conditions", "evidence", "warnings", "requests")
    label = next((f["evidence"] for f in result.summary["figures"] if f["evidence"]), None)
    return Run(
        values=compared_values(result.summary, has_slo=has_slo),
        without_each=values_without_each(result, has_slo=has_slo) if with_sections else {},
        accounts_ns={name: _means(posted_ns[counted]) for name, posted_ns in books.items()},
        quantiles_s={
            name: _quantiles(getattr(result.metrics, f"{name}_s")[counted]) for name in LATENCIES
        },
        counted=int(counted.sum()),
        summary={key: result.summary[key] for key in kept}
        | {"label": label, "shares_prefixes": result.log.table.chains is not None},
    )


def mean_accounts_ns(runs: Sequence[Run], name: str) -> dict[str, int]:
    """Return the accounts of ``e2e`` or ``ttft``: the mean over runs of the mean per request, in
    ns.

    They are rounded to whole ns by largest remainder, so that they sum exactly to the rounded mean
    of the whole.
    """
    known = [run.accounts_ns[name] for run in runs if run.accounts_ns[name]]
    if not known:
        return {}
    means = {a: sum((one[a] for one in known), Fraction()) / len(known) for a in TIME_ACCOUNTS}
    whole_ns = round(sum(means.values(), Fraction()))
    floors = {account: mean.numerator // mean.denominator for account, mean in means.items()}
    by_remainder = sorted(means, key=lambda account: floors[account] - means[account])
    for account in by_remainder[: whole_ns - sum(floors.values())]:
        floors[account] += 1
    return floors


def _means(posted_ns: NDArray[np.int64]) -> dict[str, Fraction]:
    if not len(posted_ns):
        return {}
    totals = posted_ns.sum(axis=0).tolist()
    return {a: Fraction(t, len(posted_ns)) for a, t in zip(TIME_ACCOUNTS, totals, strict=True)}


def _quantiles(values_s: NDArray[np.float64]) -> list[float]:
    values_s = values_s[np.isfinite(values_s)]
    if not len(values_s):
        return []
    at: list[float] = np.quantile(values_s, SHARES, method="inverted_cdf").tolist()
    return at
