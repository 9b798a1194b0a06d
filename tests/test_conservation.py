"""Nothing is lost: requests, tokens, blocks, nanoseconds and bytes are all accounted for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from numpy.typing import NDArray

from policies import ROUTERS, SCHEDULERS
from scenarios.build import build
from scenarios.load import load_scenario
from scenarios.plugins import scheduler_factory
from scenarios.schema import Scenario
from scenarios.simulate import simulate
from scenarios.workload import build_table
from sim.batch import Plan
from sim.clock import to_ns
from sim.cluster import RunLog, run_cluster
from sim.engine_view import EngineConfig, EngineView
from sim.ledger import time_books
from sim.protocols import Scheduler
from sim.recorder import UNSET
from sim.request import Request, Status
from sim.request_table import RequestTable
from sim.shape import SharedSums, clipped
from sim.together import SharedBlocks
from sim.token_times import decode_gaps, token_times_ns
from tests.helpers import AffineCost, small_run, table_of
from tests.test_jumping import COSTS, ENGINES, tables

Int64 = NDArray[np.int64]

SHIPPED = sorted((Path(__file__).resolve().parents[1] / "scenarios").glob("*.yaml"))
FINAL = {Status.FINISHED, Status.REJECTED, Status.FAILED, Status.UNFINISHED}
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


def capricious(view: EngineView) -> Plan:
    """A user's policy at its worst: preempts, leaves out, cuts and admits by the roll of a die."""
    die = random.Random(view.now_ns)
    batch = view.new_batch()
    running = list(view.running)
    if len(running) > 1 and die.random() < 0.05:
        batch.preempt(die.choice(running))
    for request in running:
        if die.random() < 0.7:
            batch.add(request, die.choice([None, 1, 5]))
    if not batch.has_preempted:
        for request in list(view.waiting):
            if not batch.admit(request, die.choice([None, 3])):
                break
    if die.random() < 0.5 or batch.token_budget == view.config.max_num_batched_tokens:
        batch.add_running()
    return batch.plan()


MAKERS: dict[str, Callable[[], Scheduler]] = {
    **{name: scheduler_factory(name, SCHEDULERS) for name in SCHEDULERS},
    "capricious": lambda: capricious,
}
over_random_runs = given(
    table=tables(),
    engine=ENGINES,
    cost=COSTS,
    scheduler=st.sampled_from(list(MAKERS)),
    router=st.sampled_from(list(ROUTERS)),
    replicas=st.integers(1, 3),
)
moderately = settings(
    deadline=None,
    max_examples=120,
    phases=PHASES,
    suppress_health_check=[HealthCheck.too_slow],
)


class Auditor:
    """A scheduler that, at each of its calls, counts every block and token of its engine anew."""

    def __init__(self, policy: Scheduler) -> None:
        self._policy = policy
        self.waiting_order = getattr(policy, "waiting_order", None)
        self.attach = getattr(policy, "attach", lambda view: None)
        self.view: EngineView | None = None
        self.due_tokens = 0
        """Tokens to prefill: what admissions asked for, less what preemptions called off."""

    def __call__(self, view: EngineView) -> Plan:
        self.view = view
        audit_blocks(view)
        audit_sums(view)
        audit_prefixes(view)
        left = {request: uncomputed_tokens(request) for request in view.prefilling}
        plan = self._policy(view)
        kept = [r for r in view.newly_admitted if r in view.running]  # not preempted at once
        self.due_tokens += sum(map(uncomputed_tokens, kept))
        self.due_tokens -= sum(left.get(r, 0) for r in view.newly_preempted)
        assert plan.shape.num_tokens <= view.config.max_num_batched_tokens
        places = sum(request.width + request.num_unforked for request in view.running)
        assert places <= view.config.max_num_seqs
        return plan


def uncomputed_tokens(request: Request) -> int:
    """Of a prefilling request: prompt, and answer so far if it was preempted, less computed.

    One that is swapped in where it decoded has nothing to prefill.
    """
    if request.status is Status.DECODING:
        return 0
    return request.prompt_tokens + request.num_sampled_tokens - request.num_computed_tokens


def audited(make: Callable[[], Scheduler]) -> tuple[Callable[[], Scheduler], list[Auditor]]:
    """Schedulers under audit, and the auditors, one an engine."""
    auditors: list[Auditor] = []

    def make_audited() -> Scheduler:
        auditors.append(Auditor(make()))
        return auditors[-1]

    return make_audited, auditors


def audit_blocks(view: EngineView) -> None:
    """Blocks of running requests, shared ones counted once, and free ones make up the pool."""
    kv = view.kv
    private, shared = 0, dict[int, int]()
    prompts: dict[SharedBlocks, int] = {}
    for request in (*view.running, *(view.loading or ())):
        private += blocks_of(view, request) - sum(depth for _, depth in request.pinned)
        if request.is_several:
            private += kv.further_blocks(request, request.reserved_tokens)
        if request.shared is not None:
            private -= request.shared.blocks
            prompts[request.shared] = prompts.get(request.shared, 0) + 1
        for node, depth in request.pinned:
            shared[node] = max(shared.get(node, 0), depth)
    assert kv.free_blocks >= 0
    held_once = sum(shared.values()) + sum(prompt.blocks for prompt in prompts)
    assert kv.empty_blocks + kv.cached_free_blocks == kv.free_blocks
    assert private + held_once + kv.free_blocks == kv.usable_blocks
    assert all(prompt.holders == holders for prompt, holders in prompts.items())
    swapped = sum(request.swapped_blocks for request in view.waiting)
    assert swapped + kv.free_host_blocks == view.config.num_cpu_blocks
    for request in view.waiting:
        assert not request.num_blocks
        assert not request.pinned


def audit_sums(view: EngineView) -> None:
    """What the decode group adds up as it goes is what its members add up to."""
    group, kv = view.decode_group, view.kv
    contexts = [group.computed_tokens(request) for request in group.members]
    members = [  # one by one, all hypotheses of a request
        (context, r.prompt_tokens)
        for context, r in zip(contexts, group.members, strict=True)
        for _ in range(r.width)
    ]
    assert group.num_seqs == len(members)
    assert view.num_running == sum(request.width for request in view.running)
    assert group.context_tokens == sum(context for context, _ in members)
    for clip, (tokens, growth) in zip(view.config.clip_tokens, group.clipped_sums(), strict=True):
        assert tokens == sum(clipped(clip, *member) for member in members)
        if view.config.speculation is None:
            assert tokens + growth == sum(clipped(clip, n + 1, prompt) for n, prompt in members)
    if view.config.speculation is not None:
        return  # what is due depends on drafts: `audit_blocks` counts what is held
    held = [partial(kv.blocks_held, request) for request in group.members]
    pairs = list(zip(held, contexts, strict=True))
    needed = [blocks(context + 1) - blocks(context) for blocks, context in pairs]
    assert [group.blocks_needed(request) for request in group.members] == needed
    assert group.blocks_due(1) == sum(needed)
    steps = min(group.steps_to_cross(), group.steps_to_leave(), 100)
    grown = [blocks(context + steps) - blocks(context) for blocks, context in pairs]
    assert group.blocks_due(steps) == sum(grown)


def audit_prefixes(view: EngineView) -> None:
    """What the group shares of its prefixes is what its members' blocks say, one by one."""
    members, config = list(view.decode_group.members), view.config
    if config.shared_prefix_attention == "tree":
        paths = [held_blocks(request) for request in members]
        assert view.shared_sums(len(members)) == shared_one_by_one(paths, config.block_size)
        left = view.shared_sums(1, members[:-1]) if members else SharedSums()
        assert left == SharedSums()
    elif config.shared_prefix_attention == "cascade" and members:
        paths = [held_blocks(request) for request in (*view.running, *(view.loading or ()))]
        together = zip(*paths, strict=False) if len(view.running) > 1 else ()
        common = list(takewhile(lambda blocks: len(set(blocks)) == 1, together))
        computed = [r.num_computed_tokens for r in view.prefilling]
        tokens = min([len(common), *(c // config.block_size for c in computed)]) * config.block_size
        assert view.shared_sums(len(members))[:2] == (tokens * len(members), tokens)


def held_blocks(request: Request) -> list[tuple[int, int]]:
    """(node, block of it) that a request pins, in order."""
    return [(node, block) for node, depth in request.pinned for block in range(depth)]


def shared_one_by_one(paths: list[list[tuple[int, int]]], block_size: int) -> SharedSums:
    """`SharedSums` of paths, counted block by block."""
    holders = Counter(block for path in paths for block in path)
    shared = {block: count for block, count in holders.items() if count > 1}
    parts = 0
    for path in paths:
        counts = [shared[block] for block in path if block in shared]
        parts += sum(count != after for count, after in zip(counts, [*counts, 0][1:], strict=True))
    return SharedSums(sum(shared.values()) * block_size, len(shared) * block_size, parts)


def blocks_of(view: EngineView, request: Request) -> int:
    """Blocks a running request holds."""
    if request.status is Status.DECODING:
        return view.kv.blocks_held(request, view.decode_group.held_tokens(request))
    return request.num_blocks


def ns(log: RunLog, name: str) -> Int64:
    """A column of times of the request log."""
    return np.frombuffer(getattr(log.requests, name), np.int64)


def statuses(log: RunLog) -> NDArray[np.int8]:
    """Status by request."""
    return np.frombuffer(log.requests.status, np.int8)


def check_requests(log: RunLog) -> None:
    """Every request that arrived has one fate; one that was never sent has no times at all."""
    arrived = ns(log, "arrival_ns") != UNSET
    assert set(statuses(log).tolist()) <= FINAL
    assert (statuses(log)[~arrived] == Status.UNFINISHED).all()
    for name in ("seen_ns", "admitted_ns", "first_token_ns", "finished_ns"):
        assert (ns(log, name)[~arrived] == UNSET).all()
    rejected = np.flatnonzero(statuses(log) == Status.REJECTED)
    assert set(log.requests.reject_reasons) == set(rejected.tolist())
    assert (ns(log, "arrival_ns")[arrived] >= log.table.arrival_ns[arrived]).all()


def check_closed_loop(log: RunLog) -> None:
    """Of a run to its end: nobody was sent before enough others had left."""
    limit = log.table.max_concurrency
    if limit is not None:
        left_ns = np.sort(ns(log, "finished_ns"))
        assert (ns(log, "arrival_ns")[limit:] >= left_ns[: max(len(left_ns) - limit, 0)]).all()


def check_sampled_tokens(log: RunLog) -> None:
    """Of a run to its end: each answer token is sampled once, preempted or not.

    From the second on, once for each hypothesis.
    """
    sampled = sum(int((s.column("steps") * s.column("logits")).sum()) for s in log.steps)
    for s in log.steps:
        if s.speculates:  # of the drafts, which need logits too, those that were accepted
            sampled -= int((s.column("steps") * s.column("draft_tokens")).sum())
            sampled += int(s.column("accepted_tokens").sum())
    finished = statuses(log) == Status.FINISHED
    expected = int(np.maximum(log.table.all_output_tokens[finished], 1).sum())
    if log.table.samples is not None:  # a prompt's logits give the first token of each answer
        expected -= int(np.diff(log.table.samples.offsets)[finished].sum())
    if log.table.beams is not None:
        later = np.maximum(log.table.output_tokens - 1, 0) * (log.table.beams.widths - 1)
        expected += int(later[finished].sum())
    assert sampled == expected


def check_prefilled_tokens(log: RunLog, auditors: list[Auditor]) -> None:
    """Of a run to its end: what was prefilled is what admissions asked for, nothing else."""
    prefilled = sum(int(s.column("prefill_tokens").sum()) for s in log.steps)
    assert prefilled == sum(auditor.due_tokens for auditor in auditors)
    if not any(log.requests.preemptions):
        finished = statuses(log) == Status.FINISHED
        uncached = log.table.prompt_tokens - ns(log, "cached_tokens")
        assert prefilled == int(uncached[finished].sum())


def check_empty(auditors: list[Auditor]) -> None:
    """Of a run to its end: nobody is left in any engine, and all its blocks are free."""
    for view in (auditor.view for auditor in auditors if auditor.view is not None):
        audit_blocks(view)
        assert not view.running
        assert not len(view.waiting)
        assert not view.prefilling
        assert not view.decode_group.members
        assert view.decode_group.context_tokens == view.decode_group.num_seqs == 0
        assert view.num_beams == view.num_unforked == 0
        assert view.kv.free_blocks == view.kv.usable_blocks


def check_books(log: RunLog) -> None:
    """A finished request's accounts sum to its E2E and its TTFT, none below 0; others have none."""
    books = time_books(log)
    finished = statuses(log) == Status.FINISHED
    for posted, end in ((books.e2e_ns, "finished_ns"), (books.ttft_ns, "first_token_ns")):
        total_ns = np.where(finished, ns(log, end) - ns(log, "arrival_ns"), 0)
        assert posted.sum(axis=1).tolist() == total_ns.tolist()
        assert not posted[~finished].any()
        assert (posted >= 0).all()


def check_order(log: RunLog) -> None:
    """Arrival, first scheduled, first token, finish come in this order, and all before the end."""
    finished = statuses(log) == Status.FINISHED
    names = ("arrival_ns", "seen_ns", "admitted_ns", "first_token_ns", "finished_ns")
    times = np.array([ns(log, name)[finished] for name in names])
    assert (np.diff(times, axis=0) >= 0).all()
    assert (times <= log.end_ns).all()


def check_token_times(log: RunLog) -> None:
    """A finished request has a time for each token, in order, from its first to its last."""
    finished = np.flatnonzero(statuses(log) == Status.FINISHED).tolist()
    spans_ns = 0
    for request in range(len(log.table)):
        times = token_times_ns(log, request)
        if request not in finished or not log.table.output_tokens[request]:
            assert not len(times)
            continue
        first_ns = log.requests.first_token_ns[request]
        last_ns = log.requests.finished_ns[request]
        assert len(times) == log.table.output_tokens[request]
        assert int(times[0]) == first_ns
        if request in log.requests.last_token_row:  # it waited for its batch, or other answers
            assert int(times[-1]) <= last_ns
        else:
            assert int(times[-1]) == last_ns
        assert (np.diff(times) >= 0).all()
        spans_ns += int(times[-1]) - first_ns
    gaps_ns, tokens = decode_gaps(log)
    assert int((gaps_ns * tokens).sum()) == spans_ns
    assert int(tokens.sum()) == int(np.maximum(log.table.output_tokens[finished] - 1, 0).sum())


def check_run_to_the_end(log: RunLog, auditors: list[Auditor]) -> None:
    """All of the above, and nobody is left unfinished."""
    assert (statuses(log) != Status.UNFINISHED).all()
    check_requests(log)
    check_closed_loop(log)
    check_sampled_tokens(log)
    check_prefilled_tokens(log, auditors)
    check_empty(auditors)
    check_books(log)
    check_order(log)
    check_token_times(log)


@pytest.mark.parametrize("fast_forward", [True, False], ids=["jumping", "stepping"])
@moderately
@over_random_runs
def test_a_run_to_its_end_conserves_everything(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    scheduler: str,
    router: str,
    replicas: int,
    fast_forward: bool,
) -> None:
    """Requests, tokens, blocks and time balance, whatever the policy and the pressure.

    Stepping, the auditor looks at every single step.
    """
    make, auditors = audited(MAKERS[scheduler])
    config = replace(engine, fast_forward=fast_forward)
    log = small_run(
        table, engine=config, cost=cost, scheduler=make, router=router, replicas=replicas
    )
    check_run_to_the_end(log, auditors)


@moderately
@given(share=st.floats(0.001, 1.2), data=st.data())
def test_a_cut_run_is_the_beginning_of_the_whole(share: float, data: st.DataObject) -> None:
    """A horizon loses nobody, and changes nothing that finished or was turned away before it."""
    table, engine, cost = data.draw(tables()), data.draw(ENGINES), data.draw(COSTS)
    scheduler = MAKERS[data.draw(st.sampled_from(list(MAKERS)))]
    whole = small_run(table, engine=engine, cost=cost, scheduler=scheduler)
    until_ns = 1 + int(share * whole.end_ns)
    cut = small_run(table, engine=engine, cost=cost, scheduler=scheduler, until_ns=until_ns)
    check_requests(cut)
    check_order(cut)
    assert cut.end_ns == until_ns
    for name in ("arrival_ns", "admitted_ns", "finished_ns"):
        reached = ns(whole, name) < until_ns
        assert ns(cut, name).tolist() == np.where(reached, ns(whole, name), UNSET).tolist()
    gone = ns(whole, "finished_ns") < until_ns
    fates = np.where(gone, statuses(whole), Status.UNFINISHED)
    assert statuses(cut).tolist() == fates.tolist()


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
    """The same wherever the horizon falls."""
    check_cut_log(table, engine, cost, share)


def shipped(path: Path) -> Scenario:
    """A scenario of ours, cut to a few hundred requests."""
    return load_scenario(path, ["warmup_s=0", "workload.num_requests=300"])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenario_conserves_everything(path: Path) -> None:
    """With real cost models too, and its summary counts the same requests and bytes."""
    scenario = shipped(path)
    built = build(scenario)
    make, auditors = audited(built.pool.make_scheduler)
    until_ns = None if scenario.horizon_s is None else to_ns(scenario.horizon_s)
    table = build_table(scenario)
    is_apart = built.transfer is not None  # blocks of KV on its way are no running request's
    fleet = built.fleet if is_apart else replace(built.pool, make_scheduler=make)
    log = run_cluster(table, fleet, until_ns=until_ns)
    if until_ns is None and not is_apart:
        check_run_to_the_end(log, auditors)
    for check in (check_requests, check_books, check_order, check_token_times):
        check(log)

    summary = simulate(scenario).summary
    counts = summary["requests"]
    assert counts["arrived"] == int((ns(log, "arrival_ns") != UNSET).sum())
    fates = ("finished", "rejected", "failed", "unfinished")
    assert counts["arrived"] == sum(counts[fate] for fate in fates)
    assert counts["finished"] == int((statuses(log) == Status.FINISHED).sum()) > 0
    bytes_of = dict(summary["device_bytes"])
    assert bytes_of.pop("total") == sum(bytes_of.values()) == built.gpu.hbm_bytes
    assert min(bytes_of.values()) >= 0


@pytest.mark.parametrize(
    ("changes", "least_unfinished"),
    [
        pytest.param([], 0, id="to the end"),
        pytest.param(["horizon_s=10"], 1, id="cut"),
        pytest.param(["horizon_s=1e-6"], 0, id="cut before the first arrival"),
        pytest.param(["horizon_s=10", "workload.max_concurrency=4"], 4, id="closed loop, cut"),
        pytest.param(["horizon_s=9"], 1, id="cut while somebody finishes"),
        pytest.param(
            ["engine.max_model_len=1500"],
            0,
            id="long ones rejected",
        ),
        pytest.param(
            ["engine.max_num_seqs=16"],
            0,
            id="small batches",
        ),
    ],
)
def test_summary_counts_those_who_arrived(changes: list[str], least_unfinished: int) -> None:
    """Arrived is finished, rejected, failed and unfinished; those never sent are nowhere."""
    (path,) = (path for path in SHIPPED if path.stem == "demo")
    result = simulate(load_scenario(path, ["warmup_s=0", "workload.num_requests=300", *changes]))
    counts, sent = result.summary["requests"], ns(result.log, "arrival_ns") != UNSET
    fates = ("finished", "rejected", "failed", "unfinished")
    assert counts["arrived"] == sum(counts[fate] for fate in fates) == int(sent.sum())
    assert counts["rejected"] == sum(counts["reject_reasons"].values())
    assert counts["unfinished"] >= least_unfinished
    is_cut = any(change.startswith("horizon") for change in changes)
    assert (counts["arrived"] < 300) == is_cut
