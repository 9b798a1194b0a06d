"""Beam search under pressure, jumping and by steps."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from sim.request_table import RequestTable
from tests.equivalence.runs import check_audited_jumps
from tests.properties.conservation import MAKERS
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import HARD, small_pool
from tests.properties.tables import searched, tables


@settings(deadline=None, max_examples=60)
@given(
    table=tables(),
    data=st.data(),
    cost=COSTS,
    scheduler=st.sampled_from(list(MAKERS)),
    blocks=st.integers(30, 120),
    asynchronous=st.booleans(),
    clips=st.sampled_from([(), (16,), (7, 64)]),
)
def test_beams_under_pressure(
    table: RequestTable,
    data: st.DataObject,
    cost: AffineCost,
    scheduler: str,
    blocks: int,
    asynchronous: bool,
    clips: tuple[int, ...],
) -> None:
    """Jumped equals stepped, and requests, tokens, blocks and time balance, in tiny pools."""
    n = len(table)
    widths = data.draw(st.lists(st.sampled_from([1, 2, 3, 8]), min_size=n, max_size=n))
    widths = [w if o else 1 for w, o in zip(widths, table.output_tokens.tolist(), strict=True)]
    table = searched(replace(table, samples=None, beams=None), widths)
    engine = replace(HARD, replica_blocks=blocks, async_scheduling=asynchronous, clip_tokens=clips)
    pool = small_pool(engine, cost=cost, scheduler=MAKERS[scheduler])
    check_audited_jumps(table, pool)
