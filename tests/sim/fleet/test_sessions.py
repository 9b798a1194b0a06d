"""Closed loops by session: a turn is sent one think time after the previous turn has left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from policies import ROUTERS, SCHEDULERS
from sim.books.saturation import saturation
from sim.engine.config import EngineConfig
from sim.errors import TraceError
from sim.recorder import UNSET
from sim.request import Status
from sim.request_table import RequestTable, request_table
from tests.properties.engines import COSTS, ENGINES, outcome
from tests.properties.helpers import AffineCost, chains_of, small_run

FLAT = AffineCost(base_s=1e-3, per_token_s=0.0, per_context_s=0.0)
SYNC = EngineConfig(async_scheduling=False)


def sessions(
    *rows: tuple[float, int, int, int, int], chains: Any = None, priority: Any = None
) -> RequestTable:
    """A table from (arrival_s, prompt_tokens, output_tokens, after, think_ns) rows."""
    arrival_s, prompt, output, after, think_ns = np.array(rows, float).T
    return request_table(
        arrival_s,
        prompt.astype(np.int64),
        output.astype(np.int64),
        after=after.astype(np.int64),
        think_ns=think_ns.astype(np.int64),
        chains=chains,
        priority=priority,
    )


@st.composite
def session_tables(draw: st.DrawFn) -> RequestTable:
    """Trees of turns: several may wait for one, earliest times bind or not, some are too long."""
    n = draw(st.integers(2, 20))
    after = [-1, *(draw(st.integers(-1, i - 1)) for i in range(1, n))]
    gaps_ms = draw(st.lists(st.sampled_from([0, 0, 2, 30]), min_size=n, max_size=n))
    arrival_s = np.cumsum(gaps_ms) * 1e-3
    arrival_s[np.array(after) >= 0] *= draw(st.sampled_from([0.0, 1.0]))
    prompts = draw(st.lists(st.sampled_from([1, 7, 40, 150, 500]), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    think_ns = draw(st.lists(st.sampled_from([0, 1, 3_000_000, 10**8]), min_size=n, max_size=n))
    chains = None
    if draw(st.booleans()):
        covered = [p + o for p, o in zip(prompts, outputs, strict=True)]
        ids = [[1000 * (i % 2) + j for j in range(-(-c // 8))] for i, c in enumerate(covered)]
        chains = chains_of(ids, covered, 8, covers_output=True)
    return sessions(
        *zip(arrival_s, prompts, outputs, after, think_ns, strict=True),
        chains=chains,
        priority=np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))),
    )


def test_two_turns_by_hand() -> None:
    """Steps of 1 ms and a host of no time: 3 steps, 5 ms and a nanosecond of thought, 2 steps."""
    table = sessions((0.002, 10, 3, -1, 0), (0.0, 10, 2, 0, 5_000_001))
    log = small_run(table, engine=SYNC, cost=FLAT).requests
    assert list(log.arrival_ns) == [2_000_000, 10_000_001]
    assert list(log.first_token_ns) == [3_000_000, 11_000_001]
    assert list(log.finished_ns) == [5_000_000, 12_000_001]


def test_an_arrival_time_is_the_earliest_of_a_later_turn() -> None:
    table = sessions((0.0, 10, 1, -1, 0), (0.5, 10, 1, 0, 1000))
    log = small_run(table, engine=SYNC, cost=FLAT).requests
    assert list(log.arrival_ns) == [0, 500_000_000]


def test_no_thought_takes_a_nanosecond() -> None:
    table = sessions((0.0, 10, 1, -1, 0), (0.0, 10, 1, 0, 0), (0.0, 10, 1, 0, 0))
    log = small_run(table, engine=SYNC, cost=FLAT).requests
    assert list(log.arrival_ns) == [0, 1_000_001, 1_000_001]


def test_a_rejected_turn_lets_the_next_one_go() -> None:
    too_long = replace(SYNC, max_model_len=100)
    table = sessions((0.001, 500, 1, -1, 0), (0.0, 10, 1, 0, 7))
    log = small_run(table, engine=too_long, cost=FLAT).requests
    assert list(log.status) == [Status.REJECTED, Status.FINISHED]
    assert list(log.arrival_ns) == [1_000_000, 1_000_007]


def test_turns_beyond_the_horizon_are_not_sent() -> None:
    table = sessions((0.0, 10, 1, -1, 0), (0.0, 10, 1, 0, 10**9))
    log = small_run(table, engine=SYNC, cost=FLAT, until_ns=10**8).requests
    assert list(log.status) == [Status.FINISHED, Status.UNFINISHED]
    assert log.arrival_ns[1] == UNSET


def test_a_later_turn_hits_the_answer_before_it() -> None:
    chains = chains_of([[1, 2, 3], [1, 2, 3, 4]], [48, 64], 16, covers_output=True)
    table = sessions((0.0, 20, 28, -1, 0), (0.0, 60, 4, 0, 1000), chains=chains)
    log = small_run(table, engine=SYNC, cost=FLAT).requests
    assert list(log.cached_tokens) == [0, 32]  # its last token's KV was never computed


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(deadline=None, max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    table=session_tables(),
    engine=ENGINES,
    cost=COSTS,
    replicas=st.integers(1, 3),
    router=st.sampled_from(list(ROUTERS)),
)
def test_jumped_equals_stepped_and_nothing_is_lost(
    scheduler: str,
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    replicas: int,
    router: str,
) -> None:
    logs = [
        small_run(
            table,
            engine=replace(engine, fast_forward=fast_forward),
            cost=cost,
            scheduler=scheduler,
            router=router,
            replicas=replicas,
        )
        for fast_forward in (True, False, True)
    ]
    assert outcome(logs[0]) == outcome(logs[1]) == outcome(logs[2])
    log = logs[0].requests
    assert set(log.status) <= {Status.FINISHED, Status.REJECTED}
    assert table.after is not None
    assert table.think_ns is not None
    for index, before in enumerate(table.after.tolist()):
        earliest_ns = int(table.arrival_ns[index])
        if before >= 0:
            waited_ns = max(1, int(table.think_ns[index]))
            earliest_ns = max(earliest_ns, log.finished_ns[before] + waited_ns)
        assert log.arrival_ns[index] == earliest_ns


def test_a_closed_loop_offers_no_rate() -> None:
    log = small_run(sessions((0.0, 10, 3, -1, 0), (0.0, 10, 2, 0, 5)), engine=SYNC)
    limit = saturation(log)
    assert limit is not None
    assert limit.offered_per_s is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"after": None}, "come together"),
        ({"after": np.array([-1])}, "after is not as long"),
        ({"after": np.array([1, -1])}, "earlier row"),
        ({"after": np.array([-2, -1])}, "earlier row"),
        ({"think_ns": np.array([0, -1])}, "think_ns must not be negative"),
        ({"max_concurrency": 2}, "closes the loop"),
        ({"arrival_ns": np.array([0, -5])}, "in order"),
    ],
)
def test_impossible_sessions_are_refused(changes: dict[str, Any], message: str) -> None:
    table = sessions((0.0, 10, 3, -1, 0), (0.0, 10, 2, 0, 5))
    with pytest.raises(TraceError, match=message):
        replace(table, **changes)
