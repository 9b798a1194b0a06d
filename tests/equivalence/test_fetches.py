"""Prefixes that engines fetch from each other, jumping and by steps, whatever fails."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import Phase, given, settings

from policies import ROUTERS
from scenarios.build.plugins import load_attribute
from sim.request_table import RequestTable
from tests.equivalence.runs import check_jumps
from tests.properties.engines import ENGINES
from tests.properties.fleet_checks import check_fleet_run
from tests.properties.routing import Scripted, used_blocks
from tests.properties.service_runs import fleets
from tests.properties.tables import tables


@settings(deadline=None, max_examples=120, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data(), table=tables(), until_ns=st.sampled_from([None, None, 300_000_000]))
def test_fetches_lose_nothing_whatever_fails(
    data: st.DataObject, table: RequestTable, until_ns: int | None
) -> None:
    """Crashes, cut links, clients that give up: books, blocks and bytes balance."""
    drawn = data.draw(fleets(ENGINES).filter(lambda fleet: fleet.transfer is not None))
    router = data.draw(st.sampled_from([Scripted, load_attribute(ROUTERS["conductor"])]))
    prefill = replace(drawn.pools[0], make_router=router, replicas=3)
    fleet = replace(drawn, pools=(prefill, *drawn.pools[1:]))
    Scripted.contexts.clear()
    log = check_jumps(table, fleet, until_ns=until_ns)
    if until_ns is None:
        for context in Scripted.contexts:
            assert used_blocks(context) == [0, 0, 0]
    check_fleet_run(log, to_its_end=until_ns is None)
