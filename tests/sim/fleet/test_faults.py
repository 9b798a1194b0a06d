"""Failures, time-outs and rejections: every request is accounted for, and jumps do not matter."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import Phase, given, settings

from sim.fleet.cluster import Fleet
from sim.request_table import RequestTable
from tests.properties.engines import ENGINES, tables
from tests.properties.faults import check_all_is_conserved
from tests.properties.service_runs import fleets


@settings(deadline=None, max_examples=150, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(table=tables(), fleet=fleets(ENGINES), until_ns=st.sampled_from([None, None, 300_000_000]))
def test_jumped_equals_stepped_and_all_is_conserved(
    table: RequestTable, fleet: Fleet, until_ns: int | None
) -> None:
    check_all_is_conserved(table, fleet, until_ns)
