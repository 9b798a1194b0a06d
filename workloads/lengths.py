"""How long prompts and outputs are: a fixed length, or a clipped mixture drawn by inverse CDF."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.errors import ScenarioError
from sim.request_table import Int64
from workloads.rows import MAX_TOKENS

_GRID_POINTS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """ln(tokens) is normal with mean ``mu`` and standard deviation ``sigma``."""

    weight: float = 1.0
    mu: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """tokens are gamma distributed with mean ``shape * scale_tokens``."""

    weight: float = 1.0
    shape: float
    scale_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A mixture of ``components`` clipped to ``[min_tokens, max_tokens]``; equal ends are a fixed
    length and need no component. Weights sum to 1 up to rounding and are normalised.

    Raises ScenarioError for values it cannot have.
    """

    components: tuple[Lognormal | Gamma, ...] = ()
    min_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        lo, hi = self.min_tokens, self.max_tokens
        if not 0 <= lo <= hi <= MAX_TOKENS:
            raise ScenarioError(
                f"lengths from {lo} to {hi} tokens; expected 0 <= min <= max <= {MAX_TOKENS}"
            )
        if lo == hi:
            return
        if lo < 1:
            raise ScenarioError("lengths that vary need min_tokens of at least 1")
        if any(not 0 < number < math.inf for c in self.components for number in _positive(c)):
            raise ScenarioError(
                f"lengths {self.components}: every weight and width must be above 0"
            )
        if any(isinstance(c, Lognormal) and not math.isfinite(c.mu) for c in self.components):
            raise ScenarioError(f"lengths {self.components}: every mu must be a number")
        if abs(sum(c.weight for c in self.components) - 1) > 0.025:
            raise ScenarioError(f"lengths {self.components}: the weights must sum to 1")


def fixed(tokens: int) -> Lengths:
    """Every request has ``tokens`` tokens."""
    return Lengths(min_tokens=tokens, max_tokens=tokens)


def sample_tokens(lengths: Lengths, num_requests: int, rng: np.random.Generator) -> Int64:
    """``[num_requests]`` token counts, one uniform a request through the inverse CDF.

    So the first m do not depend on ``num_requests``, and a request that is long under one
    distribution is long under another of the same stream.
    """
    if lengths.min_tokens == lengths.max_tokens:
        return np.full(num_requests, lengths.min_tokens, np.int64)
    ln_tokens = np.linspace(
        math.log(lengths.min_tokens), math.log(lengths.max_tokens), _GRID_POINTS
    )
    total_weight = sum(component.weight for component in lengths.components)
    cdf = sum(c.weight / total_weight * _cdf(c, ln_tokens) for c in lengths.components)
    # Outside the grid np.interp takes its ends, which is the clipping.
    drawn = np.exp(np.interp(rng.random(num_requests), np.asarray(cdf), ln_tokens))
    return np.rint(drawn).astype(np.int64)


def _positive(component: Lognormal | Gamma) -> tuple[float, ...]:
    if isinstance(component, Lognormal):
        return component.weight, component.sigma
    return component.weight, component.shape, component.scale_tokens


def _cdf(component: Lognormal | Gamma, ln_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    if isinstance(component, Lognormal):
        z = (ln_tokens - component.mu) / (component.sigma * math.sqrt(2))
        return np.array([0.5 * math.erfc(-value) for value in z.tolist()])
    return _gamma_cdf(component.shape, np.exp(ln_tokens) / component.scale_tokens)


def _gamma_cdf(shape: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
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
