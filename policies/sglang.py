"""SGLang's scheduler: prefills first, the longest cached prefix ahead of the others."""

from collections.abc import Iterator
from typing import Literal

from sim.engine.batch import BatchBuilder
from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.engine.waiting import FifoQueue
from sim.errors import ScenarioError
from sim.request import Request, Status

_MOST_SORTED = 128  # SchedulePolicy: beyond, "turn off the expensive prefix matching and sorting"
_LONGEST_ESTIMATE = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION
_INIT_RATIO, _MIN_RATIO_FACTOR, _DECAY_STEPS = 0.7, 0.14, 600  # default_*_new_token_ratio
_RETRACT_STEPS = 20  # retract_decode_steps


class SGLang:
    """Run prefill steps while any request can be admitted, and decode steps in between.

    ``lpm`` (longest prefix match) sorts the waiting requests by how much of them is cached, as long
    as at most 128 wait; with more it is first come, first served. SGLang bounds the cost of lookups
    so. Under ``lpm``, requests that share nothing can starve while others keep arriving.

    A request is admitted if the free memory holds it and a share of the tokens that running
    requests have yet to generate. The share starts at 0.7 times ``schedule_conservativeness`` and
    falls to 0.14 of that over 600 decode steps. If memory runs out all the same, the request with
    the shortest answer so far is retracted, to be computed again, and the share rises. Once no
    request fits, none is tried until one leaves. A request may generate ``max_new_tokens``; None:
    the length of its answer. New requests are looked for after every step with prefill, and after
    every ``scheduler_recv_interval`` steps of decodes alone.

    Source: SGLang ``Scheduler``, ``SchedulePolicy``, ``PrefillAdder``, and
    ``ScheduleBatch.retract_decode`` (0.4 to 0.5).
    """

    def __init__(
        self,
        *,
        schedule_policy: Literal["lpm", "fcfs"] = "lpm",
        schedule_conservativeness: float = 1.0,
        chunked_prefill_size: int = 8192,
        max_new_tokens: int | None = None,
        scheduler_recv_interval: int = 1,
    ) -> None:
        if schedule_policy not in ("lpm", "fcfs"):
            raise ScenarioError(f"schedule_policy is {schedule_policy!r}; it must be lpm or fcfs")
        if schedule_conservativeness < 0:
            raise ScenarioError("schedule_conservativeness must not be negative")
        if chunked_prefill_size < 1 or (max_new_tokens or 1) < 1:
            raise ScenarioError("chunked_prefill_size and max_new_tokens must be at least 1")
        if scheduler_recv_interval < 1:
            raise ScenarioError("scheduler_recv_interval must be at least 1")
        self._recv_interval = scheduler_recv_interval
        self._received_step = 0  # decode step before which new requests were last looked for
        self._sorts = schedule_policy == "lpm"
        self._chunk_tokens = chunked_prefill_size
        self._max_new_tokens = max_new_tokens
        self._init_ratio = min(_INIT_RATIO * schedule_conservativeness, 1.0)
        self._ratio = self._init_ratio
        self._ratio_step = 0  # decode step at which the ratio was set
        self._full_with: int | None = None  # number running when no other fitted

    def attach(self, view: EngineView) -> None:
        """Give the engine a queue to whose end retracted requests go."""
        view.waiting = _TailQueue()

    def __call__(self, view: EngineView) -> Plan:
        batch = view.new_batch()
        wait_steps = self._steps_to_receive(view)
        if not wait_steps:
            self._prefill(view, batch)
        if batch.num_prefills:
            self._received_step = view.decode_group.steps
        else:
            self._retract(view, batch)
            batch.add_running()
        return batch.plan(repeat=wait_steps or UNTIL_CHANGE)

    def _steps_to_receive(self, view: EngineView) -> int:
        """Return the steps of decodes before new requests are looked for; 0: they are now."""
        since = view.decode_group.steps - self._received_step
        if (
            self._recv_interval == 1
            or not view.decode_group.members
            or view.prefilling
            or not since
        ):
            return 0
        return -since % self._recv_interval if view.waiting else 0

    def _prefill(self, view: EngineView, batch: BatchBuilder) -> None:
        for request in list(view.prefilling):
            if not batch.add(request, self._chunk_tokens - batch.num_tokens):
                return
        if self._full_with and len(view.running) >= self._full_with:
            return  # with none running, blocks come free as KV is handed over to decode engines
        self._full_with = None
        if not view.waiting:
            return
        reserved = self._reserved_blocks(view)
        for request in self._in_order(view):
            room = self._chunk_tokens - batch.num_tokens
            if room <= 0:
                return
            hit = view.kv.lookup(request)
            left = self._left_tokens(view, request)
            need = view.kv.blocks_for(request.num_target_tokens + left) - hit.blocks
            fits = need + reserved <= view.kv.free_blocks - hit.evictable
            if (view.running and not fits) or not batch.admit(request, room):
                if batch.token_budget:  # it lacked blocks or a place in the batch, not tokens
                    self._full_with = len(view.running)
                return
            reserved += need - (request.num_blocks - hit.blocks)

    def _in_order(self, view: EngineView) -> Iterator[Request]:
        waiting = view.waiting
        if self._sorts and len(waiting) <= _MOST_SORTED:
            yield from sorted(waiting, key=lambda request: -view.kv.lookup(request).blocks)
        while waiting:  # the caller admits each, or stops
            yield waiting.first()

    def _left_tokens(self, view: EngineView, request: Request) -> int:
        """Return the tokens that a request may yet generate, at most 4096."""
        sampled = request.num_sampled_tokens
        if request.status is Status.DECODING:
            sampled = view.decode_group.sampled_tokens(request)
        most = self._max_new_tokens or request.output_tokens
        return min(max(most - sampled, 0), _LONGEST_ESTIMATE)

    def _reserved_blocks(self, view: EngineView) -> float:
        """Return the free blocks that running requests are expected to take."""
        if not view.config.kv_layout.grows:
            return 0.0
        left = sum(self._left_tokens(view, request) for request in view.running)
        blocks = left * self._current_ratio(view) / view.config.block_size
        for request in view.prefilling:
            blocks += view.kv.blocks_for(request.num_target_tokens) - request.num_blocks
        return blocks

    def _current_ratio(self, view: EngineView) -> float:
        """Return the share of ungenerated tokens to reserve; it falls a little with each decode
        step."""
        least = self._init_ratio * _MIN_RATIO_FACTOR
        steps = view.decode_group.steps - self._ratio_step
        return max(self._ratio - (self._init_ratio - least) / _DECAY_STEPS * steps, least)

    def _retract(self, view: EngineView, batch: BatchBuilder) -> None:
        """Preempt the cheapest requests until the next token of all the others fits."""
        group = view.decode_group
        while len(group.members) > 1 and group.blocks_due(1) > view.kv.free_blocks:
            sampled, request = group.sampled_tokens, _cheapest(view)
            batch.preempt(request)
            generated = sum(map(sampled, group.members))
            most = sum(self._max_new_tokens or r.output_tokens for r in group.members)
            share = (generated + _RETRACT_STEPS * len(group.members)) / most
            self._ratio, self._ratio_step = min(share, 1.0), group.steps


def _cheapest(view: EngineView) -> Request:
    """Return the decoding request with the shortest answer so far; among equals, the longest
    prompt."""
    sampled = view.decode_group.sampled_tokens
    return min(view.decode_group.members, key=lambda r: (sampled(r), -r.prompt_tokens, -r.index))


class _TailQueue(FifoQueue):
    """A queue in order of arrival, to whose end retracted requests go as new ones do."""

    put_back = FifoQueue.add
