"""Closed loops by session: a turn is sent one think time after the previous turn has left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.books.saturation import saturation
from sim.engine.config import EngineConfig
from sim.errors import TraceError
from sim.recorder import UNSET
from sim.request import Status
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run
from tests.properties.tables import chains_of, sessions

FLAT = AffineCost(base_s=1e-3, per_token_s=0.0, per_context_s=0.0)
SYNC = EngineConfig(async_scheduling=False)


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
