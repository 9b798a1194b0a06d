"""A distribution known by some of its percentiles."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sim.arrays import Float64
from sim.errors import ScenarioError

Quantiles = Mapping[float, float]
"""Percent -> value, e.g. ``{10: 0.04, 50: 0.21, 90: 0.44}``. Linear between them; below the first
and above the last it is that value, so ``{50: 0.7}`` is always 0.7."""


def check_quantiles(quantiles: Quantiles, what: str, least: float, most: float) -> None:
    """Raise ScenarioError for percentiles out of order or values out of ``[least, most]``."""
    percents = sorted(quantiles)
    values = [quantiles[percent] for percent in percents]
    if not values or not all(0 <= percent <= 100 for percent in percents):
        raise ScenarioError(f"{what} {dict(quantiles)}: needs percentiles from 0 to 100")
    if not all(least <= value <= most for value in values):
        raise ScenarioError(f"{what} {dict(quantiles)}: expected values from {least:g} to {most:g}")
    if values != sorted(values):
        raise ScenarioError(f"{what} {dict(quantiles)}: a higher percentile has the lower value")


def sample_quantiles(quantiles: Quantiles, uniforms: Float64) -> Float64:
    """``[n]`` values at ``uniforms`` ``[n]``."""
    percents = sorted(quantiles)
    values: Float64 = np.interp(uniforms * 100, percents, [quantiles[p] for p in percents])
    return values
