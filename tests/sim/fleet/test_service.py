"""Admission, time-outs, retries, faults and scaling: known answers and closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from policies import ADMISSIONS, AUTOSCALERS, ROUTERS
from policies.routers.prefix_affinity import PrefixAffinity
from scenarios.build.plugins import load_attribute
from sim.accounts import TIME_ACCOUNTS
from sim.books.ledger import time_books
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.cluster import run_cluster
from sim.fleet.config import Fleet
from sim.fleet.handover import TransferConfig
from sim.fleet.service import ClientConfig, Fault, FaultConfig, ScalingConfig, ServiceConfig
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Gang, Request, Status
from tests.properties.costs import AffineCost
from tests.properties.engines import small_pool
from tests.properties.queues import (
    MEAN_SERVICE_S,
    MEAN_TOKENS,
    MICROSECOND_PER_TOKEN,
    ONE_AT_A_TIME,
    exponential,
)
from tests.properties.service_runs import MS, policy, serve
from tests.properties.tables import chains_of, table_of

SMALL = EngineConfig(
    step_token_limit=512, running_seq_limit=8, max_model_len=400, block_size=8, replica_blocks=200
)
STEP_10_MS = AffineCost(base_s=10e-3, per_token_s=0.0, per_context_s=0.0)
SECOND = 1_000 * MS


def crash(at_ns: int, replica: int = 0, kind: str = "engine_crash") -> Fault:
    return Fault(at_ns=at_ns, kind=kind, replica=replica)  # type: ignore[arg-type]


def with_faults(*schedule: Fault, **options: Any) -> ServiceConfig:
    return ServiceConfig(faults=FaultConfig(schedule=schedule, **options))


@pytest.mark.parametrize("name", ["concurrency_cap", "queue_cap"])
def test_a_cap_loses_what_a_queue_of_k_places_does(name: str) -> None:
    """M/M/1/K: the share lost is (1 - rho) rho^K / (1 - rho^(K + 1))."""
    rng = np.random.default_rng(5)
    n, rho, places = 12_000, 0.9, 4
    gaps_s = exponential(rng.random(n)) * MEAN_SERVICE_S / rho
    prompts = np.maximum(np.rint(exponential(rng.random(n)) * MEAN_TOKENS), 1)
    rows = zip(np.cumsum(gaps_s).tolist(), prompts.tolist(), [1] * n, strict=True)
    options = {"max_requests": places} if name == "concurrency_cap" else {"max_waiting": places - 1}
    service = ServiceConfig(admission=policy(ADMISSIONS, name, **options))
    log = serve(table_of(*rows), ONE_AT_A_TIME, service, cost=MICROSECOND_PER_TOKEN)
    lost = (np.frombuffer(log.requests.status, np.int8) == Status.REJECTED).mean()
    expected = (1 - rho) * rho**places / (1 - rho ** (places + 1))
    assert lost == pytest.approx(expected, abs=3 * np.sqrt(expected / n) * 2)


def test_a_bucket_lets_through_its_rate_and_a_burst() -> None:
    table = table_of(*[(i * 0.01, 8, 1) for i in range(100)])  # 100 a second, for a second
    limit = policy(ADMISSIONS, "rate_limit", rate_per_s=20.0, burst=5.0)
    log = serve(table, SMALL, ServiceConfig(admission=limit))
    admitted = np.frombuffer(log.requests.status, np.int8) == Status.FINISHED
    assert admitted[:5].all()
    assert admitted.sum() == 5 + 19  # 0.99 s at 20 a second
    assert set(log.requests.reject_reasons.values()) == {"over the rate limit"}


def test_a_budget_of_tokens_counts_until_a_request_leaves() -> None:
    table = table_of((0.0, 100, 20), (0.001, 100, 20), (0.002, 100, 20), (5.0, 100, 20))
    budget = policy(ADMISSIONS, "token_budget", max_prefill_tokens=250)
    log = serve(table, SMALL, ServiceConfig(admission=budget))
    assert list(log.requests.status) == [5, 5, 6, 5]
    assert log.requests.reject_reasons == {2: "over the prefill budget"}
    kv = policy(ADMISSIONS, "token_budget", max_kv_share=241 / (199 * 8))
    assert list(serve(table, SMALL, ServiceConfig(admission=kv)).requests.status) == [5, 5, 6, 5]


def test_early_rejection_keeps_to_its_ttft() -> None:
    """400 tokens a step of 10 ms: 40,000 a second; a queue of 2,000 tokens is 50 ms."""
    engine = EngineConfig(
        step_token_limit=400, running_seq_limit=64, max_model_len=500, replica_blocks=2000
    )
    rows = [(0.0, 400, 1)] + [(1.0, 400, 1)] * 40
    early = policy(ADMISSIONS, "early_rejection", ttft_s=0.1)
    log = serve(table_of(*rows), engine, ServiceConfig(admission=early), cost=STEP_10_MS)
    finished = np.frombuffer(log.requests.status, np.int8) == Status.FINISHED
    assert finished.sum() == 1 + 10
    ttft_ns = np.frombuffer(log.requests.first_token_ns, np.int64)[finished][1:] - SECOND
    assert ttft_ns.max() <= 0.1 * SECOND


def test_a_client_gives_up_where_it_said_it_would() -> None:
    """Ten requests one at a time, 100 ms each: the fourth has no first token after 250 ms."""
    engine = EngineConfig(running_seq_limit=1, max_model_len=400, replica_blocks=200)
    table = table_of(*[(0.0, 8, 10)] * 10)
    clients = ClientConfig(ttft_timeout_ns=250 * MS)
    log = serve(table, engine, ServiceConfig(clients=clients), cost=STEP_10_MS)
    assert list(log.requests.status) == [5, 5, 5] + [Status.ABANDONED] * 7
    assert set(log.requests.fail_reasons.values()) == {"no first token after 0.25 s"}
    assert set(log.requests.finished_ns[3:]) == {250 * MS}
    assert log.end_ns == log.requests.finished_ns[2]  # nobody computes for those who have gone


@pytest.mark.parametrize("server_notices", [True, False])
def test_an_engine_that_does_not_notice_serves_nobody(server_notices: bool) -> None:
    clients = ClientConfig(e2e_timeout_ns=55 * MS, server_notices=server_notices)
    log = serve(table_of((0.0, 8, 40)), SMALL, ServiceConfig(clients=clients), cost=STEP_10_MS)
    assert log.requests.status[0] == Status.ABANDONED
    steps = int(log.steps[0].column("steps").sum())
    assert steps == (7 if server_notices else 40)


def test_a_retry_counts_from_the_first_sending() -> None:
    """Its time before the last sending is rework, and the accounts still sum to its E2E."""
    table = table_of((0.0, 8, 5), (0.0, 8, 5))
    fault = with_faults(crash(25 * MS), detection_ns=0)
    clients = ClientConfig(max_retries=3, backoff_ns=100 * MS)
    service = ServiceConfig(faults=fault.faults, clients=clients)
    log = serve(table, SMALL, service, cost=STEP_10_MS)
    assert list(log.requests.status) == [5, 5]
    assert log.requests.attempts == {0: 2, 1: 2}
    assert log.service.client_retries == 2
    books, rework = time_books(log), TIME_ACCOUNTS.index("failure_rework")
    for request in (0, 1):
        assert 75 * MS <= log.requests.sent_ns[request] <= 125 * MS
        assert books.e2e_ns[request, rework] == log.requests.sent_ns[request]
        assert books.e2e_ns[request].sum() == log.requests.finished_ns[request]


def test_a_proxy_tries_another_engine_at_once() -> None:
    fault = with_faults(crash(25 * MS), detection_ns=SECOND, proxy_retries=1)
    log = serve(table_of((0.0, 8, 5), (0.0, 8, 5)), SMALL, fault, cost=STEP_10_MS, replicas=2)
    assert list(log.requests.status) == [5, 5]
    assert list(log.requests.replica) == [1, 1]
    assert log.requests.sent_ns == {0: 25 * MS}


def test_between_a_crash_and_its_detection_requests_fail() -> None:
    rows = [(0.1 * i, 8, 1) for i in range(10)]
    fault = with_faults(crash(250 * MS), detection_ns=300 * MS)
    options = {"start_ns": 250 * MS, "replicas": 1}
    log = serve(table_of(*rows), SMALL, fault, cost=STEP_10_MS, **options)
    assert list(log.requests.status) == [5] * 3 + [7] * 5 + [5] * 2
    assert log.service.outages == [[0, 250 * MS, 550 * MS, 800 * MS]]
    reasons = [log.requests.fail_reasons[i] for i in range(3, 8)]
    assert reasons == ["its engine is down"] * 3 + ["no engine is up"] * 2


def test_a_lost_gpu_needs_another_machine() -> None:
    outages = []
    for kind in ("engine_crash", "gpu_lost"):
        fault = with_faults(crash(0, kind=kind), detection_ns=10 * MS)
        times = {"start_ns": 30 * MS, "provision_ns": 500 * MS}
        log = serve(table_of((0.0, 8, 1), (2.0, 8, 1)), SMALL, fault, **times)
        outages.append(log.service.outages[0][3])
    assert outages == [40 * MS, 540 * MS]


def test_a_slow_node_is_slower_by_its_factor_while_it_is() -> None:
    slow = Fault(at_ns=105 * MS, kind="slow_node", replica=0, factor=3.0, duration_ns=100 * MS)
    log = serve(table_of((0.0, 8, 40)), SMALL, with_faults(slow), cost=STEP_10_MS)
    gaps_ms = np.diff(log.steps[0].step_visible_ns()) / MS
    assert set(np.rint(gaps_ms).tolist()) == {10.0, 30.0}
    assert 2 <= (np.rint(gaps_ms) == 30).sum() <= 5
    books = time_books(log)
    assert books.e2e_ns[0].sum() == log.requests.finished_ns[0]


def test_random_crashes_leave_the_availability_of_their_rates() -> None:
    """Up MTBF on average, then down for a fixed time: MTBF / (MTBF + MTTR)."""
    mtbf_s, mttr_s, span_s = 100.0, 25.0, 40_000.0
    faults = FaultConfig(mtbf_ns=round(mtbf_s * 1e9), detection_ns=5 * SECOND)
    table = table_of((0.0, 8, 1), (span_s, 8, 1))
    log = serve(
        table, SMALL, ServiceConfig(faults=faults, seed=1), start_ns=20 * SECOND, replicas=4
    )
    down_s = (
        sum(min(up, log.end_ns) - down for _, down, _, up in log.service.outages if up > 0) / 1e9
    )
    available = 1 - down_s / (4 * span_s)
    cycles = 4 * span_s / (mtbf_s + mttr_s)
    expected = mtbf_s / (mtbf_s + mttr_s)
    # The variance of a renewal process with exponential times up and fixed times down.
    spread = mttr_s * mtbf_s / (mtbf_s + mttr_s) ** 2 / np.sqrt(cycles)
    assert available == pytest.approx(expected, abs=4 * spread)


class _Honest:
    """A prefix-affinity router that checks what it knows against the caches, at every choice."""

    checked = 0

    def __init__(self, context: RoutingContext) -> None:
        self._context: Any = context
        self._router = PrefixAffinity(context, load_bound=None)
        self.publish, self.down, self.up = self._router.publish, self._router.down, self._router.up

    def choose(self, request: Request) -> int:
        ids = self._context.prefix_ids(request)
        depth, holders = self._router._index.deepest(ids)
        for replica in holders:
            index = self._context._engines[replica].view.kv.index
            node = index._nodes.get(ids[depth - 1])
            assert node is not None
            assert node.resident > 0
            type(self).checked += 1
        return self._router.choose(request)


def test_no_hit_on_a_page_that_is_gone() -> None:
    """Caches and the router's index lose an owner's entries with it, in the same instant."""
    n = 60
    families = [i % 3 for i in range(n)]
    chains = chains_of([[f * 100 + j for j in range(8)] for f in families], [64] * n, 8)
    table = table_of(*[(0.02 * i, 64, 8) for i in range(n)])
    table = replace(table, chains=chains)
    faults = with_faults(
        *(crash(t * MS, r) for t, r in [(203, 0), (407, 1), (611, 2), (613, 0)]),
        detection_ns=15 * MS,
        proxy_retries=2,
    )
    _Honest.checked = 0
    log = serve(table, SMALL, faults, replicas=3, router=_Honest, start_ns=40 * MS)
    assert _Honest.checked > 20
    arrival_ns = np.frombuffer(log.requests.admitted_ns, np.int64)
    cached = np.frombuffer(log.requests.cached_tokens, np.int64)
    replica = np.frombuffer(log.requests.replica, np.int32)
    for of, _, _, up_ns in log.service.outages:
        assert up_ns > 0
        later = np.flatnonzero((replica == of) & (arrival_ns >= up_ns))
        if len(later):  # the first that a cold cache serves hits nothing
            assert cached[later[arrival_ns[later].argmin()]] == 0


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("at_ms", [3, 12, 25, 60, 140])
def test_giving_up_frees_both_ends_of_a_handover(mode: Any, at_ms: int) -> None:
    """Blocks at the source, on the way and at the target come back, and bytes are counted."""
    transfer = TransferConfig(
        bytes_per_token=100_000,
        layers=8,
        mode=mode,
        prefill_nic_bytes_per_s=10**9 // 10,
        decode_nic_bytes_per_s=10**9,
    )
    pools = (small_pool(SMALL, role="prefill"), small_pool(SMALL, role="decode"))
    clients = ClientConfig(e2e_timeout_ns=at_ms * MS)
    fleet = Fleet(pools=pools, transfer=transfer, service=ServiceConfig(clients=clients))
    table = table_of((0.0, 100, 50), (1.0, 100, 2))
    log = run_cluster(table, fleet)
    assert log.requests.status[0] == Status.ABANDONED
    # The second request meets engines as empty as if the first had never come.
    alone = run_cluster(table_of((1.0, 100, 2)), Fleet(pools=pools, transfer=transfer))
    for steps, others in zip(log.steps, alone.steps, strict=True):
        rows = steps.columns()
        free = rows["free_blocks"][rows["plan_ns"] >= SECOND].tolist()
        assert free == others.column("free_blocks").tolist()[: len(free)]
    assert log.link_bytes["out 0"] == log.link_bytes["in 1"]


class _Counting:
    """Any router; notes whom it chose."""

    def __init__(self, context: RoutingContext, inner: Any, chosen: list[int]) -> None:
        self._inner, self._chosen = inner(context), chosen
        for name in ("down", "up"):
            setattr(self, name, getattr(self._inner, name))

    def choose(self, request: Request) -> int:
        choice: int = self._inner.choose(request)
        self._chosen.append(choice)
        return choice

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        self._inner.publish(replica, load)


@pytest.mark.parametrize(
    "name",
    [
        *("random", "round_robin", "least_loaded", "least_work", "power_of_two"),
        *("session_sticky", "consistent_hash", "prefix_affinity"),
    ],
)
def test_routers_leave_out_a_replica_that_is_known_to_be_down(name: str) -> None:
    chosen: list[int] = []
    router = partial(_Counting, inner=load_attribute(ROUTERS[name]), chosen=chosen)
    rows = [(0.01 * i, 8, 2) for i in range(60)]
    fault = with_faults(crash(0, 1), detection_ns=1)
    log = serve(table_of(*rows), SMALL, fault, replicas=3, router=router, start_ns=300 * MS)
    assert 1 not in chosen[1:30]
    assert set(chosen[31:]) - {1}
    if name not in ("session_sticky", "consistent_hash", "prefix_affinity", "least_work"):
        assert 1 in chosen[31:]
    assert Status.FAILED not in list(log.requests.status)[1:]


def test_a_router_that_knows_nothing_of_downs_is_helped() -> None:
    class Stubborn:
        def __init__(self, context: RoutingContext) -> None:
            pass

        def choose(self, request: Request) -> int:
            return 1

        def publish(self, replica: int, load: ReplicaLoad) -> None:
            pass

    fault = with_faults(crash(5 * MS, 1), detection_ns=1)
    rows = [(0.01 * i, 8, 1) for i in range(1, 10)]
    log = serve(table_of(*rows), SMALL, fault, replicas=3, router=Stubborn, start_ns=50 * MS)
    assert list(log.requests.replica) == [2, 2, 2, 2, 2, 1, 1, 1, 1]


def test_retries_within_a_budget_are_no_more_than_its_share() -> None:
    rows = [(0.01 * i, 8, 1) for i in range(200)]
    never = policy(ADMISSIONS, "rate_limit", rate_per_s=1e-9, burst=1e-9)
    retried = {}
    for burst in (math.inf, 5):
        clients = ClientConfig(max_retries=3, backoff_ns=MS, retry_budget=0.1, budget_burst=burst)
        log = serve(table_of(*rows), SMALL, ServiceConfig(admission=never, clients=clients))
        assert set(log.requests.status) == {Status.REJECTED}
        retried[burst] = log.service.client_retries
        assert len(log.service.sent) == 200 + log.service.client_retries
    assert retried[math.inf] == 600
    assert 20 <= retried[5] <= 200 * 0.1 + 5


def scaled(most: int, make: Any, **options: Any) -> ServiceConfig:
    return ServiceConfig(scaling=ScalingConfig(make=make, interval_ns=100 * MS, **options))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("queue_threshold", {"max_waiting": 2.0}),
        ("kv_threshold", {"max_kv_use": 0.5, "min_kv_use": 0.1}),
        ("ttft_target", {"ttft_s": 0.1, "window_s": 0.5}),
    ],
)
def test_replicas_come_with_the_load_and_go_with_it(name: str, options: Any) -> None:
    rows = [(0.01 * i, 64, 30) for i in range(300)] + [(8.0 + 0.5 * i, 64, 5) for i in range(10)]
    make = policy(AUTOSCALERS, name, cooldown_s=0.5, **options)
    engine = EngineConfig(running_seq_limit=4, max_model_len=400, replica_blocks=30)
    log = serve(
        table_of(*rows),
        engine,
        scaled(4, make),
        replicas=4,
        router="least_loaded",
        start_ns=200 * MS,
        provision_ns=100 * MS,
    )
    assert set(log.requests.status) == {Status.FINISHED}
    lives = log.service.lives
    assert len(lives) >= 3
    for replica, start, stop in lives[1:]:
        plans = log.steps[replica].column("plan_ns")
        mine = plans[(plans >= start) & (plans <= (stop if stop > 0 else log.end_ns))]
        assert not len(mine) or mine.min() >= start + 300 * MS  # a cold start
    assert sum(stop > 0 for _, _, stop in lives) >= 1  # and some were drained


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ScenarioError, match="a time and either"):
        Fault(at_ns=0, kind="engine_crash")
    with pytest.raises(ScenarioError, match="is not known; known: engine_crash"):
        Fault(at_ns=0, kind="meteor", replica=0)  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match="needs a duration"):
        Fault(at_ns=0, kind="slow_node", replica=0, factor=2.0)
    with pytest.raises(ScenarioError, match="there are 1, from 0"):
        serve(table_of((0.0, 8, 1)), SMALL, with_faults(crash(0, 3)))
    cut = Fault(at_ns=0, kind="link_cut", link="core", duration_ns=1)
    with pytest.raises(ScenarioError, match="no such link"):
        serve(table_of((0.0, 8, 1)), SMALL, with_faults(cut))
    make = policy(AUTOSCALERS, "queue_threshold")
    with pytest.raises(ScenarioError, match="cannot begin with 3"):
        serve(table_of((0.0, 8, 1)), SMALL, scaled(2, make, initial_replicas=3), replicas=2)
    with pytest.raises(ScenarioError, match="not before its first token"):
        ClientConfig(ttft_timeout_ns=5, e2e_timeout_ns=4)


def test_a_batch_is_let_go_once() -> None:
    """Two of a static batch have their answers; the third is given up, then one of the two."""
    long, first, second = (Request(i, 0, 8, 4) for i in range(3))
    gang = Gang(members=3, done=[first, second])
    finishing: list[Request] = []
    gang.leave(finishing)
    gang.leave(finishing)
    assert finishing == [first, second]
    assert long not in finishing


def test_those_who_are_done_leave_when_the_last_of_their_batch_is_given_up() -> None:
    rows = [(0.0, 8, 6), (0.001, 8, 60), (0.045, 8, 5), (0.045, 8, 5)]  # the last three: a batch
    clients = ClientConfig(e2e_timeout_ns=200 * MS)
    log = serve(
        table_of(*rows),
        SMALL,
        ServiceConfig(clients=clients),
        cost=STEP_10_MS,
        scheduler="static",
    )
    assert list(log.requests.status) == [5, Status.ABANDONED, 5, 5]
    assert log.requests.finished_ns[1] == 201 * MS
    assert 201 * MS <= log.requests.finished_ns[2] <= 225 * MS
    assert log.requests.finished_ns[2] == log.requests.finished_ns[3]
