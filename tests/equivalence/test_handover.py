"""Prefill on one engine and decode on another, jumping and by steps."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import Phase, given, settings

from policies import ROUTERS, SCHEDULERS
from sim.books.token_times import token_times_ns
from sim.engine.config import EngineConfig
from sim.fleet.config import Fleet, Role
from sim.fleet.handover import TransferConfig
from sim.request import Status
from sim.request_table import RequestTable
from tests.equivalence.runs import check_jumps
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES
from tests.properties.fleet_checks import check_fleet_run
from tests.properties.handover import GB, pool
from tests.properties.tables import tables
from tests.properties.token_gaps import decode_gaps

TRANSFERS = st.builds(
    TransferConfig,
    bytes_per_token=st.sampled_from([0, 1_000, 300_000]),
    fixed_bytes=st.sampled_from([0, 1_000_000]),
    layers=st.sampled_from([1, 8]),
    latency_ns=st.sampled_from([0, 20_000]),
    mode=st.sampled_from(["pull", "push"]),
    prefill_nic_bytes_per_s=st.sampled_from([GB, 20 * GB]),
    decode_nic_bytes_per_s=st.sampled_from([GB, 7 * GB]),
    core_bytes_per_s=st.sampled_from([None, 2 * GB]),
)


@settings(deadline=None, max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    table=tables(),
    prefill_engine=ENGINES,
    decode_engine=ENGINES,
    cost=COSTS,
    transfer=TRANSFERS,
    replicas=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    schedulers=st.tuples(st.sampled_from(list(SCHEDULERS)), st.sampled_from(list(SCHEDULERS))),
    router=st.sampled_from(list(ROUTERS)),
    until_ns=st.sampled_from([None, None, 300_000_000]),
)
def test_jumped_equals_stepped_and_all_is_conserved(
    table: RequestTable,
    prefill_engine: EngineConfig,
    decode_engine: EngineConfig,
    cost: AffineCost,
    transfer: TransferConfig,
    replicas: tuple[int, int],
    schedulers: tuple[str, str],
    router: str,
    until_ns: int | None,
) -> None:
    roles: tuple[Role, Role] = ("prefill", "decode")
    sides = zip(roles, (prefill_engine, decode_engine), replicas, schedulers, strict=True)
    pools = tuple(
        pool(role, engine, cost=cost, replicas=number, scheduler=scheduler, router=router)
        for role, engine, number, scheduler in sides
    )
    log = check_jumps(table, Fleet(pools=pools, transfer=transfer), until_ns=until_ns)
    check_fleet_run(log, to_its_end=until_ns is None)
    if until_ns is None:
        assert set(log.requests.status) <= {Status.FINISHED, Status.REJECTED}
    finished = np.frombuffer(log.requests.status, np.int8) == Status.FINISHED
    assert log.requests.decode is not None
    waited = {*log.requests.last_token_row, *log.requests.decode.last_token_row}
    for request in np.flatnonzero(finished & (table.output_tokens > 0)).tolist():
        last_ns = int(token_times_ns(log, request)[-1])
        if request in waited:  # preempted, it came back in a batch that leaves together
            assert last_ns <= log.requests.finished_ns[request]
        else:
            assert last_ns == log.requests.finished_ns[request]
    gaps = np.maximum(table.output_tokens[finished] - 1, 0).sum()
    assert decode_gaps(log)[1].sum() == gaps
    assert ("core" in log.link_bytes) == (transfer.core_bytes_per_s is not None)
