"""Admission, impatient clients, faults and scaling, jumping and by steps."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import Phase, given, settings

from sim.fleet.cluster import Fleet
from sim.request_table import RequestTable
from tests.equivalence.runs import check_jumps
from tests.properties.engines import ENGINES, tables
from tests.properties.fleet_checks import check_fleet_run
from tests.properties.service_runs import fleets


@settings(deadline=None, max_examples=150, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(table=tables(), fleet=fleets(ENGINES), until_ns=st.sampled_from([None, None, 300_000_000]))
def test_jumped_equals_stepped_and_all_is_conserved(
    table: RequestTable, fleet: Fleet, until_ns: int | None
) -> None:
    log = check_jumps(table, fleet, until_ns=until_ns)
    check_fleet_run(log, to_its_end=until_ns is None)
