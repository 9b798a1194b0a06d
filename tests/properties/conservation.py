"""Audits of a run: every request, block and account is conserved."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from policies import SCHEDULERS
from scenarios.build.plugins import scheduler_factory
from sim.books.ledger import time_books
from sim.books.token_times import token_times_ns
from sim.engine.adapters import Adapters
from sim.engine.step import Plan
from sim.engine.view import EngineView, Scheduler
from sim.fleet.cluster import RunLog
from sim.recorder import UNSET
from sim.request import Request, SharedBlocks, Status
from sim.shape import SharedSums, StepShape, clipped
from tests.properties.token_gaps import decode_gaps

Int64 = NDArray[np.int64]


FINAL = {Status.FINISHED, Status.REJECTED, Status.FAILED, Status.UNFINISHED}


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
    if die.random() < 0.5 or batch.token_budget == view.config.step_token_limit:
        batch.add_running()
    return batch.plan()


MAKERS: dict[str, Callable[[], Scheduler]] = {
    **{name: scheduler_factory(name, SCHEDULERS) for name in SCHEDULERS},
    "capricious": lambda: capricious,
}


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
        assert plan.shape.num_tokens <= view.config.step_token_limit
        places = sum(request.width + request.num_unforked for request in view.running)
        assert places <= view.config.running_seq_limit
        return plan


def uncomputed_tokens(request: Request) -> int:
    """Return the tokens a prefilling request must still compute: the prompt, and the answer so far
    if it was preempted, less those computed.

    A request that is swapped in while decoding has nothing to prefill.
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


def _set_aside(view: EngineView) -> list[Request]:
    """Requests that hold blocks and neither run nor wait, because their prefix is being loaded."""
    return [request for place in view.hooks.places for request in place.holding]


def audit_blocks(view: EngineView) -> None:
    """Blocks of running requests, shared ones counted once, and free ones make up the pool."""
    kv = view.kv
    private, shared = 0, dict[int, int]()
    prompts: dict[SharedBlocks, int] = {}
    for request in (*view.running, *_set_aside(view)):
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
    aside = [r for place in view.hooks.places if isinstance(place, Adapters) for r in place.aside]
    swapped = sum(request.swapped_blocks for request in (*view.waiting, *aside))
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
        assert _shared_sums(view, len(members)) == shared_one_by_one(paths, config.block_size)
        left = _shared_sums(view, 1, members[:-1]) if members else SharedSums()
        assert left == SharedSums()
    elif config.shared_prefix_attention == "cascade" and members:
        paths = [held_blocks(request) for request in (*view.running, *_set_aside(view))]
        together = zip(*paths, strict=False) if len(view.running) > 1 else ()
        common = list(takewhile(lambda blocks: len(set(blocks)) == 1, together))
        computed = [r.num_computed_tokens for r in view.prefilling]
        tokens = min([len(common), *(c // config.block_size for c in computed)]) * config.block_size
        assert _shared_sums(view, len(members))[:2] == (tokens * len(members), tokens)


def _shared_sums(
    view: EngineView, decode_seqs: int, held_back: list[Request] | None = None
) -> SharedSums:
    """What the engine puts into the shape of a step without prefills."""
    shape = StepShape(decode_seqs)
    plan = Plan(shape, [], held_back or [], True, 1, None, 0)
    for complete in view.hooks.shaped:
        shape = complete(shape, plan)
    return SharedSums(*shape.shared)


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
    """Return the status of each request."""
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
    """Check, for a complete run, that no request was sent before enough others had left."""
    limit, left_ns = log.table.max_concurrency, np.sort(ns(log, "finished_ns"))
    assert (ns(log, "arrival_ns")[limit:] >= left_ns[: max(len(left_ns) - limit, 0)]).all()


def check_sampled_tokens(log: RunLog) -> None:
    """Check, for a complete run, that each answer token is sampled once, even after preemption.

    From the second token on, it is sampled once per hypothesis.
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
    """Check, for a complete run, that exactly the tokens required by admissions were prefilled."""
    prefilled = sum(int(s.column("prefill_tokens").sum()) for s in log.steps)
    assert prefilled == sum(auditor.due_tokens for auditor in auditors)
    if not any(log.requests.preemptions):
        finished = statuses(log) == Status.FINISHED
        uncached = log.table.prompt_tokens - ns(log, "cached_tokens")
        assert prefilled == int(uncached[finished].sum())


def check_empty(auditors: list[Auditor]) -> None:
    """Check, for a complete run, that no request is left in any engine and that all blocks are
    free."""
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
