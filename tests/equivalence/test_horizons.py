"""Runs that a horizon cuts, jumping and by steps."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sim.engine.config import EngineConfig
from sim.request_table import RequestTable
from tests.properties.conservation import check_books, check_token_times
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, small_run
from tests.properties.tables import table_of, tables

moderately = settings(
    deadline=None,
    max_examples=120,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


def check_cut_log(
    table: RequestTable, engine: EngineConfig, cost: AffineCost, share: float
) -> None:
    """Cut by a horizon, a jumped run has left exactly what a stepped one has, and it balances."""
    until_ns = 1 + int(share * small_run(table, engine=engine, cost=cost).end_ns)
    jumped, stepped = (
        small_run(table, engine=replace(engine, fast_forward=jumps), cost=cost, until_ns=until_ns)
        for jumps in (True, False)
    )
    assert jumped.requests.first_token_ns == stepped.requests.first_token_ns
    for mine, theirs in zip(jumped.steps, stepped.steps, strict=True):
        assert mine.step_visible_ns().tolist() == theirs.step_visible_ns().tolist()
        for name in ("steps", "gpu_ns"):
            assert int(mine.column(name).sum()) == int(theirs.column(name).sum())
    for log in (stepped, jumped):
        check_books(log)
        check_token_times(log)


@pytest.mark.parametrize(
    ("rows", "launch_ns", "asynchronous", "share"),
    [
        pytest.param([(0, 10, 1000)], 0, False, 0.2, id="steps of a jump"),
        pytest.param([(0, 10, 1000)], 0, True, 0.2, id="steps of a jump, two in flight"),
        pytest.param(
            [(0, 10, 100)],
            1_000_000,
            True,
            0.007,
            id="first token after the horizon",
        ),
        pytest.param([(0, 10, 1), (0, 10, 1000)], 0, True, 0.2, id="only token during a jump"),
        pytest.param([(0, 10, 2), (0, 10, 1000)], 0, True, 0.2, id="last token during a jump"),
    ],
)
def test_a_cut_jump_is_logged(
    rows: list[tuple[float, int, int]], launch_ns: int, asynchronous: bool, share: float
) -> None:
    """A horizon in the middle of a jump: the steps before it were done, those after were not."""
    engine = EngineConfig(async_scheduling=asynchronous)
    check_cut_log(table_of(*rows), engine, AffineCost(launch_ns=launch_ns), share)


@moderately
@given(table=tables(), engine=ENGINES, cost=COSTS, share=st.floats(0.001, 1.2))
def test_any_cut_run_is_logged(
    table: RequestTable, engine: EngineConfig, cost: AffineCost, share: float
) -> None:
    """The log is right wherever the horizon falls."""
    check_cut_log(table, engine, cost, share)
