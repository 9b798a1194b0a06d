"""Tiers below device memory, jumping and by steps, whatever fails."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, settings

from sim.engine.config import EngineConfig
from sim.fleet.cluster import run_cluster
from sim.fleet.config import Fleet
from sim.kv.eviction import CacheConfig
from sim.kv.layout import KVLayout
from sim.request_table import RequestTable
from tests.equivalence.runs import check_audited_jumps, check_jumps
from tests.properties.conservation import MAKERS, check_books
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import small_pool
from tests.properties.fleet_checks import check_fleet_run
from tests.properties.outcome import full_outcome
from tests.properties.service_runs import MS, fleets
from tests.properties.speculating import POLICIES, SPECULATING
from tests.properties.tables import tables
from tests.properties.tiers import CACHE_CONFIGS, TIER_ENGINES, check_hits, check_tiers

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
moderately = settings(
    deadline=None,
    max_examples=50,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@settings(deadline=None, max_examples=80, phases=PHASES)
@given(
    table=tables(),
    engine=TIER_ENGINES,
    cost=COSTS,
    cache=CACHE_CONFIGS,
    scheduler=st.sampled_from(list(MAKERS)),
    replicas=st.integers(1, 3),
)
def test_a_run_over_tiers_conserves_everything_and_jumps_as_it_steps(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    cache: CacheConfig,
    scheduler: str,
    replicas: int,
) -> None:
    pool = small_pool(
        engine, cost=cost, scheduler=MAKERS[scheduler], replicas=replicas, cache=cache
    )
    checks = (check_tiers, check_hits)
    check_audited_jumps(table, pool, follows_the_clock=scheduler == "capricious", checks=checks)


@moderately
@given(
    table=tables(),
    engine=SPECULATING.map(lambda engine: replace(engine, kv_layout=KVLayout())),
    cost=COSTS,
    cache=CACHE_CONFIGS,
    scheduler=st.sampled_from(POLICIES),
)
def test_engines_that_speculate_load_as_well(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    cache: CacheConfig,
    scheduler: str,
) -> None:
    pool = small_pool(engine, cost=cost, scheduler=MAKERS[scheduler], cache=cache)
    outcomes = []
    for one in (pool, replace(pool, engine=replace(engine, fast_forward=False))):
        log = run_cluster(table, one)
        for check in (check_tiers, check_hits, check_books):
            check(log)
        outcomes.append(full_outcome(log))
    if scheduler != "capricious":  # its die falls by the clock
        assert outcomes[0] == outcomes[1]


@settings(deadline=None, max_examples=80, phases=PHASES)
@given(
    table=tables(),
    fleet=fleets(TIER_ENGINES),
    data=st.data(),
    until_ns=st.sampled_from([None, None, 300 * MS]),
)
def test_whatever_fails_tiers_balance_and_jumps_change_nothing(
    table: RequestTable, fleet: Fleet, data: st.DataObject, until_ns: int | None
) -> None:
    pools = tuple(replace(pool, cache=data.draw(CACHE_CONFIGS)) for pool in fleet.pools)
    log = check_jumps(table, replace(fleet, pools=pools), until_ns=until_ns)
    check_tiers(log)
    check_fleet_run(log, to_its_end=until_ns is None)
