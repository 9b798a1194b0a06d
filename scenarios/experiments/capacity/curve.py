"""Attainment, latencies and state against load: one row per load that was run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Protocol

from scenarios.experiments.capacity.measure import RunFacts
from scenarios.experiments.capacity.samples import Samples

Row = dict[str, Any]


class Runs(Protocol):
    """The runs of all loads of a search."""

    def of(self, level: float) -> list[RunFacts]:
        """Return the facts of a load, by replication."""
        ...


def curve(samples: Samples, runs: Runs) -> list[Row]:
    """Return rows in order of load; every number is a mean over the runs of that load."""
    return [_row(level, samples, runs.of(level)) for level in samples.levels]


def nearest(rows: Sequence[Row], level: float, *, stable: bool = False) -> Row:
    """Return the row with the nearest load, among those with many requests.

    With ``stable``, only rows whose queue does not grow count, if there are any.
    """
    rows = [row for row in rows if row["stable"] or not stable] or rows
    most = max(row["requests"] for row in rows)
    many = [row for row in rows if 2 * row["requests"] >= most]
    return min(many, key=lambda row: abs(row["level"] - level))


def _row(level: float, samples: Samples, facts: list[RunFacts]) -> Row:
    _, arrived = samples.counts(level)
    left = fmean(one.tally.throughput for one in facts)
    saturation = [one.saturation_per_s for one in facts if one.saturation_per_s]
    missed = sum(one.missed for one in facts)
    names = facts[0].missed_by
    return {
        "level": level,
        "replications": len(facts),
        "requests": arrived,
        "attainment": samples.attainment(level),
        "interval": list(samples.interval(level)) if arrived else None,
        "stable": samples.is_stable(level),
        "saturation_per_s": fmean(saturation) if saturation else None,
        "throughput_per_s": None if math.isnan(left) else left,
        "missed": missed,
        "missed_by": {name: sum(one.missed_by[name] for one in facts) for name in names},
        "reject_reasons": _counts([one.reject_reasons for one in facts]),
        "latency_s": _means([one.latency_s for one in facts]),
        "accounts_s": _means([one.accounts_s for one in facts]),
        "state": _means([one.state for one in facts]),
        "evidence": _means([one.evidence for one in facts]),
    }


def _counts(every: Sequence[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in every:
        total.update(one)
    return dict(total)


def _means(every: Sequence[Any]) -> Any:
    """Return means of equal structures of numbers, without the keys that some of them lack."""
    if isinstance(every[0], dict):
        keys = [key for key in every[0] if all(key in one for one in every)]
        return {key: _means([one[key] for one in every]) for key in keys}
    return fmean(every)
