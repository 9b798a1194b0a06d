"""Admission, impatient clients, faults and scaling, jumping and by steps."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from sim.engine.config import EngineConfig
from sim.fleet.config import Fleet
from sim.fleet.handover import TransferConfig
from sim.fleet.service import Fault, FaultConfig, ServiceConfig
from sim.request import Status
from sim.request_table import RequestTable, request_table
from tests.equivalence.runs import check_jumps
from tests.properties.costs import AffineCost
from tests.properties.engines import ENGINES, small_pool
from tests.properties.fleet_checks import check_fleet_run
from tests.properties.service_runs import MS, fleets
from tests.properties.tables import tables


@settings(deadline=None, max_examples=150, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(table=tables(), fleet=fleets(ENGINES), until_ns=st.sampled_from([None, None, 300_000_000]))
def test_jumped_equals_stepped_and_all_is_conserved(
    table: RequestTable, fleet: Fleet, until_ns: int | None
) -> None:
    log = check_jumps(table, fleet, until_ns=until_ns)
    check_fleet_run(log, to_its_end=until_ns is None)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_jump_after_a_crash_waits_for_what_the_lost_process_had_launched(is_async: bool) -> None:
    """Decode steps take 100 ms. The engine crashes 50 ms into one and serves again at once."""
    engine = EngineConfig(
        step_token_limit=64,
        running_seq_limit=4,
        max_model_len=64,
        block_size=4,
        replica_blocks=33,
        async_scheduling=is_async,
    )
    fast, slow = (AffineCost(seconds, per_token_s=0, per_context_s=0) for seconds in (0.01, 0.1))
    nic_bytes_per_s = 10**9
    crash = Fault(at_ns=160 * MS, kind="engine_crash", replica=1)
    fleet = Fleet(
        pools=(
            small_pool(engine, role="prefill", cost=fast),
            small_pool(engine, role="decode", cost=slow),
        ),
        transfer=TransferConfig(
            bytes_per_token=0,
            prefill_nic_bytes_per_s=nic_bytes_per_s,
            decode_nic_bytes_per_s=nic_bytes_per_s,
        ),
        service=ServiceConfig(faults=FaultConfig(schedule=(crash,), detection_ns=0)),
    )
    table = request_table(np.array([0.0, 0.16]), np.array([8, 8]), np.array([9, 9]))
    log = check_jumps(table, fleet)
    assert list(log.requests.status) == [Status.FAILED, Status.FINISHED]
    launched_ns = 310 * MS if is_async else 210 * MS
    assert log.requests.finished_ns[1] == launched_ns + 8 * 100 * MS
