"""Queues with known capacities that replace the runs of a capacity search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scenarios.experiments.capacity.search import Tally, Trial
from sim.engine.config import EngineConfig
from sim.request_table import request_table
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run

Float = NDArray[np.float64]
COARSE = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.25)
"""Loads as shares of the service rate, which is 1/s."""

_SERVICE_TOKENS = 1_000_000
_ONE_AT_A_TIME = EngineConfig(
    running_seq_limit=1,
    step_token_limit=1 << 27,
    max_model_len=1 << 27,
    block_size=1 << 20,
    replica_blocks=4096,
    enable_prefix_caching=False,
    async_scheduling=False,
)


def mm1_capacity(target_s: float, attainment: float) -> float:
    """P(sojourn > t) = exp(-(mu - lambda) t), with mu = 1."""
    return 1 + math.log(1 - attainment) / target_s


def mm1_target_s(capacity: float, attainment: float) -> float:
    """The target with that capacity."""
    return -math.log(1 - attainment) / (1 - capacity)


def queue(
    target_s: float,
    *,
    seed: int,
    requests: int = 10_000,
    warmup: int = 1_000,
    blocks: int = 2,
    sojourns: Callable[[Float, Float], Float] | None = None,
) -> Callable[[Sequence[Trial]], list[Tally]]:
    """Runs of an M/M/1 queue with a service rate of 1/s; good within ``target_s``."""
    serve = sojourns or lindley

    def one(rate: float, replication: int) -> Tally:
        gap, work = np.random.default_rng([seed, replication]).random((2, requests + warmup))
        arrivals = np.cumsum(-np.log1p(-gap)) / rate
        sojourn = serve(arrivals, -np.log1p(-work))
        return tally(arrivals, sojourn, sojourn <= target_s, warmup, blocks)

    return lambda points: [one(*point) for point in points]


def lindley(arrivals: Float, services: Float) -> Float:
    """Sojourns of a single server in order of arrival."""
    steps = np.concatenate([np.zeros(1), np.cumsum(services[:-1] - np.diff(arrivals))])
    waits: Float = steps - np.minimum.accumulate(np.minimum(steps, 0))
    return waits + services


def simulated(arrivals: Float, services: Float) -> Float:
    """Return sojourn times from the simulator: an engine that serves one prompt per step."""
    prompts = np.maximum(np.rint(services * _SERVICE_TOKENS), 1).astype(np.int64)
    table = request_table(arrivals, prompts, np.ones(len(prompts), np.int64))
    cost = AffineCost(base_s=0.0, per_token_s=1 / _SERVICE_TOKENS, per_context_s=0.0)
    log = small_run(table, engine=_ONE_AT_A_TIME, cost=cost)
    finished_ns = np.frombuffer(log.requests.finished_ns, np.int64)
    sojourn: Float = (finished_ns - table.arrival_ns) / 1e9
    return sojourn


def tally(
    arrivals: Float, sojourn: Float, good: NDArray[np.bool_], warmup: int, blocks: int
) -> Tally:
    """Counts of the requests after the warm-up, and how the number in the system grew."""
    parts = np.array_split(good[warmup:], blocks)
    start, end = arrivals[warmup], arrivals[-1]
    left = np.sort(arrivals + sojourn)

    def in_system(at: float) -> int:
        return int(np.searchsorted(arrivals, at, "right") - np.searchsorted(left, at, "right"))

    throughput = ((left > start) & (left <= end)).sum() / (end - start)
    return Tally(
        good=tuple(int(part.sum()) for part in parts),
        arrived=tuple(len(part) for part in parts),
        growth=(in_system(end) - in_system(start)) / (len(arrivals) - warmup),
        throughput=float(throughput),
    )
