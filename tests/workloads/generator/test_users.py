"""Closed loops of users: each sends its next request a think time after its answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sim.errors import ScenarioError
from sim.fleet.cluster import RunLog
from sim.request_table import RequestTable
from tests.properties.engines import small_run
from tests.properties.queues import (
    MEAN_SERVICE_S,
    MEAN_TOKENS,
    MICROSECOND_PER_TOKEN,
    ONE_AT_A_TIME,
)
from workloads.generator.arrivals import Arrivals
from workloads.generator.distributions import (
    Durations,
    Gamma,
    Lengths,
    counted,
    exponential_s,
    fixed,
    fixed_s,
    geometric,
)
from workloads.generator.generate import generate
from workloads.generator.sessions import Continuations, Sessions
from workloads.generator.spec import GeneratorSpec, RequestKind, Users

EXPONENTIAL = Lengths(
    components=(Gamma(shape=1.0, scale=MEAN_TOKENS),), min_tokens=1, max_tokens=40 * MEAN_TOKENS
)
ONE_TOKEN_ANSWERS = RequestKind(prompt_tokens=EXPONENTIAL, output_tokens=fixed(1))


def users_spec(users: Users, num_requests: int, kind: RequestKind) -> GeneratorSpec:
    return GeneratorSpec(
        arrivals=Arrivals(process="all-at-once"),
        kinds=(kind,),
        num_requests=num_requests,
        users=users,
    )


def serve(table: RequestTable) -> RunLog:
    return small_run(table, engine=ONE_AT_A_TIME, cost=MICROSECOND_PER_TOKEN)


def column(log: RunLog, name: str) -> np.ndarray:
    return np.frombuffer(getattr(log.requests, f"{name}_ns"), np.int64)


@pytest.mark.parametrize(("users", "think_services"), [(3, 4.0), (8, 6.0), (12, 30.0)])
def test_a_finite_source_queue_has_its_known_throughput_and_wait(
    users: int, think_services: float
) -> None:
    """M/M/1 with a finite source (the machine repairman): n of N users present, n = 0..N."""
    load = 1 / think_services
    weights = np.array([load**n * math.perm(users, n) for n in range(users + 1)])
    present = weights / weights.sum()
    throughput = (1 - present[0]) / MEAN_SERVICE_S
    # Little's law over queue and server.
    response_s = (present * np.arange(users + 1)).sum() / throughput
    think = exponential_s(think_services * MEAN_SERVICE_S)
    spec = users_spec(Users(count=users, think_s=think), 12_000, ONE_TOKEN_ANSWERS)
    log = serve(generate(spec, 0))
    sent, left = column(log, "arrival"), column(log, "finished")
    # Until the first user has sent its last: then the others have less company.
    until_ns = np.sort(sent)[-users * 20]
    assert (left < until_ns).sum() / (until_ns / 1e9) == pytest.approx(throughput, rel=0.03)
    assert (left - sent).mean() / 1e9 == pytest.approx(response_s, rel=0.06)


def test_a_user_has_one_request_at_a_time_and_thinks_between() -> None:
    think = Durations(components=(Gamma(shape=4.0, scale=0.01),), min_s=0.001, max_s=1.0)
    spec = users_spec(Users(count=5, think_s=think), 3000, ONE_TOKEN_ANSWERS)
    table = generate(spec, 1)
    log = serve(table)
    sent, left = column(log, "arrival"), column(log, "finished")
    assert table.think_ns is not None
    assert table.after is not None
    rows = np.flatnonzero(table.after >= 0)
    thought_ns = sent[rows] - left[table.after[rows]]
    assert np.array_equal(thought_ns, np.maximum(table.think_ns[rows], 1))
    assert len(np.unique(table.after[rows])) == len(rows) == 2995  # five chains of requests
    thought_s = table.think_ns[rows] / 1e9
    assert thought_s.mean() == pytest.approx(0.04, rel=0.05)


def test_without_thought_all_users_are_always_waiting() -> None:
    log = serve(generate(users_spec(Users(count=4), 2000, ONE_TOKEN_ANSWERS), 0))
    busy_ns = sum(int(s.column("gpu_ns").sum()) for s in log.steps)
    assert busy_ns / log.end_ns == pytest.approx(1.0, abs=1e-3)


def test_users_of_sessions_go_from_one_to_the_next() -> None:
    sessions = Sessions(turns=geometric(4.0), think_s=fixed_s(2.0))
    kind = RequestKind(prompt_tokens=fixed(9), output_tokens=fixed(3), sessions=sessions)
    table = generate(users_spec(Users(count=7, think_s=fixed_s(60.0)), 500, kind), 0)
    assert table.after is not None
    assert table.think_ns is not None
    assert table.session is not None
    waits = table.after >= 0
    assert (~waits).sum() == 7
    before = np.maximum(table.after, 0)
    is_turn = waits & (table.session == table.session[before])
    assert set(table.think_ns[is_turn].tolist()) == {2 * 10**9}
    is_next = waits & ~is_turn
    assert np.array_equal(table.session[is_next], table.session[before[is_next]] + 7)
    assert set(table.think_ns[is_next].tolist()) == {60 * 10**9}
    last_turns = np.flatnonzero(np.isin(np.arange(500), before[is_next]))
    for row in last_turns.tolist():  # nothing of that session comes later
        assert not (table.session[row + 1 :] == table.session[row]).any()


def test_more_users_than_requests() -> None:
    table = generate(users_spec(Users(count=50, think_s=fixed_s(1.0)), 20, ONE_TOKEN_ANSWERS), 0)
    assert table.is_open_loop
    assert table.arrival_ns.tolist() == [10**9] * 20


def test_sessions_of_one_turn_are_an_open_loop() -> None:
    kind = replace(ONE_TOKEN_ANSWERS, sessions=Sessions(turns=counted(1)))
    spec = GeneratorSpec(arrivals=Arrivals(requests_per_s=1.0), kinds=(kind,), num_requests=20)
    table = generate(spec, 0)
    assert table.after is None
    assert table.session is not None


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "none": (lambda: Users(count=0), "0 users; expected 1"),
    "rate": (
        lambda: replace(
            users_spec(Users(count=2), 9, ONE_TOKEN_ANSWERS), arrivals=Arrivals(requests_per_s=1.0)
        ),
        "set their own rate",
    ),
    "duration": (
        lambda: replace(
            users_spec(Users(count=2), 9, ONE_TOKEN_ANSWERS), num_requests=None, duration_s=5.0
        ),
        "give num_requests, not duration_s",
    ),
    "in flight": (
        lambda: replace(users_spec(Users(count=2), 9, ONE_TOKEN_ANSWERS), max_concurrency=1),
        "does not go with users",
    ),
    "continuations": (
        lambda: users_spec(
            Users(count=2),
            9,
            replace(
                ONE_TOKEN_ANSWERS,
                continuations=Continuations(
                    probability=1.0, shared={50: 1.0}, delay_s=fixed_s(1.0)
                ),
            ),
        ),
        "continuations need arrival times",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_users(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        call()
