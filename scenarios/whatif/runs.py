"""What a what-if keeps of each run: its figures, its books, and estimates from sections of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.simulate import RunResult
from scenarios.whatif.figures import Values, compared_values
from scenarios.whatif.sections import values_without_each
from sim.accounts import TIME_ACCOUNTS

LATENCIES = ("ttft", "tpot", "e2e")

# Shares of requests at which distributions are kept: the tail closely, where the questions are.
SHARES = np.unique(
    np.concatenate([np.linspace(0, 0.98, 99), 1 - np.geomspace(0.02, 1e-4, 47), [1]])
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What comes back of one simulation; small, as it travels between processes."""

    values: Values
    without_each: dict[str, list[float | None]]
    """Figure by key -> its value without each section of the run; empty where it is not cut."""
    accounts_ns: dict[str, dict[str, Fraction]]
    """``e2e`` and ``ttft`` -> account -> mean ns a finished request; a dict's sum is the whole."""
    quantiles_s: dict[str, list[float]]
    """``ttft``, ``tpot``, ``e2e`` -> values at `SHARES`; empty where nothing finished."""
    counted: int
    """Measured requests that finished."""
    summary: dict[str, Any]
    """Conditions, evidence, warnings and requests of the run's summary."""


def reduce_run(result: RunResult, *, with_sections: bool = False) -> Run:
    """The part of a run that a comparison needs; sections only where it is the only run."""
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
        summary={key: result.summary[key] for key in kept} | {"label": label},
    )


def mean_accounts_ns(runs: Sequence[Run], name: str) -> dict[str, int]:
    """Accounts of ``e2e`` or ``ttft``, mean over runs of the mean a request, in whole ns.

    Rounded by largest remainder, so that they sum exactly to the rounded mean of the whole.
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
