"""The contract of every registered scheduler, and the distinct behavior of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import SCHEDULERS
from policies.sjf import ShortestJobFirst
from policies.vtc import VirtualTokenCounter
from scenarios.build.plugins import scheduler_factory
from sim.accounts import PREEMPTION_SWAP, TIME_ACCOUNTS
from sim.beams import BeamSearch
from sim.books.ledger import time_books
from sim.books.token_times import token_times_ns
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.cluster import RunLog
from sim.request import Request
from sim.request_table import RequestTable, SampleLengths, draw_lengths, request_table
from tests.bench.waiting import us_per_step
from tests.properties.conservation import audited, check_run_to_the_end
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run
from tests.properties.tables import chains_of, table_of

MS = 1_000_000
STEP = AffineCost(base_s=10e-3, per_token_s=0, per_context_s=0)  # every step takes 10 ms
SYNC = EngineConfig(async_scheduling=False)

KEEPS_THE_ORDER = {"fcfs", "prefill_first", "static", "orca", "sarathi"}
"""Promise that nobody is admitted before a request that came earlier."""
NOBODY_STARVES = KEEPS_THE_ORDER | {"vtc"}
"""Promise that a request is admitted, however many others keep coming."""


def hard_workload(answers: int = 1, width: int = 1) -> RequestTable:
    """Bursts at one instant, long prompts and answers, priorities, tenants, shared prefixes.

    Of beam search, every other request has ``width`` hypotheses.
    """
    rng = np.random.default_rng(7)
    n = 120
    arrivals = np.repeat(np.arange(n // 8) * 0.05, 8)  # 8 at a time
    prompts = np.where(rng.random(n) < 0.2, rng.integers(90, 150, n), rng.integers(1, 40, n))
    outputs = np.where(rng.random(n) < 0.2, rng.integers(30, 45, n), rng.integers(0, 12, n))
    family = rng.integers(0, 3, n).tolist()
    ids = [[f * 1000 + j for j in range(-(-p // 4))] for f, p in zip(family, prompts, strict=True)]
    table = request_table(
        arrivals,
        prompts,
        outputs,
        priority=rng.integers(0, 4, n),
        chains=chains_of(ids, prompts.tolist(), 4),
    )
    samples = draw_lengths(table.output_tokens, answers, 0.3, 0) if answers > 1 else None
    tenants, names = rng.integers(0, 3, n), ("a", "b", "c")
    table = replace(table, class_index=tenants, class_names=names, samples=samples)
    if width == 1:
        return table
    widths = np.where((table.output_tokens > 0) & (np.arange(n) % 2 == 0), width, 1)
    return replace(table, beams=BeamSearch(widths=widths))


def tiny_pool(**options: Any) -> EngineConfig:
    """51 blocks of 4 tokens: one long request takes nearly all."""
    plain = {"step_token_limit": 48, "running_seq_limit": 10, "max_model_len": 200}
    return EngineConfig(**(plain | {"block_size": 4, "replica_blocks": 52} | options))


@pytest.mark.parametrize(
    ("answers", "width"), [(1, 1), (3, 1), (1, 4)], ids=["one answer", "answers", "beams"]
)
@pytest.mark.parametrize(
    "options",
    [
        {"fast_forward": False},
        {"async_scheduling": False},
        {"preemption_mode": "swap", "num_cpu_blocks": 40, "swap_ns_per_block": 1e5},
    ],
    ids=["stepping", "synchronous", "swapping"],
)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_contract(scheduler: str, options: dict[str, Any], answers: int, width: int) -> None:
    """No illegal batch, all blocks come back, nobody is lost, tokens and time balance."""
    make, auditors = audited(scheduler_factory(scheduler, SCHEDULERS))
    table = hard_workload(answers, width)
    log = small_run(table, engine=tiny_pool(**options), cost=AffineCost(), scheduler=make)
    check_run_to_the_end(log, auditors)
    if scheduler in KEEPS_THE_ORDER:
        admitted = np.array(log.requests.admitted_ns)[np.array(log.requests.admitted_ns) >= 0]
        assert (np.diff(admitted) >= 0).all()
    if scheduler in ("fcfs", "priority"):  # it is as hard as it is meant to be
        assert sum(log.requests.preemptions) > 10
    if scheduler in ("orca", "static"):
        assert not sum(log.requests.preemptions)


def stream_against_one() -> tuple[RequestTable, int]:
    """More short requests than can be served, and the one that every unfair rule puts last."""
    n, victim = 121, 12
    arrivals = np.linspace(0.0, 0.96, n)
    prompts, outputs = np.full(n, 40), np.full(n, 4)
    outputs[victim], priority, tenants = 40, np.zeros(n, np.int64), np.zeros(n, np.int64)
    priority[victim] = tenants[victim] = 1
    ids = [[*range(10)] for _ in range(n)]  # the others share their prompts
    ids[victim] = [100 + j for j in range(10)]
    table = request_table(
        arrivals, prompts, outputs, priority=priority, chains=chains_of(ids, [40] * n, 4)
    )
    return replace(table, class_index=tenants, class_names=("many", "one")), victim


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nobody_starves_where_promised(scheduler: str) -> None:
    """With the others, the one is admitted last: the promise is not kept by chance."""
    table, victim = stream_against_one()
    engine = EngineConfig(async_scheduling=False, running_seq_limit=3, block_size=4)
    log = small_run(table, engine=engine, cost=STEP, scheduler=scheduler)
    admitted = np.array(log.requests.admitted_ns)
    overtaken_by = int((admitted[victim + 1 :] < admitted[victim]).sum())
    if scheduler in NOBODY_STARVES:
        assert overtaken_by == 0
    else:
        assert overtaken_by == len(table) - victim - 1


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_step_costs_the_same_however_many_wait(scheduler: str) -> None:
    """Anything that goes through all of 30,000 waiting requests takes milliseconds."""
    few, many = (us_per_step(scheduler, waiting, 60) for waiting in (300, 30_000))
    assert many < 3 * few + 200


def ms(log: RunLog, name: str) -> list[float]:
    """A column of times of the request log in ms."""
    return [ns / MS for ns in getattr(log.requests, name)]


def run(rows: list[tuple[float, int, int]], policy: Any, **options: Any) -> RunLog:
    """On a synchronous engine whose steps take 10 ms."""
    engine = EngineConfig(**({"async_scheduling": False, "max_model_len": 200} | options))
    return small_run(
        table_of(*rows), engine=engine, cost=STEP, scheduler=scheduler_factory(policy, SCHEDULERS)
    )


def test_a_static_batch_ends_with_its_longest_member() -> None:
    policy = {"name": "static", "batch_size": 2}
    log = run([(0, 10, 3), (0, 10, 6), (0.001, 10, 2), (0.001, 10, 2)], policy)
    assert ms(log, "admitted_ns") == [0, 0, 60, 60]
    assert ms(log, "first_token_ns") == [10, 10, 70, 70]
    assert ms(log, "finished_ns") == [60, 60, 80, 80]
    assert (token_times_ns(log, 0) / MS).tolist() == [10, 20, 30]
    waited = time_books(log).e2e_ns[0, TIME_ACCOUNTS.index("scheduling_wait")]
    assert waited == 30 * MS


def test_a_static_batch_is_prefilled_before_it_decodes() -> None:
    policy = {"name": "static", "batch_size": 3}
    options = {"step_token_limit": 16, "running_seq_limit": 4}
    log = run([(0, 12, 2), (0, 12, 2), (0, 12, 2), (0, 12, 2)], policy, **options)
    steps = log.steps[0].columns()
    assert steps["prefill_tokens"].tolist()[:4] == [12 + 4, 8 + 8, 4, 0]
    assert steps["decode_seqs"].tolist()[:4] == [0, 0, 0, 3]


@pytest.mark.parametrize(("reserve", "together"), [("max", 2), ("pow2", 3), ("oracle", 4)])
def test_orca_admits_what_it_can_reserve_for(reserve: str, together: int) -> None:
    # 16 usable blocks of 8: a request of 8 + 17 holds 8 blocks of a sequence of 64 tokens, 5 of
    # 8 + 32, or 4; fcfs begins with 2 each.
    policy = {"name": "orca", "reserve": reserve}
    pool = {"block_size": 8, "replica_blocks": 17, "max_model_len": 64}
    log = run([(0, 8, 17)] * 8, policy, **pool)
    steps = log.steps[0].columns()
    assert steps["running"].max() == together
    assert not steps["preempted"].any()
    assert run([(0, 8, 17)] * 8, "fcfs", **pool).steps[0].column("running").max() > together


def test_a_buddy_allocator_rounds_up_once_more() -> None:
    # 8 + 17 tokens are 32 slots, 4 of 16 blocks; 8 + 32 are 64, 8 of them.
    pool = {"block_size": 8, "replica_blocks": 17, "max_model_len": 128}
    for reserve, together in (("oracle", 4), ("pow2", 2), ("max", 1)):
        policy = {"name": "orca", "reserve": reserve, "buddy": True}
        log = run([(0, 8, 17)] * 8, policy, **pool)
        assert log.steps[0].column("running").max() == together


def test_a_swapped_request_goes_on_where_it_was() -> None:
    pool = {"block_size": 4, "replica_blocks": 10, "max_model_len": 36}
    swap = {"preemption_mode": "swap", "num_cpu_blocks": 9, "swap_ns_per_block": 1e6}
    rows = [(0, 12, 16), (0.001, 12, 16)]
    log, again = run(rows, "fcfs", **pool, **swap), run(rows, "fcfs", **pool)
    assert list(log.requests.preemptions) == list(again.requests.preemptions) == [0, 1]
    # Nothing is computed twice; its 4 blocks move out, and back.
    assert log.steps[0].column("prefill_tokens").sum() == 24
    assert again.steps[0].column("prefill_tokens").sum() > 24
    (_, out, out_ns), (_, back, back_ns) = log.steps[0].waits[PREEMPTION_SWAP]
    assert out == back
    assert out_ns == back_ns == out * MS
    books, column = time_books(log), TIME_ACCOUNTS.index("preemption_swap")
    assert books.e2e_ns[0, column] == out_ns  # its step waited for the other's blocks
    gap_ns = np.diff(token_times_ns(log, 1)).max()
    assert books.e2e_ns[1, column] == gap_ns - 10 * MS


def test_who_does_not_fit_the_host_is_recomputed() -> None:
    pool = {"block_size": 4, "replica_blocks": 10, "max_model_len": 36}
    rows = [(0, 12, 16), (0.001, 12, 16)]
    small = run(rows, "fcfs", preemption_mode="swap", num_cpu_blocks=2, **pool)
    assert small.requests.finished_ns == run(rows, "fcfs", **pool).requests.finished_ns
    assert not small.steps[0].waits


def test_sarathi_never_makes_a_step_larger_than_its_chunk() -> None:
    rows = [(0, 10, 9), (0.005, 50, 3), (0.005, 7, 2)]
    log = run(rows, {"name": "sarathi", "chunk_tokens": 16})
    steps = log.steps[0].columns()
    assert steps["prefill_tokens"].tolist()[:5] == [10, 15, 15, 15, 5 + 7]
    assert steps["decode_seqs"].tolist()[:5] == [0, 1, 1, 1, 1]
    assert (steps["prefill_tokens"] + steps["decode_seqs"]).max() == 16


def sharing(prompts: list[list[int]], outputs: list[int]) -> RequestTable:
    """Requests a ms apart with these chains of 4-token blocks, a token longer than they."""
    lengths = [4 * len(prompt) + 1 for prompt in prompts]
    rows = [(0.001 * i, p, o) for i, (p, o) in enumerate(zip(lengths, outputs, strict=True))]
    return replace(table_of(*rows), chains=chains_of(prompts, [p - 1 for p in lengths], 4))


@pytest.mark.parametrize(
    ("policy", "order"), [("sglang", [0, 2, 1, 3]), ("fcfs", [0, 1, 2, 3])], ids=["lpm", "fcfs"]
)
def test_sglang_serves_the_longest_cached_prefix_first(policy: str, order: list[int]) -> None:
    table = sharing([[1, 2, 3], [8, 9], [1, 2, 3], [7]], [2, 2, 2, 2])
    engine = EngineConfig(async_scheduling=False, block_size=4, running_seq_limit=1)
    log = small_run(table, engine=engine, cost=STEP, scheduler=policy)
    assert np.argsort(log.requests.admitted_ns).tolist() == order


def test_sglang_falls_back_to_arrival_order_where_many_wait() -> None:
    many = [[100 + i] for i in range(130)]
    for prompts, first in (([[1], *many[:100], [1]], 101), ([[1], *many, [1]], 1)):
        table = sharing(prompts, [200] + [2] * (len(prompts) - 1))
        engine = EngineConfig(async_scheduling=False, block_size=4, running_seq_limit=1)
        log = small_run(table, engine=engine, cost=STEP, scheduler="sglang")
        assert int(np.argsort(log.requests.admitted_ns)[1]) == first


def test_sglang_leaves_room_for_what_those_running_will_generate() -> None:
    pool = {"block_size": 4, "replica_blocks": 25, "max_model_len": 96}
    rows = [(0, 8, 40), (0.015, 8, 40), (0.035, 8, 40)]
    runs = {
        share: run(rows, {"name": "sglang", "schedule_conservativeness": share}, **pool)
        for share in (1.0, 0.0)
    }
    careful, careless = (sum(runs[share].requests.preemptions) for share in (1.0, 0.0))
    assert careful == 0 < careless
    assert runs[1.0].steps[0].column("running").max() < runs[0.0].steps[0].column("running").max()


def test_sglang_looks_for_new_requests_now_and_then() -> None:
    rows = [(0, 8, 40), (0.055, 8, 4), (0.9, 8, 2)]
    for interval, admitted_ms in ((1, [0, 60, 900]), (10, [0, 110, 900])):
        log = run(rows, {"name": "sglang", "scheduler_recv_interval": interval})
        assert [round(ns / MS) for ns in log.requests.admitted_ns] == admitted_ms
    with pytest.raises(ScenarioError, match="scheduler_recv_interval"):
        run(rows, {"name": "sglang", "scheduler_recv_interval": 0})


def test_shortest_job_first_goes_by_predicted_answers() -> None:
    rows = [(0, 10, 9), *((0.001, 10, o) for o in (7, 3, 5, 1))]
    log = run(rows, "sjf", running_seq_limit=1)
    assert np.argsort(log.requests.admitted_ns).tolist() == [0, 4, 2, 3, 1]


@pytest.mark.parametrize("sigma", [0.0, 0.5, 2.0])
def test_a_predictor_is_off_by_as_much_as_it_says(sigma: float) -> None:
    policy = ShortestJobFirst(sigma=sigma)
    keys = [policy.waiting_order(Request(i, 0, 1, 1000)) for i in range(4000)]
    logs = np.log(np.array(keys) / 1000)
    assert logs.mean() == pytest.approx(0, abs=0.05 * sigma)
    assert logs.std() == pytest.approx(sigma, rel=0.05)
    assert keys[7] == policy.waiting_order(Request(7, 5, 1, 1000))  # a draw of the request's own


@settings(deadline=None, max_examples=30)
@given(
    prompt=st.integers(1, 60),
    outputs=st.tuples(st.integers(2, 40), st.integers(2, 40)),
    shares=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    seqs=st.integers(1, 6),
)
def test_backlogged_tenants_are_served_alike(
    prompt: int, outputs: tuple[int, int], shares: tuple[int, int], seqs: int
) -> None:
    """Theorem 4.4 of the paper: counters of two backlogged tenants differ by a bounded amount."""
    tenants = np.array(([0] * shares[0] + [1] * shares[1]) * 12)
    n = len(tenants)
    lengths = np.where(tenants == 0, outputs[0], outputs[1])
    table = request_table(np.zeros(n), np.full(n, prompt), lengths)
    table = replace(table, class_index=tenants, class_names=("a", "b"))
    engine = EngineConfig(async_scheduling=False, running_seq_limit=seqs, fast_forward=False)
    # Between two admissions a counter grows by what is in the batch: M of the paper.
    bound = 2 * max(prompt + 2, 2 * seqs * max(outputs))
    watched = Watched()
    small_run(table, engine=engine, cost=STEP, scheduler=lambda: watched)
    assert watched.gaps
    assert max(watched.gaps) <= bound


class Watched(VirtualTokenCounter):
    """Notes how far the counters of two tenants are apart while both wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[float] = []

    def __call__(self, view: Any) -> Any:
        if len(self._queue.tenants) == 2:
            self.gaps.append(abs(self.counter(0) - self.counter(1)))
        return super().__call__(view)


def test_a_tenant_that_comes_late_is_not_owed_what_others_had() -> None:
    tenants = np.array([0] * 40 + [1] * 10)
    arrivals = np.where(tenants == 0, 0.0, 1.0)
    table = request_table(arrivals, np.full(50, 10), np.full(50, 10))
    table = replace(table, class_index=tenants, class_names=("early", "late"))
    engine = EngineConfig(async_scheduling=False, running_seq_limit=1)
    log = small_run(table, engine=engine, cost=STEP, scheduler="vtc")
    after = np.argsort(log.requests.admitted_ns)[11:31]
    assert np.bincount(tenants[after]).tolist() == [10, 10]  # in turn, not all late ones first


def answers_of(n: int, lengths: list[int], prompt: int, output: int) -> RequestTable:
    """One request with ``n`` answers."""
    further = SampleLengths(tokens=np.array(lengths, np.int64), offsets=np.array([0, n - 1]))
    return replace(table_of((0, prompt, output)), samples=further)


@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [
        # 8 shared blocks; then a copy of the last, partial one each (COW), and no other.
        pytest.param(34, 8 + 4, id="copies of a partial block"),
        pytest.param(32, 8 + 4, id="a new block each"),
    ],
)
def test_answers_share_their_prompts_blocks(prompt: int, blocks: int) -> None:
    table = answers_of(4, [2, 2, 2], prompt, 2)
    engine = EngineConfig(async_scheduling=False, block_size=4, replica_blocks=101)
    log = small_run(table, engine=engine, cost=STEP)
    steps = log.steps[0].columns()
    assert steps["decode_seqs"].tolist() == [0, 4]
    assert steps["prefill_tokens"].tolist() == [prompt, 0]
    assert 100 - steps["free_blocks"].min() == blocks
    assert table.all_output_tokens.tolist() == [8]


def test_a_request_ends_with_its_longest_answer() -> None:
    log = small_run(answers_of(3, [2, 7], 10, 4), engine=SYNC, cost=STEP)
    assert ms(log, "first_token_ns") == [10]
    assert ms(log, "finished_ns") == [70]
    assert (token_times_ns(log, 0) / MS).tolist() == [10, 20, 30, 40]  # of the first answer
    assert log.steps[0].column("decode_seqs").tolist() == [0, 3, 2, 1]


def test_more_answers_than_an_engine_takes_are_refused() -> None:
    engine = EngineConfig(running_seq_limit=2, replica_blocks=40)
    log = small_run(answers_of(3, [2, 7], 10, 4), engine=engine, cost=STEP)
    assert log.requests.reject_reasons == {0: "more answers than max_num_seqs"}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"name": "sarathi", "chunk_token": 5}, "has no option 'chunk_token'; did you mean"),
        ({"name": "sarathi", "chunk_tokens": "many"}, "chunk_tokens: must be a valid integer"),
        ({"name": "sarathi", "chunk_tokens": 0}, "must be at least 1"),
        ({"name": "orca", "reserve": "half"}, "must be 'max', 'pow2' or 'oracle'"),
        ({"name": "fcfs", "chunk_tokens": 5}, "it has none"),
        ({"name": "sarathy"}, "did you mean 'sarathi'"),
    ],
)
def test_options_that_cannot_be_are_refused(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scheduler_factory(policy, SCHEDULERS)
