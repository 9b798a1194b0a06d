"""Turns that follow each other, jumping and by steps."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

from policies import ROUTERS, SCHEDULERS
from sim.engine.config import EngineConfig
from sim.fleet.cluster import run_cluster
from sim.request import Status
from sim.request_table import RequestTable
from tests.equivalence.runs import check_jumps
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, small_pool
from tests.properties.outcome import full_outcome
from tests.properties.tables import session_tables


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
    pool = small_pool(engine, cost=cost, scheduler=scheduler, router=router, replicas=replicas)
    jumped = check_jumps(table, pool)
    assert full_outcome(run_cluster(table, pool)) == full_outcome(jumped)
    log = jumped.requests
    assert set(log.status) <= {Status.FINISHED, Status.REJECTED}
    assert table.after is not None
    assert table.think_ns is not None
    for index, before in enumerate(table.after.tolist()):
        earliest_ns = int(table.arrival_ns[index])
        if before >= 0:
            waited_ns = max(1, int(table.think_ns[index]))
            earliest_ns = max(earliest_ns, log.finished_ns[before] + waited_ns)
        assert log.arrival_ns[index] == earliest_ns
