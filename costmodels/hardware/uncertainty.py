"""Uncertainty of a prediction: bands of outcomes, and errors of its inputs, by evidence label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from costmodels.datafile import read_data

NORMAL_90 = 1.645
"""Half-width of a 90% band in standard deviations, for a normal error."""
_ANY = "any"
_RATES = ("throughput", "_per_gpu", "goodput")
_RATE = "request_throughput"
_LIKE = {"itl": "tpot", "queue": "ttft"}
"""Metrics without measured outcomes, and the one whose errors they have."""


class Band(NamedTuple):
    """A 90% band around a prediction, as relative changes to the measured value."""

    low: float
    """At most 0."""
    high: float
    """At least 0."""

    @property
    def half_width(self) -> float:
        """Half of the distance between its ends."""
        return (self.high - self.low) / 2


def outcome_band(label: str, metric: str, regime: str) -> Band | None:
    """Return how far measured values lay from predictions whose weakest evidence has this label.

    ``regime`` is light, busy, saturated, or closed. Where too few families were measured, latencies
    have the band of all regimes of the label, and rates, which follow arrivals until the engine is
    full, that of all labels in the regime. None for metrics that say nothing of speed.
    """
    is_rate = metric.endswith(_RATES)
    metric = _RATE if is_rate else _LIKE.get(metric, metric)
    wider = ((_ANY, regime), (label, _ANY)) if is_rate else ((label, _ANY), (_ANY, regime))
    known: Mapping[str, Any] = read_data("hardware/outcomes.yaml")
    for name, place in ((label, regime), *wider, (_ANY, _ANY)):
        cell = known.get(name, {}).get(metric, {}).get(place)
        if cell is not None:
            return Band(cell["low"], cell["high"])
    return None


def step_time_error(label: str) -> float:
    """Return the error of a run's GPU times, whose weakest evidence has this label, as a relative
    standard deviation: that of measured TPOT, where it is larger than that of single steps."""
    of_steps = float(read_data("hardware/uncertainty.yaml")["step_time"][label])
    cells = read_data("hardware/outcomes.yaml").get(label, {}).get("tpot", {})
    cell = cells.get("light") or cells.get(_ANY)
    if cell is None:
        return of_steps
    return max(of_steps, Band(cell["low"], cell["high"]).half_width / NORMAL_90)


def host_time_error(label: str) -> float:
    """Return the error of a run's host times, whose weakest evidence has this label, as a relative
    standard deviation."""
    return float(read_data("hardware/uncertainty.yaml")["host_time"][label])
