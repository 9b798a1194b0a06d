"""Queueing theory: an engine that serves one request per step is a queue with a known answer.

With one sequence at a time, one-token answers, no host time and a microsecond per prompt token, a
request's service time is its prompt, and its wait is the time from arrival to first scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import pairwise

import numpy as np
import pytest
import simpy
from numpy.typing import NDArray
from scipy import stats

from policies import SCHEDULERS
from scenarios.build.plugins import scheduler_factory
from sim.clock import Clock
from sim.engine.config import EngineConfig
from sim.engine.engine import Engine
from sim.engine.step import Plan
from sim.engine.view import EngineView
from sim.engine.waiting import SortedQueue
from sim.fleet.cluster import RunLog
from sim.kv.pool import KVCache
from sim.protocols import ReplicaLoad
from sim.recorder import RequestLog
from sim.request import Request, Status
from sim.request_table import RequestTable, request_table
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run
from tests.properties.queues import (
    MEAN_SERVICE_S,
    MEAN_TOKENS,
    MICROSECOND_PER_TOKEN,
    NS_PER_TOKEN,
    ONE_AT_A_TIME,
    Float,
    exponential,
)
from tests.properties.tables import chains_of

Int64 = NDArray[np.int64]


def constant(uniform: Float) -> Float:
    """Mean 1, no variation."""
    return np.ones(len(uniform))


def two_point(uniform: Float) -> Float:
    """Mean 1: four fifths short, one fifth 21 times as long; squared variation 2.56."""
    return np.where(uniform < 0.8, 0.2, 4.2)


def serve(
    gaps_s: Float, services: Float, *, replicas: int = 1, router: str = "round_robin"
) -> RunLog:
    """Requests a gap apart, each served for its multiple of the mean service time."""
    prompts = np.maximum(np.rint(services * MEAN_TOKENS), 1).astype(np.int64)
    table = request_table(np.cumsum(gaps_s), prompts, np.ones(len(prompts), np.int64))
    return small_run(
        table, engine=ONE_AT_A_TIME, cost=MICROSECOND_PER_TOKEN, replicas=replicas, router=router
    )


def waits_ns(log: RunLog) -> Int64:
    """First scheduled less arrival, by request."""
    admitted = np.frombuffer(log.requests.admitted_ns, np.int64)
    waits: Int64 = admitted - np.frombuffer(log.requests.arrival_ns, np.int64)
    return waits


def mean_waits(
    service: Callable[[Float], Float],
    *,
    rho: float,
    replications: int,
    requests: int,
    replicas: int = 1,
) -> Float:
    """Mean wait of independent replications in mean service times, each without its first fifth.

    A replication is a run and its antithetic twin, which narrows the interval at no cost.
    """
    means = []
    for replication in range(replications):
        uniform = np.random.default_rng([0, replication]).random((2, requests))
        pair = []
        for gap, work in (uniform, 1 - uniform):
            gaps_s = exponential(gap) * MEAN_SERVICE_S / (rho * replicas)
            log = serve(gaps_s, service(work), replicas=replicas)
            pair.append(waits_ns(log)[requests // 5 :].mean() / 1e9 / MEAN_SERVICE_S)
        means.append(np.mean(pair))
    return np.array(means)


def interval_99(means: Float) -> tuple[float, float]:
    """Centre and half-width of the 99% t-interval over replication means."""
    half = stats.sem(means) * stats.t.ppf(0.995, len(means) - 1)
    return float(means.mean()), float(half)


@pytest.mark.parametrize(
    ("service", "variation", "rho", "replications", "requests", "widest"),
    [
        pytest.param(constant, 0.0, 0.3, 10, 1_500, 0.05, id="M/D/1 at 0.3"),
        pytest.param(constant, 0.0, 0.6, 10, 1_500, 0.08, id="M/D/1 at 0.6"),
        pytest.param(constant, 0.0, 0.9, 12, 2_000, 0.15, id="M/D/1 at 0.9"),
        pytest.param(exponential, 1.0, 0.3, 10, 1_500, 0.08, id="M/M/1 at 0.3"),
        pytest.param(exponential, 1.0, 0.6, 10, 2_000, 0.08, id="M/M/1 at 0.6"),
        pytest.param(exponential, 1.0, 0.9, 20, 2_500, 0.20, id="M/M/1 at 0.9"),
        pytest.param(two_point, 2.56, 0.6, 16, 1_500, 0.15, id="M/G/1 at 0.6"),
    ],
)
def test_mean_wait_is_pollaczek_khinchines(
    service: Callable[[Float], Float],
    variation: float,
    rho: float,
    replications: int,
    requests: int,
    widest: float,
) -> None:
    """rho (1 + c^2) / (2 (1 - rho)) services lies in the 99% interval, which is narrow enough."""
    expected = rho * (1 + variation) / (2 * (1 - rho))
    means = mean_waits(service, rho=rho, replications=replications, requests=requests)
    center, half = interval_99(means)
    assert half / expected < widest
    assert abs(center - expected) < half


@pytest.mark.parametrize("service", [constant, exponential, two_point])
@pytest.mark.parametrize("rho", [0.3, 0.9, 1.1])
def test_every_wait_is_lindleys(service: Callable[[Float], Float], rho: float) -> None:
    """Each wait is the one before plus its service less the gap, or none: to the nanosecond."""
    gap, work = np.random.default_rng(1).random((2, 1_000))
    log = serve(exponential(gap) * MEAN_SERVICE_S / rho, service(work))
    wait = 0
    expected = [wait]
    services_ns = (log.table.prompt_tokens * NS_PER_TOKEN).tolist()
    gaps_ns = np.diff(log.table.arrival_ns).tolist()
    for served_ns, gap_ns in zip(services_ns[:-1], gaps_ns, strict=True):
        wait = max(0, wait + served_ns - gap_ns)
        expected.append(wait)
    assert waits_ns(log).tolist() == expected


@pytest.mark.parametrize("rho", [0.6, 0.9])
def test_taking_turns_smooths_arrivals(rho: float) -> None:
    """Two replicas in turn are two E2/D/1: above no wait, below Kingman's bound and M/D/1."""
    center, half = interval_99(
        mean_waits(constant, rho=rho, replications=5, requests=1_500, replicas=2)
    )
    poisson = rho / (2 * (1 - rho))
    kingman = poisson / (2 * rho**2)
    assert center - half > 0
    assert center + half < min(poisson, kingman)


def test_shortest_queue_waits_less_than_taking_turns() -> None:
    """On the same arrivals and services, knowing the load never costs and here pays."""
    gap, work = np.random.default_rng(2).random((2, 3_000))
    gaps_s = exponential(gap) * MEAN_SERVICE_S / (0.9 * 2)
    turns, shortest = (
        waits_ns(serve(gaps_s, exponential(work), replicas=2, router=router)).mean()
        for router in ("round_robin", "least_loaded")
    )
    assert shortest < turns


def busy_table(seed: int, output: str) -> RequestTable:
    """Bursts of requests with shared prefixes, more than the engine below can hold at once."""
    rng = np.random.default_rng(seed)
    n = 250
    prompts, outputs = rng.integers(1, 150, n), rng.integers(1, 60, n)
    covered = prompts + outputs if output == "shared" else prompts
    family = rng.integers(0, 4, n)
    ids = [
        [int(f) * 1000 + j for j in range(-(-int(c) // 8))]
        for f, c in zip(family, covered, strict=True)
    ]
    chains = chains_of(ids, covered.tolist(), 8, covers_output=output == "shared")
    return request_table(
        np.cumsum(rng.choice([0, 0, 0.001, 0.04, 0.3], n)),
        prompts,
        outputs,
        priority=rng.integers(0, 3, n),
        chains=None if output == "no chains" else chains,
    )


class Population:
    """Integrates the published number in the system over time; integers throughout."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self.changes: list[tuple[int, int]] = [(0, 0)]

    def publish(self, load: ReplicaLoad) -> None:
        """The engine's load has changed."""
        self.changes.append((int(self._env.now), load.waiting + load.running))

    def integral_ns(self) -> int:
        """Request-nanoseconds from the start to the last change."""
        return sum((later - now) * number for (now, number), (later, _) in pairwise(self.changes))


class PreemptedAtTheEnd:
    """A scheduler that notes when a request lost its blocks with its last token in flight.

    Such a request neither waits nor runs any more, but leaves only when that token is read.
    """

    def __init__(self, name: str) -> None:
        self._schedule = scheduler_factory(name, SCHEDULERS)()
        self.order = getattr(self._schedule, "waiting_order", None)
        self.attach = getattr(self._schedule, "attach", lambda view: None)
        self.at_ns: dict[int, int] = {}

    def __call__(self, view: EngineView) -> Plan:
        plan = self._schedule(view)
        for request in view.newly_preempted:
            if request.status is Status.FINISHING:
                self.at_ns[request.index] = view.now_ns
        return plan


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("output", ["no chains", "own", "shared"])
@pytest.mark.parametrize("seed", [0, 1])
def test_littles_law_is_exact(scheduler: str, asynchronous: bool, output: str, seed: int) -> None:
    """From empty to empty, the integral of the number present is the sum of all sojourns."""
    table = busy_table(seed, output)
    config = EngineConfig(
        step_token_limit=64,
        running_seq_limit=8,
        block_size=8,
        replica_blocks=60,
        async_scheduling=asynchronous,
    )
    env = Clock(initial_time=0)
    population, log, policy = Population(env), RequestLog(len(table)), PreemptedAtTheEnd(scheduler)
    engine = Engine(
        env,
        config,
        AffineCost(launch_ns=400_000, launch_delay_ns=300_000, host_ns=50_000),
        policy,
        KVCache(config.replica_blocks, config.block_size, chains=table.chains),
        log,
        waiting=None if policy.order is None else SortedQueue(policy.order),
    )
    engine.lifecycle.on_load = population.publish

    def source() -> Generator[simpy.Event, None, None]:
        columns = (table.arrival_ns, table.prompt_tokens, table.output_tokens, table.priority)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for index, (arrival_ns, prompt, answer, priority) in enumerate(rows):
            yield env.timeout(arrival_ns - int(env.now))
            engine.submit(Request(index, arrival_ns, prompt, answer, priority))

    env.process(source())
    env.run()
    sojourns_ns = np.frombuffer(log.finished_ns, np.int64) - table.arrival_ns
    unpublished_ns = sum(log.finished_ns[index] - ns for index, ns in policy.at_ns.items())
    assert set(log.status) == {Status.FINISHED}
    assert (sum(log.preemptions) > 0) == (scheduler not in ("orca", "static"))
    assert asynchronous or not unpublished_ns
    assert population.changes[-1][1] == 0
    assert population.integral_ns() + unpublished_ns == int(sojourns_ns.sum())


def test_idle_engine_starts_at_once() -> None:
    """A request that finds the engine empty waits for nothing, not even a nanosecond."""
    log = serve(np.full(50, 2 * MEAN_SERVICE_S), np.ones(50))
    assert not waits_ns(log).any()
    served_ns = np.frombuffer(log.requests.finished_ns, np.int64) - log.table.arrival_ns
    assert served_ns.tolist() == [MEAN_TOKENS * NS_PER_TOKEN] * 50
