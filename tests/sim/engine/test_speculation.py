"""Speculation in the engine: each answer token is given once, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policies import ROUTERS
from sim.engine.config import EngineConfig
from sim.request_table import RequestTable
from tests.properties.conservation import MAKERS, audited, check_run_to_the_end
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import small_run
from tests.properties.speculating import POLICIES, SPECULATING
from tests.properties.tables import tables

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
