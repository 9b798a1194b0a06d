"""Engines that speculate, jumping and by steps, whatever fails."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policies import SCHEDULERS
from sim.engine.config import EngineConfig
from sim.fleet.config import Fleet
from sim.request_table import RequestTable
from tests.equivalence.runs import check_jumps
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import small_pool
from tests.properties.fleet_checks import check_fleet_run
from tests.properties.service_runs import fleets
from tests.properties.speculating import SPECULATING
from tests.properties.tables import tables

FOLLOWED = tuple(name for name in SCHEDULERS if name != "vtc")
moderately = settings(
    deadline=None,
    max_examples=70,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("scheduler", FOLLOWED)
@settings(moderately, max_examples=30)
@given(
    table=tables(),
    engine=SPECULATING,
    cost=COSTS,
    replicas=st.integers(1, 2),
    until_ns=st.sampled_from([None, None, 300_000_000]),
)
def test_jumped_equals_stepped(
    scheduler: str,
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    replicas: int,
    until_ns: int | None,
) -> None:
    pool = small_pool(engine, cost=cost, scheduler=scheduler, replicas=replicas)
    check_jumps(table, pool, until_ns=until_ns)


@moderately
@given(
    table=tables(),
    fleet=fleets(SPECULATING, FOLLOWED),
    until_ns=st.sampled_from([None, None, 300_000_000]),
)
def test_all_is_conserved_whatever_fails(
    table: RequestTable, fleet: Fleet, until_ns: int | None
) -> None:
    """Crashes, clients that give up, prompts computed elsewhere."""
    log = check_jumps(table, fleet, until_ns=until_ns)
    check_fleet_run(log, to_its_end=until_ns is None)
