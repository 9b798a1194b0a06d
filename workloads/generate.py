"""Make a workload from an arrival process and two length distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.clock import to_s
from sim.errors import ScenarioError
from sim.request_table import RequestTable, request_table
from workloads.arrivals import ALL_AT_ONCE, LATEST_ARRIVAL_NS, Arrivals, arrival_times_s
from workloads.lengths import Lengths, sample_tokens

MAX_REQUESTS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSpec:
    """What to generate. Raises ScenarioError for values it cannot have."""

    arrivals: Arrivals
    prompt_tokens: Lengths
    output_tokens: Lengths
    num_requests: int | None = None
    """Either this many requests, or those that arrive in ``[0, duration_s)``."""
    duration_s: float | None = None
    max_concurrency: int | None = None
    """Closed loop: at most this many in flight (see `RequestTable.max_concurrency`)."""
    source: str = "generated"

    def __post_init__(self) -> None:
        if (self.num_requests is None) == (self.duration_s is None):
            raise ScenarioError("a generated workload needs num_requests or duration_s, not both")
        if self.num_requests is not None and not 1 <= self.num_requests <= MAX_REQUESTS:
            raise ScenarioError(
                f"num_requests is {self.num_requests}; expected 1 to {MAX_REQUESTS}"
            )
        if self.duration_s is not None:
            if self.arrivals.requests_per_s is None:
                raise ScenarioError(f"{ALL_AT_ONCE} arrivals need num_requests, not duration_s")
            expected = self.arrivals.requests_per_s * self.duration_s
            if not (self.duration_s > 0 and expected <= MAX_REQUESTS):
                raise ScenarioError(
                    f"duration_s is {self.duration_s}; expected above 0, and at most "
                    f"{MAX_REQUESTS} requests in it"
                )
        if self.prompt_tokens.min_tokens < 1:
            raise ScenarioError("prompt_tokens of a generated workload must be at least 1")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ScenarioError(f"max_concurrency is {self.max_concurrency}; expected at least 1")


def generate(spec: GeneratorSpec, seed: int) -> RequestTable:
    """Draw the workload. The same spec and seed give the same table.

    Arrivals, prompt and output lengths are three streams of the seed: changing one leaves the
    others alone, and the first m requests of a longer run are the shorter run. Raises
    ScenarioError for a negative seed.
    """
    if spec.num_requests is not None:
        arrival_s = arrival_times_s(spec.arrivals, spec.num_requests, stream(seed, "arrivals"))
    else:
        arrival_s = _arrivals_within(spec.arrivals, spec.duration_s or 0.0, seed)
    n = len(arrival_s)
    if n and arrival_s[-1] > to_s(LATEST_ARRIVAL_NS):
        raise ScenarioError(f"{spec.source}: the last request would arrive after over 146 years")
    return request_table(
        arrival_s,
        sample_tokens(spec.prompt_tokens, n, stream(seed, "prompt_tokens")),
        sample_tokens(spec.output_tokens, n, stream(seed, "output_tokens")),
        max_concurrency=spec.max_concurrency,
        source=f"{spec.source} (seed {seed})",
    )


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of one named stream of ``seed``, independent of all other names."""
    if seed < 0:
        raise ScenarioError(f"seed is {seed}; expected 0 or more")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))


def _arrivals_within(arrivals: Arrivals, duration_s: float, seed: int) -> NDArray[np.float64]:
    # How many fall inside is not known beforehand, so draw more until they reach past the end.
    # A redraw starts the stream afresh, and so repeats the shorter draw.
    num_requests = math.ceil((arrivals.requests_per_s or 0.0) * duration_s * 1.1) + 64
    while True:
        arrival_s = arrival_times_s(arrivals, num_requests, stream(seed, "arrivals"))
        if arrival_s[-1] >= duration_s:
            return arrival_s[arrival_s < duration_s]
        num_requests *= 2
