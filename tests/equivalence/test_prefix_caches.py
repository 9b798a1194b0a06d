"""Prefix caches by eviction policy and index, jumping and by steps."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

from policies import ROUTERS
from sim.request_table import RequestTable
from tests.equivalence.runs import check_audited_jumps
from tests.properties.caches import CACHES, RADIX_ENGINES
from tests.properties.conservation import MAKERS
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, small_pool
from tests.properties.tables import tables


@pytest.mark.parametrize("name", CACHES)
@settings(deadline=None, max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    table=tables(),
    data=st.data(),
    cost=COSTS,
    scheduler=st.sampled_from(list(MAKERS)),
    router=st.sampled_from(list(ROUTERS)),
    replicas=st.integers(1, 2),
)
def test_every_policy_conserves_blocks_and_jumps_as_it_steps(
    name: str,
    table: RequestTable,
    data: st.DataObject,
    cost: AffineCost,
    scheduler: str,
    router: str,
    replicas: int,
) -> None:
    cache = CACHES[name]
    engine = data.draw(RADIX_ENGINES if cache.prefix_index == "radix" else ENGINES)
    make = MAKERS[scheduler]
    options: dict[str, Any] = {"router": router, "replicas": replicas, "cache": cache}
    pool = small_pool(engine, cost=cost, scheduler=make, **options)
    check_audited_jumps(table, pool, follows_the_clock=scheduler == "capricious")
