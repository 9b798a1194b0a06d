"""Parts of the validation in isolation: the driver, the halves, the stalls, the rules."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from calibrate.fits.engine_log import RequestRow, StepRows
from calibrate.fits.engine_rows import is_held_out, point_parameters
from policies.fcfs import fcfs
from reports.terminal import print_report
from reports.validation.report import validation_report
from scenarios.build.plugins import load_attribute
from scenarios.validation.conversations import conversation_chains, system_tokens, turns_after
from scenarios.validation.protocol import PlannedStep, predict_ms, run_steps
from scenarios.validation.runs import settled_s
from sim.engine.config import EngineConfig
from sim.errors import TraceError
from sim.fleet.config import PoolConfig
from sim.shape import StepShape
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run
from tests.properties.tables import table_of

COST = AffineCost(
    launch_delay_ns=300_000, launch_ns=6_000_000, tail_ns=100_000, host_ns=50_000, host_per_seq_ns=7
)


def small_pool(engine: EngineConfig, cost: AffineCost = COST) -> PoolConfig:
    router = load_attribute("policies.routers.round_robin:RoundRobin")
    return PoolConfig(engine=engine, cost=cost, make_scheduler=lambda: fcfs, make_router=router)


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("launch_ns", [0, 6_000_000])
def test_the_driver_keeps_the_engines_time(async_scheduling: bool, launch_ns: int) -> None:
    cost = replace(COST, launch_ns=launch_ns)
    engine = EngineConfig(async_scheduling=async_scheduling)
    log = small_run(table_of((0.0, 100, 30)), engine=engine, cost=cost)
    steps = [PlannedStep(StepShape(0, 0, 1, 100, 0, 5050, 1), 1)]
    steps += [PlannedStep(StepShape(1, 100 + i, logits=1), 1) for i in range(29)]
    times = run_steps(small_pool(engine, cost), steps)
    read_ns = [time.read_ns + cost.update_ns(1) for time in times]
    assert read_ns == log.steps[0].step_visible_ns().tolist()


def test_a_decode_point_is_the_slower_clock_and_a_prefill_point_has_the_launch() -> None:
    engine = EngineConfig()
    fast_host = AffineCost(base_s=5e-3, per_token_s=0.0, per_context_s=0.0)
    slow_host = replace(fast_host, launch_ns=6_000_000)
    assert predict_ms(small_pool(engine, fast_host), "decode", {"B": 4, "L": 100}) == 5
    assert predict_ms(small_pool(engine, slow_host), "decode", {"B": 4, "L": 100}) == 6
    assert predict_ms(small_pool(engine, slow_host), "prefill", {"P": 100}) == 6
    assert predict_ms(small_pool(engine, fast_host), "mixed", {"P": 100, "D": 4, "L": 100}) == 5


def test_long_prompts_are_cut_to_the_token_budget() -> None:
    pool = small_pool(
        EngineConfig(step_token_limit=64, running_seq_limit=8), AffineCost(1e-3, 0.0, 0.0)
    )
    assert predict_ms(pool, "prefill", {"P": 200}) == 4
    assert predict_ms(pool, "prefill", {"P": 200, "chunk": 3}) == 1
    assert predict_ms(pool, "multiprefill", {"N": 3, "P": 50}) == 3
    assert predict_ms(pool, "mixed", {"P": 100, "D": 4, "L": 30}) == 2


def test_halves_are_stable_and_near_equal() -> None:
    points = [{"kind": "decode", "B": b, "L": c} for b in range(1, 33) for c in range(1, 33)]
    held_out = [is_held_out("m1", point) for point in points]
    assert 0.45 < np.mean(held_out) < 0.55
    measured: dict[str, Any] = {"L": 128, "ms_median": 5.1, "n": 20, "B": 4, "kind": "decode"}
    assert is_held_out("m1", measured) == is_held_out("m1", {"kind": "decode", "B": 4, "L": 128})
    assert point_parameters(measured) == {"B": 4, "L": 128}
    told = [is_held_out("m1", {"kind": "prefill", "P": 2**i}) for i in range(7, 14)]
    assert told == [True, True, False, True, False, True, True]
    assert [is_held_out("m2", {"kind": "prefill", "P": 2**i}) for i in range(7, 14)] != told


def steps_of(durations_s: list[float], tokens: int = 10) -> StepRows:
    end_s = np.cumsum(durations_s)
    whole = {name: np.full(len(end_s), tokens) for name in StepRows.__slots__ if name[:2] != "t_"}
    times = dict.fromkeys(("t_sched_end", "t_out", "t_upd_end"), end_s)
    return StepRows(t_sched=end_s - durations_s, **times, **whole)


def test_stalls_are_early_long_and_alone() -> None:
    assert settled_s(steps_of([0.1, 1.9] + [0.1] * 100), 8192) == pytest.approx(1.5 * 2.0)
    assert settled_s(steps_of([0.1, 0.4] + [0.1] * 100), 8192) == 0  # short
    assert settled_s(steps_of([0.1] * 120 + [1.9]), 8192) == 0  # late
    assert settled_s(steps_of([0.1, 1.9] + [1.0] * 20), 8192) == 0  # not unlike those after
    assert settled_s(steps_of([0.1, 1.9] + [0.1] * 100, 4096), 8192) == 0  # a full batch
    assert settled_s(None, 8192) == 0


def turn(group: str, prompt: int, cached: int, arrival: float, finish: float) -> RequestRow:
    return RequestRow(
        run="r",
        arrival=arrival,
        added=arrival,
        prompt=prompt,
        planned_out=10,
        out=10,
        cached=cached,
        group=group,
        preempt=0,
        first=finish,
        finish=finish,
    )


def test_conversations_share_a_system_prompt_and_wait_for_their_turn() -> None:
    rows = [
        turn("s0/a/t0", 100, 0, 0.0, 1.0),
        turn("s0/b/t0", 90, 64, 0.5, 1.5),
        turn("s0/a/t1", 150, 96, 3.0, 4.0),
    ]
    assert system_tokens(rows, 16) == 64
    chains = conversation_chains(rows, 16)
    of = [chains.ids[chains.offsets[i] : chains.offsets[i + 1]].tolist() for i in range(3)]
    assert of[0][:4] == of[1][:4]
    assert not set(of[0][4:]) & set(of[1][4:])
    assert of[2][: len(of[0])] == of[0]
    after, think_ns = turns_after(rows)
    assert after.tolist() == [-1, -1, 0]
    assert think_ns.tolist() == [0, 0, 2_000_000_000]
    with pytest.raises(TraceError, match="system prompt / conversation / turn"):
        turns_after([turn("first", 1, 0, 0.0, 1.0)])


def test_the_text_is_ascii_where_it_must_be() -> None:
    content: dict[str, Any] = {
        "figures": [],
        "steps": [],
        "step_points": [],
        "conformance": [],
        "conditions": {},
        "warnings": ["m1: a GPU called µ\N{EN DASH}1 [bold]"],
    }
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_report(validation_report(content), Console(file=stream, width=80))
    stream.seek(0)
    assert "! m1: a GPU called u-1 [bold]" in stream.read()
