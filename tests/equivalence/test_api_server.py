"""The API server, jumping and by steps, under every scheduler."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

from sim.engine.config import ApiServerConfig, EngineConfig
from sim.fleet.cluster import RunLog
from sim.request import Status
from sim.request_table import RequestTable
from tests.equivalence.runs import check_audited_jumps, check_jumps
from tests.properties.conservation import MAKERS
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, small_pool
from tests.properties.service_runs import MS
from tests.properties.speculating import SPECULATING
from tests.properties.tables import tables

THOROUGH = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SERVERS = st.builds(
    lambda request_ns, prompt_token_ns, part_ns, servers: ApiServerConfig(
        request_ns=request_ns, prompt_token_ns=prompt_token_ns, part_ns=part_ns, servers=servers
    ),
    request_ns=st.sampled_from([0, 1 * MS, 40 * MS]),
    prompt_token_ns=st.sampled_from([0.0, 2000.5]),
    part_ns=st.sampled_from([0, 20_000, 3 * MS]),
    servers=st.integers(1, 3),
)


def check_times(log: RunLog) -> None:
    """Requests leave after their first token, which comes after they reach the engine."""
    requests = log.requests
    finished = np.frombuffer(requests.status, np.int8) == Status.FINISHED
    arrival, seen, first, last = (
        np.frombuffer(column, np.int64)[finished]
        for column in (
            requests.arrival_ns,
            requests.seen_ns,
            requests.first_token_ns,
            requests.finished_ns,
        )
    )
    with_server = [requests.api_arrival_ns.get(i, 0) for i in np.flatnonzero(finished).tolist()]
    assert (arrival + with_server <= seen).all()
    has_first = first >= 0
    assert (seen[has_first] <= first[has_first]).all()
    assert (first <= last).all()


@settings(THOROUGH, max_examples=120)
@given(
    table=tables(),
    engine=ENGINES | SPECULATING,
    cost=COSTS,
    server=SERVERS,
    scheduler=st.sampled_from(list(MAKERS)),
    replicas=st.integers(1, 2),
)
def test_an_api_server_conserves_everything_and_jumps_as_it_steps(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    server: ApiServerConfig,
    scheduler: str,
    replicas: int,
) -> None:
    engine = replace(engine, api_server=server)
    pool = small_pool(engine, cost=cost, scheduler=MAKERS[scheduler], replicas=replicas)
    check_audited_jumps(
        table, pool, follows_the_clock=scheduler == "capricious", checks=[check_times]
    )


@settings(THOROUGH, max_examples=40)
@given(table=tables(), engine=ENGINES, cost=COSTS, server=SERVERS, until_ms=st.integers(1, 600))
def test_a_horizon_cuts_an_api_server_as_it_cuts_its_engine(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    server: ApiServerConfig,
    until_ms: int,
) -> None:
    pool = small_pool(replace(engine, api_server=server), cost=cost)
    check_jumps(table, pool, until_ns=until_ms * MS)
