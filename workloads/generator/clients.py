"""Many clients of unequal size and burstiness, as ServeGen found them, in one stream of arrivals.

A few clients carry most of the load, and each has gaps of its own variability; a single renewal
process has neither (Xiang et al., ServeGen, arXiv 2505.09999).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.gaps import ALL_AT_ONCE, LEAST_CV, MOST_CV, stationary_gaps
from workloads.generator.quantiles import Quantiles, check_quantiles, sample_quantiles
from workloads.generator.streams import stream

MOST_CLIENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clients:
    """Independent renewal processes. Raises ScenarioError for values it cannot have."""

    shares: tuple[float, ...]
    """Each client's share of the rate, relative to each other."""
    cv: Quantiles
    """Of each client's gaps, by percentile of the load: ``{50: 1, 90: 7}`` says that half the
    requests come from clients with a CV up to 1."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.shares) <= MOST_CLIENTS:
            raise ScenarioError(f"{len(self.shares)} clients; expected 1 to {MOST_CLIENTS}")
        if not all(0 <= share < math.inf for share in self.shares) or not sum(self.shares):
            raise ScenarioError("shares of clients must be numbers of at least 0, and not all 0")
        check_quantiles(self.cv, "cv of clients", LEAST_CV, MOST_CV)


def zipf_shares(count: int, exponent: float) -> tuple[float, ...]:
    """The k-th largest client has a share proportional to ``k ** -exponent``."""
    shares = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return tuple((shares / shares.sum()).tolist())


@lru_cache(maxsize=64)
def zipf_exponent(count: int, top: int, top_share: float) -> float:
    """The exponent with which the ``top`` largest of ``count`` clients have ``top_share``.

    Raises ScenarioError where none does.
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
    """``[clients]`` CVs which, weighted by the clients' rates, follow their distribution.

    Each client stands for the middle of its share of the load, in an order drawn from the seed.
    """
    shares = np.array(clients.shares) / sum(clients.shares)
    order = stream(seed, "client cvs").permutation(len(shares))
    middle = np.empty(len(shares))
    middle[order] = np.cumsum(shares[order]) - shares[order] / 2
    return sample_quantiles(clients.cv, middle)


def client_arrivals(clients: Clients, process: str, n: int, seed: int) -> tuple[Float64, Int64]:
    """The first ``n`` arrivals of all clients at 1/s in all: times ``[n]`` and whose they are.

    Each client draws from a stream of its own and is in the midst of its life at 0. Raises
    ScenarioError for all-at-once arrivals.
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
        # All arrivals up to `until` are known: no client has been drawn to less.
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
    """Arrivals enough to last, most likely, as long as everybody else's."""
    return math.ceil(expected * 1.1 + 4 * max(cv, 1.0) * math.sqrt(expected + 1) + 2)
