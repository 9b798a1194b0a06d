"""Distributions of tokens, counts, seconds and shares, and the random streams that draw them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.readers.rows import MAX_TOKENS

DEFAULT_MAX_TOKENS = 131_072
"""Longest length of a distribution that does not say where it is clipped."""
MOST_COUNTS = 100_000
"""Largest count, such as turns of a session."""
MOST_DOCUMENTS = 1000
"""Largest mean number of documents per request, and the most that one request gets."""


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the random generator of one named stream of ``seed``, independent of all other names.

    A change of what one name is used for leaves the draws of the others alone. Raises ScenarioError
    for a negative seed.
    """
    if seed < 0:
        raise ScenarioError(f"seed is {seed}; expected 0 or more")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))


_GRID_POINTS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """A lognormal component: ln(x) is normal with mean ``mu`` and standard deviation ``sigma``."""

    weight: float = 1.0
    mu: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """A gamma component with mean ``shape * scale``; shape 1 is exponential."""

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
    """Evaluate the inverse CDF of a mixture clipped to ``[least, most]`` at ``uniforms``.

    ``least`` is above 0. Weights are normalized.
    """
    ln_x = np.linspace(math.log(least), math.log(most), _GRID_POINTS)
    total_weight = sum(component.weight for component in components)
    cdf = sum(c.weight / total_weight * _cdf(c, ln_x) for c in components)
    # Outside the grid np.interp returns its ends, which clips the mixture.
    drawn: Float64 = np.exp(np.interp(uniforms, np.asarray(cdf), ln_x))
    return drawn


def midpoints(n: int = 20_000) -> Float64:
    """Return ``n`` numbers spread evenly over (0, 1), to draw a distribution's mean with."""
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
    """Evaluate the regularized lower incomplete gamma function by its series.

    Source: Abramowitz and Stegun 6.5.29.
    """
    # Terms are positive, so they do not cancel; far in the tail the CDF is 1 to all digits.
    x = np.minimum(x, shape + 40 * math.sqrt(shape) + 100)
    term = np.full_like(x, 1 / shape)
    total = term.copy()
    n = 0
    while (term > 1e-16 * total).any():
        n += 1
        term = term * x / (shape + n)
        total += term
    return np.minimum(total * np.exp(shape * np.log(x) - x - math.lgamma(shape)), 1.0)


Quantiles = Mapping[float, float]
"""Percent -> value, e.g. ``{10: 0.04, 50: 0.21, 90: 0.44}``.

Values are linear between percentiles, and constant below the first and above the last, so
``{50: 0.7}`` is always 0.7.
"""


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
    """Return ``[n]`` values at ``uniforms`` ``[n]``."""
    percents = sorted(quantiles)
    values: Float64 = np.interp(uniforms * 100, percents, [quantiles[p] for p in percents])
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A mixture of ``components`` in tokens, clipped to ``[min_tokens, max_tokens]``.

    Equal ends are a fixed length and need no component. Weights sum to 1 up to rounding and are
    normalized. Raises ScenarioError for values out of range.
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
        check_components(self.components, "lengths")


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Lengths from a file, each equally likely."""

    tokens: Int64
    """Tokens ``[k]``, ascending; or in the order of the lengths that they are drawn together
    with."""

    @property
    def min_tokens(self) -> int:
        return int(self.tokens.min())


def fixed(tokens: int) -> Lengths:
    """Return a distribution in which every length is ``tokens``."""
    return Lengths(min_tokens=tokens, max_tokens=tokens)


def sample_tokens(lengths: Lengths | Observed, uniforms: Float64) -> Int64:
    """Return ``[n]`` token counts: the inverse CDF at ``uniforms`` ``[n]``.

    So a request that is long under one distribution is long under another of the same stream.
    """
    if isinstance(lengths, Observed):
        return lengths.tokens[(uniforms * len(lengths.tokens)).astype(np.int64)]
    if lengths.min_tokens == lengths.max_tokens:
        return np.full(len(uniforms), lengths.min_tokens, np.int64)
    drawn = draw(lengths.components, lengths.min_tokens, lengths.max_tokens, uniforms)
    return np.rint(drawn).astype(np.int64)


def mean_tokens(lengths: Lengths | Observed) -> float:
    """Return the mean of a distribution of lengths."""
    return float(sample_tokens(lengths, midpoints()).mean())


@dataclass(frozen=True, slots=True)
class Counts:
    """A distribution of counts from 1 up, such as turns, documents or images.

    After the first another follows with probability ``another[0]``, after the second with
    ``another[1]``, and so on; the last probability holds from there on, up to ``most``. Raises
    ScenarioError for values out of range.
    """

    another: tuple[float, ...]
    most: int = MOST_COUNTS

    def __post_init__(self) -> None:
        if not self.another or not all(0 <= p <= 1 for p in self.another):
            raise ScenarioError(f"probabilities {self.another} of another turn; expected 0 to 1")
        if not 1 <= self.most <= MOST_COUNTS:
            raise ScenarioError(f"at most {self.most} turns; expected 1 to {MOST_COUNTS}")
        if self.another[-1] == 1 and self.most == MOST_COUNTS and 0 not in self.another:
            raise ScenarioError("the last probability of another turn is 1: the turns never end")


def counted(number: int) -> Counts:
    """Return a distribution in which the count is always ``number``."""
    return Counts((1.0,), number) if number > 1 else Counts((0.0,))


ONE = counted(1)


def geometric(mean: float, most: int = MOST_COUNTS) -> Counts:
    """Return a geometric distribution with this mean, at most ``most``.

    Raises ScenarioError for a mean below 1.
    """
    if not 1 <= mean < math.inf:
        raise ScenarioError(f"a mean of {mean} turns; expected at least 1")
    return Counts((1 - 1 / mean,), most)


def sample_counts(counts: Counts | Lengths, uniforms: Float64) -> Int64:
    """Return ``[n]`` counts at ``uniforms`` ``[n]``."""
    if isinstance(counts, Lengths):
        return sample_tokens(counts, uniforms)
    drawn = np.searchsorted(1 - _survival(counts), uniforms, side="right")
    return np.clip(drawn, 1, counts.most)


def mean_count(counts: Counts | Lengths) -> float:
    """Return the mean of a distribution of counts."""
    if isinstance(counts, Lengths):
        return mean_tokens(counts)
    return float(_survival(counts)[: counts.most].sum())


def _survival(counts: Counts) -> Float64:
    """Return P(more than k) for k = 0, 1, ... until it is below 2**-53 or the most is reached."""
    survival: Float64 = np.cumprod((1.0, *counts.another), dtype=np.float64)
    last = counts.another[-1]
    if len(survival) < counts.most and survival[-1] > 0 and last > 0:
        left = counts.most - len(survival)
        if last < 1:
            left = min(left, math.ceil(math.log(2.0**-60) / math.log(last)))
        survival = np.append(survival, survival[-1] * last ** np.arange(1.0, left + 1))
    return survival


SHORTEST_S = 1e-6
LONGEST_S = 1e8
"""Three years in seconds; longer waits are clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """A mixture of ``components`` in seconds, clipped to ``[min_s, max_s]``.

    Equal ends are a fixed time, which may be 0, and need no component. Raises ScenarioError for
    values out of range.
    """

    components: tuple[Lognormal | Gamma, ...] = ()
    min_s: float = SHORTEST_S
    max_s: float = LONGEST_S

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s < math.inf:
            raise ScenarioError(
                f"times from {self.min_s} to {self.max_s} s; expected 0 <= min <= max"
            )
        if self.min_s == self.max_s:
            return
        if self.min_s <= 0:
            raise ScenarioError("times that vary need a min above 0")
        check_components(self.components, "times")


def fixed_s(seconds: float) -> Durations:
    """Return a distribution in which every time is ``seconds``."""
    return Durations(min_s=seconds, max_s=seconds)


NO_TIME = fixed_s(0.0)


def exponential_s(mean_s: float) -> Durations:
    """Return an exponential distribution with this mean."""
    return Durations(components=(Gamma(shape=1.0, scale=mean_s),))


def sample_s(durations: Durations, uniforms: Float64) -> Float64:
    """Return ``[n]`` seconds: the inverse CDF at ``uniforms`` ``[n]``."""
    if durations.min_s == durations.max_s:
        return np.full(len(uniforms), durations.min_s)
    return draw(durations.components, durations.min_s, durations.max_s, uniforms)


def mean_s(durations: Durations) -> float:
    """Return the mean of a distribution of times, in seconds."""
    return float(sample_s(durations, midpoints()).mean())
