"""LoRA adapters, jumping and by steps, under every scheduler."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sim.engine.adapters import BASE_MODEL, COLUMN, AdapterConfig, Adapters
from sim.engine.config import EngineConfig
from sim.engine.step import Plan
from sim.engine.view import EngineView
from sim.errors import PolicyError
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import Fleet
from sim.request_table import RequestTable
from tests.equivalence.runs import check_audited_jumps, check_jumps
from tests.properties.conservation import MAKERS
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, HARD, small_pool
from tests.properties.fleet_checks import check_fleet_run
from tests.properties.service_runs import MS, fleets
from tests.properties.speculating import SPECULATING
from tests.properties.tables import table_of, tables

THOROUGH = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
CONFIGS = st.builds(
    lambda num_adapters, max_loras, more, copy_ns, read_ns: AdapterConfig(
        num_adapters=num_adapters,
        max_loras=max_loras,
        max_cpu_loras=max_loras + more,
        copy_ns=copy_ns,
        read_ns=read_ns,
    ),
    num_adapters=st.integers(1, 6),
    max_loras=st.integers(1, 4),
    more=st.integers(0, 3),
    copy_ns=st.sampled_from([0, 3 * MS]),
    read_ns=st.sampled_from([0, 50 * MS]),
)


def with_adapters(table: RequestTable, config: AdapterConfig, seed: int) -> RequestTable:
    """Return the table with an adapter, or none, drawn for each request."""
    draws = np.random.default_rng(seed).integers(BASE_MODEL, config.num_adapters, len(table))
    return replace(table, extras={COLUMN: draws})


def feature(config: AdapterConfig, table: RequestTable) -> Adapters:
    return Adapters(config, table.extras[COLUMN])


def check_slots(config: AdapterConfig, log: RunLog) -> None:
    """No step has more adapters than there are slots, or more than it has sequences."""
    for steps in log.steps:
        decodes, prefills = steps.column("decode_adapters"), steps.column("prefill_adapters")
        assert (decodes + prefills <= config.max_loras).all()
        assert (decodes <= steps.column("decode_seqs")).all()
        assert (prefills <= steps.column("prefill_seqs")).all()
        assert (steps.column("prefill_adapter_tokens") <= steps.column("prefill_tokens")).all()


@settings(THOROUGH, max_examples=120)
@given(
    table=tables(),
    engine=ENGINES | SPECULATING,
    cost=COSTS,
    config=CONFIGS,
    seed=st.integers(0, 9),
    scheduler=st.sampled_from(list(MAKERS)),
    replicas=st.integers(1, 2),
)
def test_adapters_conserve_everything_and_jump_as_they_step(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    config: AdapterConfig,
    seed: int,
    scheduler: str,
    replicas: int,
) -> None:
    table = with_adapters(table, config, seed)
    pool = small_pool(engine, cost=cost, scheduler=MAKERS[scheduler], replicas=replicas)
    pool = replace(pool, make_features=(partial(feature, config),))
    check_audited_jumps(
        table,
        pool,
        follows_the_clock=scheduler == "capricious",
        checks=[partial(check_slots, config)],
    )


@settings(THOROUGH, max_examples=60)
@given(
    table=tables(),
    fleet=fleets(ENGINES),
    config=CONFIGS,
    seed=st.integers(0, 9),
    until_ns=st.sampled_from([None, None, 300 * MS]),
)
def test_whatever_fails_adapters_balance_and_jumps_change_nothing(
    table: RequestTable, fleet: Fleet, config: AdapterConfig, seed: int, until_ns: int | None
) -> None:
    if any(pool.role != "mixed" for pool in fleet.pools):
        return
    features = (partial(feature, config),)
    pools = tuple(replace(pool, make_features=features) for pool in fleet.pools)
    fleet = replace(fleet, pools=pools)
    log = check_jumps(with_adapters(table, config, seed), fleet, until_ns=until_ns)
    check_slots(config, log)
    check_fleet_run(log, to_its_end=until_ns is None)


def test_a_scheduler_that_stops_is_named_though_requests_wait_for_a_slot() -> None:
    """Unlike KV on its way, a request that waits for a slot never wakes its engine."""

    class Stopping:
        def __call__(self, view: EngineView) -> Plan:
            batch = view.new_batch()
            if not view.running:
                batch.add_running()
                batch.admit_waiting()
            return batch.plan()

    config = AdapterConfig(num_adapters=2, max_loras=1, max_cpu_loras=2, copy_ns=0, read_ns=0)
    table = replace(table_of((0, 10, 5), (0, 10, 5)), extras={COLUMN: np.array([0, 1])})
    pool = small_pool(HARD, scheduler=Stopping)
    with pytest.raises(PolicyError, match="1 requests run, 1 wait"):
        run_cluster(table, replace(pool, make_features=(partial(feature, config),)))
