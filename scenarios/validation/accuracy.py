"""Predicted against measured: one figure for each statistic, so that errors cannot cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyFigure:
    """One statistic of one metric of one run, predicted and measured."""

    run: str
    """What was compared, e.g. ``m1:p10`` or ``m1:steps``."""
    regime: str
    """Group of the error: ``light``, ``busy`` or ``saturated``; for steps their kind."""
    metric: str
    """ttft, tpot, itl, e2e, throughput, step_time, ..."""
    statistic: str
    """mean, p50, p90, p99, ..."""
    unit: str
    predicted: float
    measured: float
    count: int
    """Requests or steps that the statistic is over."""
    band: tuple[float, float] | None = None
    """The 90% band around the prediction, as relative changes of it; None where unknown."""

    @property
    def error(self) -> float:
        """Relative error: 0.1 is predicted 10% too high; infinite if the measured value is zero."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.measured - 1

    @property
    def in_band(self) -> bool | None:
        """Whether the measured value lies in the band; None without one."""
        if self.band is None:
            return None
        low, high = self.band
        return low <= self.measured / self.predicted - 1 <= high

    def as_dict(self) -> dict[str, Any]:
        """Return the row of ``figures`` in the JSON output; an infinite error is null."""
        error = self.error
        return {
            "run": self.run,
            "regime": self.regime,
            "metric": self.metric,
            "statistic": self.statistic,
            "unit": self.unit,
            "predicted": self.predicted,
            "measured": self.measured,
            "error": error if error != float("inf") else None,
            "band": self.band,
            "in_band": self.in_band,
            "count": self.count,
        }
