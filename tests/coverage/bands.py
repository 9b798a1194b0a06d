"""Bands of measured over predicted, from errors on families that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.coverage.points import Point

LEVEL = 0.9
ANY = "any"
LEAST_COVERAGE = 0.8
FEWEST_FAMILIES = 4
"""Families below which a cell is not kept, and the wider one that holds it serves."""
_WIDENINGS = np.arange(1.0, 4.01, 0.05)


class Band(NamedTuple):
    """A 90% band around predictions, as relative changes to the measured value."""

    low: float
    high: float
    points: int
    families: int
    coverage: float
    """Share of points in the band that all other families give."""


def bands(points: Sequence[Point]) -> dict[str, dict[str, dict[str, Band]]]:
    """Return bands by label, metric and regime; `ANY` stands for all labels, or all regimes."""
    found: dict[str, dict[str, dict[str, Band]]] = {}
    labels = [*sorted({point.label for point in points}), ANY]
    metrics = sorted({point.metric for point in points})
    regimes = [*sorted({point.regime for point in points}), ANY]
    for label in labels:
        for metric in metrics:
            for regime in regimes:
                cell = _cell(points, label, metric, regime)
                if len({point.family for point in cell}) < FEWEST_FAMILIES:
                    continue
                band = band_of(cell)
                # What covers too few families that are left out leaves its place to a wider cell.
                if band.coverage >= LEAST_COVERAGE or (label, regime) == (ANY, ANY):
                    found.setdefault(label, {}).setdefault(metric, {})[regime] = band
    return found


def band_of(points: Sequence[Point]) -> Band:
    """Return the band of one cell: quantiles of the logarithms of measured over predicted, of
    families with equal weight, widened until families left out are covered at `LEVEL`, or as well
    as they can be."""
    families = np.array([point.family for point in points])
    ratios = np.log([point.measured / point.predicted for point in points])
    widening, covered = 1.0, 0.0
    for wider in _WIDENINGS:
        now = float(np.mean(_left_out(families, ratios, wider)))
        if now > covered:
            widening, covered = float(wider), now
        if covered >= LEVEL:
            break
    low, high = _quantiles(families, ratios) * widening
    return Band(
        low=float(min(np.expm1(low), 0.0)),
        high=float(max(np.expm1(high), 0.0)),
        points=len(points),
        families=len(set(families.tolist())),
        coverage=float(covered),
    )


def as_content(found: dict[str, dict[str, dict[str, Band]]]) -> dict[str, Any]:
    """Return bands as plain values with few digits, for the data file."""
    return {
        label: {
            metric: {
                regime: {
                    "low": round(band.low, 3),
                    "high": round(band.high, 3),
                    "points": band.points,
                    "families": band.families,
                    "coverage": round(band.coverage, 3),
                }
                for regime, band in by_regime.items()
            }
            for metric, by_regime in by_metric.items()
        }
        for label, by_metric in found.items()
    }


def _cell(points: Iterable[Point], label: str, metric: str, regime: str) -> list[Point]:
    return [
        point
        for point in points
        if point.metric == metric and label in (point.label, ANY) and regime in (point.regime, ANY)
    ]


def _left_out(families: Any, ratios: Any, widening: float) -> list[bool]:
    """Return for each point whether the band of the other families holds it."""
    covered = []
    for family in dict.fromkeys(families.tolist()):
        own = families == family
        low, high = _quantiles(families[~own], ratios[~own]) * widening
        low, high = min(low, 0.0), max(high, 0.0)
        covered += ((ratios[own] >= low) & (ratios[own] <= high)).tolist()
    return covered


def _quantiles(families: Any, ratios: Any) -> Any:
    """Return the two outer quantiles of ratios, of families with equal weight in all."""
    order = np.argsort(ratios)
    names, counts = np.unique(families, return_counts=True)
    size = dict(zip(names.tolist(), counts.tolist(), strict=True))
    weights = np.array([1 / size[name] for name in families[order].tolist()])
    places = (np.cumsum(weights) - weights / 2) / weights.sum()
    tail = (1 - LEVEL) / 2
    return np.interp([tail, 1 - tail], places, ratios[order])
