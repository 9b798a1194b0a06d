"""Speculation in the engine: output is unchanged, tokens are conserved, jumps equal steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policies import ROUTERS, SCHEDULERS
from sim.engine.config import EngineConfig
from sim.fleet.cluster import Fleet
from sim.request_table import RequestTable
from tests.properties.conservation import MAKERS, audited, check_run_to_the_end
from tests.properties.engines import COSTS, tables
from tests.properties.faults import check_all_is_conserved
from tests.properties.helpers import AffineCost, small_run
from tests.properties.service_runs import fleets
from tests.properties.speculating import POLICIES, SPECULATING, everything

FOLLOWED = tuple(name for name in SCHEDULERS if name != "vtc")
over_random_runs = given(
    table=tables(),
    engine=SPECULATING,
    cost=COSTS,
    scheduler=st.sampled_from(POLICIES),
    router=st.sampled_from(list(ROUTERS)),
    replicas=st.integers(1, 3),
)
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
    def run(fast_forward: bool) -> dict[str, Any]:
        config = replace(engine, fast_forward=fast_forward)
        log = small_run(
            table,
            engine=config,
            cost=cost,
            scheduler=scheduler,
            replicas=replicas,
            until_ns=until_ns,
        )
        return everything(log)

    assert run(True) == run(False)


@pytest.mark.parametrize("fast_forward", [True, False], ids=["jumping", "stepping"])
@moderately
@over_random_runs
def test_a_run_to_its_end_conserves_everything(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    scheduler: str,
    router: str,
    replicas: int,
    fast_forward: bool,
) -> None:
    """Requests, tokens, blocks and time balance; each answer token is given once."""
    make, auditors = audited(MAKERS[scheduler])
    config = replace(engine, fast_forward=fast_forward)
    log = small_run(
        table, engine=config, cost=cost, scheduler=make, router=router, replicas=replicas
    )
    check_run_to_the_end(log, auditors)


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
    check_all_is_conserved(table, fleet, until_ns)
