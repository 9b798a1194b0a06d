"""The engine by hand: timelines small enough to check on paper, and every special request."""

from __future__ import annotations

import numpy as np
import pytest

from sim.books.token_times import token_times_ns
from sim.engine.config import EngineConfig
from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.errors import PolicyError, ScenarioError
from sim.fleet.cluster import RunLog
from sim.request import Status
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run
from tests.properties.tables import table_of

MS = 1_000_000
STEP = AffineCost(base_s=10e-3, per_token_s=0, per_context_s=0)  # every step takes 10 ms
SYNC = EngineConfig(async_scheduling=False)


def times_ms(log: RunLog, name: str) -> list[float]:
    """A column of the request log in ms."""
    return [ns / MS for ns in getattr(log.requests, name)]


def test_one_request_gives_a_token_a_step() -> None:
    log = small_run(table_of((0, 100, 3)), engine=EngineConfig(), cost=STEP)
    assert (token_times_ns(log, 0) / MS).tolist() == [10, 20, 30]
    assert log.steps[0].column("decode_seqs").tolist() == [0, 1]
    assert log.steps[0].column("steps").tolist() == [1, 2]


def test_async_scheduling_hides_the_host_and_sync_does_not() -> None:
    cost = AffineCost(10e-3, 0, 0, launch_delay_ns=MS, launch_ns=MS, host_ns=MS)
    asynchronous = small_run(table_of((0, 100, 4)), engine=EngineConfig(), cost=cost)
    synchronous = small_run(table_of((0, 100, 4)), engine=SYNC, cost=cost)
    # schedule 1, first kernel 1, GPU 10, update 1; then the GPU alone, or all of it every step.
    assert (token_times_ns(asynchronous, 0) / MS).tolist() == [13, 23, 33, 43]
    assert (token_times_ns(synchronous, 0) / MS).tolist() == [13, 26, 39, 52]


def test_an_arrival_is_seen_one_step_later_with_async_scheduling() -> None:
    table = table_of((0, 100, 10), (0.025, 100, 1))
    # Step 4 is planned when step 2 has been read, at 20 ms; the next plan is at 30 ms, and the
    # step it makes runs behind the one in flight.
    log = small_run(table, engine=EngineConfig(), cost=STEP)
    assert times_ms(log, "admitted_ns") == [0, 30]
    assert times_ms(log, "first_token_ns") == [10, 50]
    log = small_run(table, engine=SYNC, cost=STEP)
    assert times_ms(log, "first_token_ns") == [10, 40]


def test_an_arrival_at_a_steps_very_end_counts_before_the_next_plan() -> None:
    log = small_run(table_of((0, 100, 10), (0.020, 100, 1)), engine=SYNC, cost=STEP)
    assert times_ms(log, "admitted_ns") == [0, 20]


def test_long_prompts_are_chunked_and_decodes_come_first() -> None:
    engine = EngineConfig(async_scheduling=False, step_token_limit=64, running_seq_limit=8)
    log = small_run(table_of((0, 10, 5), (0.005, 150, 1)), engine=engine, cost=STEP)
    steps = log.steps[0].columns()
    assert steps["prefill_tokens"].tolist() == [10, 63, 63, 24, 0]
    assert steps["decode_seqs"].tolist() == [0, 1, 1, 1, 1]
    assert steps["prefill_context_tokens"].tolist() == [0, 0, 63, 126, 0]
    assert steps["logits"].tolist() == [1, 1, 1, 2, 1]


def test_simultaneous_arrivals_share_a_step_in_order() -> None:
    engine = EngineConfig(step_token_limit=100, running_seq_limit=10)
    log = small_run(table_of((0, 60, 1), (0, 60, 1), (0, 60, 1)), engine=engine, cost=STEP)
    assert times_ms(log, "first_token_ns") == [10, 20, 20]


def test_running_seq_limit_holds_the_rest_back() -> None:
    engine = EngineConfig(async_scheduling=False, running_seq_limit=2)
    log = small_run(table_of(*[(0, 5, 3)] * 4), engine=engine, cost=STEP)
    assert log.steps[0].column("running").max() == 2
    assert times_ms(log, "first_token_ns") == [10, 10, 40, 40]


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_the_newest_is_preempted_and_recomputed(async_scheduling: bool) -> None:
    # 9 usable blocks of 4: both prompts fit, both outputs do not.
    engine = EngineConfig(
        block_size=4, replica_blocks=10, async_scheduling=async_scheduling, max_model_len=36
    )
    log = small_run(table_of((0, 12, 16), (0.001, 12, 16)), engine=engine, cost=STEP)
    assert list(log.requests.status) == [Status.FINISHED] * 2
    assert list(log.requests.preemptions) == [0, 1]
    assert len(token_times_ns(log, 1)) == 16
    assert log.steps[0].column("prefill_tokens").sum() > 24


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "reason"),
    [(90, 20, "longer than max_model_len"), (60, 10, "longer than the KV pool")],
)
def test_a_request_that_can_never_fit_is_rejected(
    prompt_tokens: int, output_tokens: int, reason: str
) -> None:
    engine = EngineConfig(block_size=16, replica_blocks=5, max_model_len=100)
    table = table_of((0, prompt_tokens, output_tokens), (0, 10, 2))
    log = small_run(table, engine=engine, cost=STEP)
    assert list(log.requests.status) == [Status.REJECTED, Status.FINISHED]
    assert log.requests.reject_reasons == {0: reason}


def test_a_request_that_exactly_fits_is_served() -> None:
    engine = EngineConfig(block_size=16, replica_blocks=5, max_model_len=64)
    log = small_run(table_of((0, 54, 10)), engine=engine, cost=STEP)
    assert list(log.requests.status) == [Status.FINISHED]


def test_zero_output_is_a_prefill_answered_when_it_is_done() -> None:
    log = small_run(table_of((0, 50, 0)), engine=EngineConfig(), cost=STEP)
    assert times_ms(log, "finished_ns") == [10]
    assert len(token_times_ns(log, 0)) == 0


def test_one_token_in_one_token_out() -> None:
    log = small_run(table_of((0, 1, 1)), engine=EngineConfig(), cost=STEP)
    assert times_ms(log, "first_token_ns") == times_ms(log, "finished_ns") == [10]


def test_an_empty_trace_is_an_empty_run() -> None:
    log = small_run(table_of(), engine=EngineConfig(), cost=STEP)
    assert log.end_ns == 0
    assert len(log.steps[0]) == 0


def test_overload_grows_the_queue_and_loses_nobody() -> None:
    table = table_of(*[(0.001 * i, 100, 20) for i in range(200)])
    log = small_run(table, engine=EngineConfig(running_seq_limit=4), cost=STEP)
    assert list(log.requests.status) == [Status.FINISHED] * 200
    waits = np.array(times_ms(log, "admitted_ns")) - np.array(times_ms(log, "arrival_ns"))
    assert waits[-1] > waits[100] > waits[10]


def test_a_horizon_leaves_requests_unfinished() -> None:
    table = table_of((0, 10, 3), (0.01, 10, 1000), (5.0, 10, 1))
    log = small_run(table, engine=EngineConfig(), cost=STEP, until_ns=1_000 * MS)
    assert list(log.requests.status) == [Status.FINISHED, Status.UNFINISHED, Status.UNFINISHED]
    assert log.end_ns == 1_000 * MS


def test_priority_goes_first_and_the_least_important_is_preempted() -> None:
    engine = EngineConfig(async_scheduling=False, running_seq_limit=1)
    table = table_of((0, 5, 2), (0.001, 5, 2), (0.002, 5, 2))
    table.priority[:] = [0, 2, 1]
    log = small_run(table, engine=engine, cost=STEP, scheduler="priority")
    assert times_ms(log, "first_token_ns") == [10, 50, 30]

    tight = EngineConfig(block_size=4, replica_blocks=10, max_model_len=36)
    table = table_of((0, 12, 16), (0.001, 12, 16))
    table.priority[:] = [5, 1]
    log = small_run(table, engine=tight, cost=STEP, scheduler="priority")
    assert list(log.requests.preemptions) == [1, 0]


def test_prefill_first_lets_decodes_stand_still() -> None:
    table = table_of((0, 10, 10), (0.025, 10, 2))
    log = small_run(table, engine=SYNC, cost=STEP, scheduler="prefill_first")
    gaps = np.diff(token_times_ns(log, 0)) / MS
    assert gaps.tolist() == [10, 10, 20, 10, 10, 10, 10, 10, 10]


def test_least_loaded_avoids_the_busy_replica() -> None:
    table = table_of((0, 10, 1000), (0.001, 10, 1), (0.1, 10, 1), (0.2, 10, 1), (0.3, 10, 1))
    by_turn = small_run(table, engine=EngineConfig(), cost=STEP, replicas=2)
    by_load = small_run(table, engine=EngineConfig(), cost=STEP, replicas=2, router="least_loaded")
    assert list(by_turn.requests.replica) == [0, 1, 0, 1, 0]
    assert list(by_load.requests.replica) == [0, 1, 1, 1, 1]


def test_fixed_concurrency_sends_the_next_when_one_is_done() -> None:
    table = table_of(*[(0, 10, 5)] * 6, max_concurrency=2)
    log = small_run(table, engine=SYNC, cost=STEP)
    assert [round(ms) for ms in times_ms(log, "arrival_ns")] == [0, 0, 50, 50, 100, 100]
    assert log.steps[0].column("running").max() == 2


def admit_nobody(view: EngineView) -> Plan:
    """A policy that never makes progress."""
    return view.new_batch().plan(repeat=UNTIL_CHANGE)


def test_a_policy_that_makes_no_progress_is_named_not_looped_on() -> None:
    with pytest.raises(PolicyError, match="planned nothing although"):
        small_run(table_of((0, 5, 5)), engine=SYNC, scheduler=lambda: admit_nobody)


def first_step_only(view: EngineView) -> Plan:
    """A policy that gives up after the first step."""
    batch = view.new_batch()
    if not view.running:
        batch.admit_waiting()
    return batch.plan()


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_policy_that_gives_up_in_the_middle_is_named_too(async_scheduling: bool) -> None:
    engine = EngineConfig(async_scheduling=async_scheduling)
    with pytest.raises(PolicyError, match="planned nothing although"):
        small_run(table_of((0, 5, 5)), engine=engine, scheduler=lambda: first_step_only)


def every_other_decode(view: EngineView) -> Plan:
    """Leaves half of the decodes out of each step, in turn."""
    batch = view.new_batch()
    for request in list(view.running):
        decoding = request in view.decode_group.members
        if not decoding or (request.index + view.decode_group.steps) % 2 == 0:
            batch.add(request)
    for request in list(view.waiting):
        batch.admit(request)
    return batch.plan()


def test_a_policy_may_leave_decodes_out() -> None:
    log = small_run(
        table_of((0, 7, 6), (0, 9, 6)),
        engine=EngineConfig(async_scheduling=False, block_size=4, replica_blocks=20),
        cost=STEP,
        scheduler=lambda: every_other_decode,
    )
    first, second = (token_times_ns(log, i) / MS for i in (0, 1))
    assert np.diff(first).tolist() == [10, 20, 20, 20, 20]
    assert np.diff(second).tolist() == [20, 20, 20, 20, 20]


@pytest.mark.parametrize(
    ("option", "value"), [("running_seq_limit", 0), ("block_size", 0), ("step_token_limit", 16)]
)
def test_options_that_cannot_work_are_refused(option: str, value: int) -> None:
    with pytest.raises(ScenarioError, match=option):
        EngineConfig(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("rate_per_s", "events", "plans"), [(2, 6.5, 3), (20, 5.5, 3)])
def test_work_per_request_is_bounded(rate_per_s: float, events: float, plans: float) -> None:
    """Seconds vary with the machine; events and plans do not."""
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, 2000))
    rows = zip(arrivals, rng.integers(100, 2000, 2000), rng.integers(50, 400, 2000), strict=True)
    log = small_run(table_of(*rows), engine=EngineConfig(replica_blocks=50_000))
    assert log.num_events / 2000 < events
    assert log.steps[0].plans / 2000 < plans
