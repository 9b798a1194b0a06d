"""Jumped runs equal stepped runs to the nanosecond, for every policy and memory pressure."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from policies import ROUTERS, SCHEDULERS
from scenarios.build.plugins import scheduler_factory
from sim.engine.config import EngineConfig
from sim.request_table import RequestTable, request_table
from tests.equivalence.runs import check_jumps
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, small_pool, small_run
from tests.properties.tables import tables


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(deadline=None, max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    table=tables(),
    engine=ENGINES,
    cost=COSTS,
    replicas=st.integers(1, 3),
    until_ns=st.sampled_from([None, None, 300_000_000]),
    router=st.sampled_from(list(ROUTERS)),
)
def test_jumped_equals_stepped(
    scheduler: str,
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    replicas: int,
    router: str,
    until_ns: int | None,
) -> None:
    pool = small_pool(engine, cost=cost, scheduler=scheduler, router=router, replicas=replicas)
    check_jumps(table, pool, until_ns=until_ns)


@settings(deadline=None, max_examples=60, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(table=tables(), engine=ENGINES, cost=COSTS, interval=st.integers(2, 30))
def test_jumped_equals_stepped_where_requests_are_looked_for_now_and_then(
    table: RequestTable, engine: EngineConfig, cost: AffineCost, interval: int
) -> None:
    policy: dict[str, str | int | float | bool | None] = {
        "name": "sglang",
        "scheduler_recv_interval": interval,
    }
    check_jumps(
        table, small_pool(engine, cost=cost, scheduler=scheduler_factory(policy, SCHEDULERS))
    )


def test_a_run_ends_when_its_last_request_does() -> None:
    """A jump that was cut leaves an alarm behind; it must not make the run longer."""
    cost = AffineCost(base_s=1e-3, launch_ns=6_000_000, launch_spread=1.9)
    engine = EngineConfig(max_model_len=200, replica_blocks=100, async_scheduling=False)
    ends = []
    for index in range(1, 8):  # prompts whose launches are drawn from fast to slow
        arrivals = np.array([0.0] + [0.05] * index)
        prompts, outputs = np.full(index + 1, 8), np.array([40] + [1] * index)
        log = small_run(request_table(arrivals, prompts, outputs), engine=engine, cost=cost)
        assert log.end_ns == max(log.requests.finished_ns)
        ends.append(log.end_ns)
        seed = replace(engine, seed=index)
        log = small_run(request_table(arrivals, prompts, outputs), engine=seed, cost=cost)
        assert log.end_ns == max(log.requests.finished_ns)
        ends.append(log.end_ns)
    assert min(ends) < 40 * 6_000_000 < max(ends)  # some were faster than the jump they cut
