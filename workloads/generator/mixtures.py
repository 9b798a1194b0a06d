"""Clipped mixtures of lognormals and gammas, drawn by their inverse CDF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64
from sim.errors import ScenarioError

_GRID_POINTS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """ln(x) is normal with mean ``mu`` and standard deviation ``sigma``."""

    weight: float = 1.0
    mu: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Gamma distributed with mean ``shape * scale``; shape 1 is exponential."""

    weight: float = 1.0
    shape: float
    scale: float


Components = Sequence[Lognormal | Gamma]


def check_components(components: Components, what: str) -> None:
    """Raise ScenarioError for weights and widths that a mixture cannot have."""
    if any(not 0 < number < math.inf for c in components for number in _positive(c)):
        raise ScenarioError(f"{what} {components}: every weight and width must be above 0")
    if any(isinstance(c, Lognormal) and not math.isfinite(c.mu) for c in components):
        raise ScenarioError(f"{what} {components}: every mu must be a number")
    if abs(sum(c.weight for c in components) - 1) > 0.025:
        raise ScenarioError(f"{what} {components}: the weights must sum to 1")


def draw(components: Components, least: float, most: float, uniforms: Float64) -> Float64:
    """The inverse CDF at ``uniforms`` of the mixture clipped to ``[least, most]``, least > 0.

    Weights are normalised.
    """
    ln_x = np.linspace(math.log(least), math.log(most), _GRID_POINTS)
    total_weight = sum(component.weight for component in components)
    cdf = sum(c.weight / total_weight * _cdf(c, ln_x) for c in components)
    # Outside the grid np.interp takes its ends, which is the clipping.
    drawn: Float64 = np.exp(np.interp(uniforms, np.asarray(cdf), ln_x))
    return drawn


def midpoints(n: int = 20_000) -> Float64:
    """Uniforms spread evenly over (0, 1): a distribution's mean is that of its draw at these."""
    return (np.arange(n) + 0.5) / n


def _positive(component: Lognormal | Gamma) -> tuple[float, ...]:
    if isinstance(component, Lognormal):
        return component.weight, component.sigma
    return component.weight, component.shape, component.scale


def _cdf(component: Lognormal | Gamma, ln_x: Float64) -> Float64:
    if isinstance(component, Lognormal):
        z = (ln_x - component.mu) / (component.sigma * math.sqrt(2))
        return np.array([0.5 * math.erfc(-value) for value in z.tolist()])
    return _gamma_cdf(component.shape, np.exp(ln_x) / component.scale)


def _gamma_cdf(shape: float, x: Float64) -> Float64:
    """Regularised lower incomplete gamma function, by its series (Abramowitz and Stegun 6.5.29)."""
    # Terms are positive, so nothing cancels; far in the tail the CDF is 1 to all digits.
    x = np.minimum(x, shape + 40 * math.sqrt(shape) + 100)
    term = np.full_like(x, 1 / shape)
    total = term.copy()
    n = 0
    while (term > 1e-16 * total).any():
        n += 1
        term = term * x / (shape + n)
        total += term
    return np.minimum(total * np.exp(shape * np.log(x) - x - math.lgamma(shape)), 1.0)
