"""Arrivals of requests or sessions: renewal processes, many clients, and changing rates.

A few clients carry most of the load of a service, and each has gaps of its own variability; a
single renewal process has neither property (Xiang et al., ServeGen, arXiv 2505.09999).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.distributions import Quantiles, check_quantiles, sample_quantiles, stream
from workloads.generator.rate_changes import Drift, OnOff, drifted, with_silences

ALL_AT_ONCE = "all-at-once"
PROCESSES = ("poisson", "gamma", "weibull", "constant", ALL_AT_ONCE)
LEAST_CV, MOST_CV = 0.01, 100.0


def unit_gaps(process: str, rng: np.random.Generator, n: int, cv: float) -> Float64:
    """Draw ``[n]`` gaps of mean 1, the first from an arrival on; ``cv`` is for gamma and
    weibull."""
    if process == "poisson":
        return -np.log1p(-rng.random(n))
    if process == "gamma":
        return rng.standard_gamma(cv**-2, n) * cv**2
    if process == "weibull":
        return _weibull(-np.log1p(-rng.random(n)), weibull_shape(cv))
    if process == "constant":
        return np.minimum(np.arange(n), 1.0)
    return np.zeros(n)


def stationary_gaps(process: str, rng: np.random.Generator, n: int, cv: float) -> Float64:
    """Draw ``[n]`` gaps of mean 1 of a process that began long before 0.

    The first is what is left of a gap that covers 0. That gap is drawn by its length, because
    longer ones cover more time, and 0 lies anywhere in it. Otherwise all bursty sources would begin
    with a burst.
    """
    elapsed = rng.random()
    if process == "gamma":
        covering = rng.standard_gamma(cv**-2 + 1) * cv**2
    elif process == "weibull":
        shape = weibull_shape(cv)
        covering = float(_weibull(np.array(rng.standard_gamma(1 + 1 / shape)), shape))
    elif process == "constant":
        return np.concatenate(([elapsed], np.ones(n - 1)))
    else:
        covering = rng.standard_gamma(2.0)
    rest = unit_gaps(process, rng, n - 1, cv)
    return np.concatenate(([elapsed * covering], rest))


@lru_cache(maxsize=4096)
def weibull_shape(cv: float) -> float:
    """Return the shape of a Weibull distribution with this standard deviation over mean."""
    low, high = 0.05, 500.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if weibull_cv(middle) > cv else (low, middle)
    return math.sqrt(low * high)


def weibull_cv(shape: float) -> float:
    """Return the standard deviation over mean of a Weibull distribution."""
    ln_ratio = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
    return math.sqrt(math.expm1(ln_ratio))


def _weibull(exponentials: Float64, shape: float) -> Float64:
    scale: Float64 = exponentials ** (1 / shape) / math.exp(math.lgamma(1 + 1 / shape))
    return scale


MOST_CLIENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clients:
    """Independent renewal processes. Raises ScenarioError for values out of range."""

    shares: tuple[float, ...]
    """Each client's share of the rate, relative to the others."""
    cv: Quantiles
    """CV of each client's gaps, by percentile of the load: ``{50: 1, 90: 7}`` says that half the
    requests come from clients with a CV up to 1."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.shares) <= MOST_CLIENTS:
            raise ScenarioError(f"{len(self.shares)} clients; expected 1 to {MOST_CLIENTS}")
        if not all(0 <= share < math.inf for share in self.shares) or not sum(self.shares):
            raise ScenarioError("shares of clients must be numbers of at least 0, and not all 0")
        check_quantiles(self.cv, "cv of clients", LEAST_CV, MOST_CV)


def zipf_shares(count: int, exponent: float) -> tuple[float, ...]:
    """Return shares of ``count`` clients, the k-th largest proportional to ``k ** -exponent``."""
    shares = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return tuple((shares / shares.sum()).tolist())


@lru_cache(maxsize=64)
def zipf_exponent(count: int, top: int, top_share: float) -> float:
    """Return the exponent with which the ``top`` largest of ``count`` clients have ``top_share``.

    Raises ScenarioError if there is none.
    """
    if not top / count < top_share < 1 or not 1 <= top < count:
        raise ScenarioError(
            f"the top {top} of {count} clients cannot have a share of {top_share:g}: expected more "
            f"than {top / count:.3g}, which equal clients have, and less than 1"
        )
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = sum(zipf_shares(count, middle)[:top]) >= top_share
        low, high = (low, middle) if reached else (middle, high)
    return high


def client_cvs(clients: Clients, seed: int) -> Float64:
    """Return ``[clients]`` CVs which, weighted by the clients' rates, follow their distribution.

    Each client stands for the middle of its share of the load, in an order drawn from the seed.
    """
    shares = np.array(clients.shares) / sum(clients.shares)
    order = stream(seed, "client cvs").permutation(len(shares))
    middle = np.empty(len(shares))
    middle[order] = np.cumsum(shares[order]) - shares[order] / 2
    return sample_quantiles(clients.cv, middle)


def client_arrivals(clients: Clients, process: str, n: int, seed: int) -> tuple[Float64, Int64]:
    """Return times and clients ``[n]`` of the first ``n`` arrivals, at 1/s over all clients.

    Each client draws from a stream of its own and is in equilibrium at 0. Raises ScenarioError for
    all-at-once arrivals.
    """
    if process == ALL_AT_ONCE:
        raise ScenarioError(f"clients cannot send {ALL_AT_ONCE}: they have rates")
    shares = np.array(clients.shares) / sum(clients.shares)
    cvs = client_cvs(clients, seed)
    drawn = np.array([_first_guess(share * n, cv) for share, cv in zip(shares, cvs, strict=True)])
    times: dict[int, Float64] = {}
    stale = np.flatnonzero(shares)
    until = 0.0
    while True:
        for client in stale.tolist():
            rng = stream(seed, f"client {client}")
            gaps = stationary_gaps(process, rng, int(drawn[client]), float(cvs[client]))
            times[client] = np.cumsum(gaps) / shares[client]
        # All arrivals up to `until` are known, because every client is drawn at least that far.
        ends = {client: own[-1] for client, own in times.items()}
        until = min(ends.values())
        known = sum(int(np.searchsorted(own, until, side="right")) for own in times.values())
        if known >= n:
            break
        behind = max(until * 1.5, 1.2 * n)
        stale = np.array([client for client, end in ends.items() if end < behind])
        drawn[stale] *= 2
    merged = np.concatenate(list(times.values()))
    whose = np.repeat(list(times), [len(own) for own in times.values()])
    order = np.argsort(merged, kind="stable")[:n]
    return merged[order], whose[order]


def _first_guess(expected: float, cv: float) -> int:
    """Return enough arrivals for a client to last, most likely, as long as all the others."""
    return math.ceil(expected * 1.1 + 4 * max(cv, 1.0) * math.sqrt(expected + 1) + 2)


LATEST_ARRIVAL_NS = 2**62
"""The latest arrival allowed, 146 years; it leaves int64 room for the run after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """An arrival process. Raises ScenarioError for values out of range."""

    process: str = "poisson"
    """Kind of process: ``poisson``, ``gamma`` and ``weibull`` (gaps of the given ``cv``),
    ``constant`` or ``all-at-once``."""
    requests_per_s: float | None = None
    """Mean rate; None for ``all-at-once``, which has no rate."""
    cv: float = 1.0
    """Standard deviation over mean of the gaps: 1 is Poisson, above 1 is bursty."""
    clients: Clients | None = None
    """Several clients, each a process with a CV of its own, which replaces ``cv``."""
    on_off: OnOff | None = None
    """Bursts to which all arrivals are confined."""
    drift: Drift | None = None
    """A changing rate. With ``on_off``, bursts and silences follow each other faster where it is
    high."""

    def __post_init__(self) -> None:
        if self.process not in PROCESSES:
            raise ScenarioError(
                f"arrival process {self.process!r} is unknown; known: {', '.join(PROCESSES)}"
            )
        if self.process == ALL_AT_ONCE:
            if self.requests_per_s is not None:
                raise ScenarioError(f"{ALL_AT_ONCE} arrivals have no requests_per_s")
            if self.clients or self.on_off or self.drift:
                raise ScenarioError(f"{ALL_AT_ONCE} arrivals have no clients, bursts or drift")
        elif self.requests_per_s is None or not 0 < self.requests_per_s < math.inf:
            raise ScenarioError(
                f"requests_per_s is {self.requests_per_s}; {self.process} arrivals need a number "
                "above 0"
            )
        if not LEAST_CV <= self.cv <= MOST_CV:
            raise ScenarioError(
                f"cv of arrivals is {self.cv}; expected a number from {LEAST_CV:g} to {MOST_CV:g}"
            )


def arrival_times_s(arrivals: Arrivals, n: int, seed: int) -> tuple[Float64, Int64 | None]:
    """Return ``[n]`` times in seconds, non-decreasing, and the client of each if there are clients.

    A single random process is started at 0, so the first request comes one gap later; with constant
    spacing it comes at 0. Gaps are drawn in order at a rate of 1/s and then scaled: the first m
    times do not depend on ``n``, and rates are compared on the same gaps.
    """
    client = None
    if arrivals.clients is None:
        gaps = unit_gaps(arrivals.process, stream(seed, "arrivals"), n, arrivals.cv)
        unit = np.cumsum(gaps)
    else:
        unit, client = client_arrivals(arrivals.clients, arrivals.process, n, seed)
    times_s: Float64 = unit / (arrivals.requests_per_s or 1.0)
    if arrivals.on_off is not None:
        times_s = with_silences(times_s, arrivals.on_off, seed)
    if arrivals.drift is not None:
        times_s = drifted(times_s, arrivals.drift)
    return times_s, client
