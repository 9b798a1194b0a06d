"""SGLang: prefills first, the request with the longest cached prefix ahead of the others."""

from collections.abc import Iterator
from typing import Literal

from sim.engine.batch import UNTIL_CHANGE, BatchBuilder, Plan
from sim.engine.view import EngineView
from sim.engine.waiting import FifoQueue
from sim.errors import ScenarioError
from sim.request import Request, Status

_MOST_SORTED = 128  # SchedulePolicy: beyond, "turn off the expensive prefix matching and sorting"
_LONGEST_ESTIMATE = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION
_INIT_RATIO, _MIN_RATIO_FACTOR, _DECAY_STEPS = 0.7, 0.14, 600  # default_*_new_token_ratio
_RETRACT_STEPS = 20  # retract_decode_steps


class SGLang:
    """While anybody can be admitted, steps are prefills; decodes have the steps between.

    ``lpm`` sorts the waiting requests by how much of them is cached, as long as at most 128 wait;
    with more it is first come, first served. So SGLang bounds the cost of looking them up, and so
    it is here. With it, requests that share nothing can starve while others keep coming.

    A request is admitted if what is free holds it and a share of what those running have yet to
    generate: 0.7 ``schedule_conservativeness`` of it, falling to 0.14 of that over 600 decode
    steps; if memory runs out all the same, the request with the shortest answer so far is
    retracted, to be computed again, and the share rises. Once nobody fits, none is tried until
    one leaves. What a request may generate is its ``max_new_tokens``; none given: its length.

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
    ) -> None:
        if schedule_policy not in ("lpm", "fcfs"):
            raise ScenarioError(f"schedule_policy is {schedule_policy!r}; it must be lpm or fcfs")
        if schedule_conservativeness < 0:
            raise ScenarioError("schedule_conservativeness must not be negative")
        if chunked_prefill_size < 1 or (max_new_tokens or 1) < 1:
            raise ScenarioError("chunked_prefill_size and max_new_tokens must be at least 1")
        self._sorts = schedule_policy == "lpm"
        self._chunk_tokens = chunked_prefill_size
        self._max_new_tokens = max_new_tokens
        self._init_ratio = min(_INIT_RATIO * schedule_conservativeness, 1.0)
        self._ratio = self._init_ratio
        self._ratio_step = 0  # decode step at which it was that
        self._full_with: int | None = None  # requests that ran when nobody else fitted

    def attach(self, view: EngineView) -> None:
        """Retracted requests go to the end of the queue."""
        view.waiting = _TailQueue()

    def __call__(self, view: EngineView) -> Plan:
        batch = view.new_batch()
        self._prefill(view, batch)
        if not batch.num_prefills:
            self._retract(view, batch)
            batch.add_running()
        return batch.plan(repeat=UNTIL_CHANGE)

    def _prefill(self, view: EngineView, batch: BatchBuilder) -> None:
        for request in list(view.prefilling):
            if not batch.add(request, self._chunk_tokens - batch.num_tokens):
                return
        if self._full_with and len(view.running) >= self._full_with:
            return  # with nobody running, blocks come free as KV gets to where it is decoded
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
                if batch.token_budget:  # blocks or places lack, not tokens
                    self._full_with = len(view.running)
                return
            reserved += need - (request.num_blocks - hit.blocks)

    def _in_order(self, view: EngineView) -> Iterator[Request]:
        waiting = view.waiting
        if self._sorts and len(waiting) <= _MOST_SORTED:
            yield from sorted(waiting, key=lambda request: -view.kv.lookup(request).blocks)
        while waiting:  # each is admitted, or the last to be tried
            yield waiting.first()

    def _left_tokens(self, view: EngineView, request: Request) -> int:
        """Tokens a request may yet generate, as far as they are counted."""
        sampled = request.num_sampled_tokens
        if request.status is Status.DECODING:
            sampled = view.decode_group.sampled_tokens(request)
        most = self._max_new_tokens or request.output_tokens
        return min(max(most - sampled, 0), _LONGEST_ESTIMATE)

    def _reserved_blocks(self, view: EngineView) -> float:
        """Free blocks that running requests are expected to take."""
        if not view.config.kv_layout.grows:
            return 0.0
        left = sum(self._left_tokens(view, request) for request in view.running)
        blocks = left * self._current_ratio(view) / view.config.block_size
        for request in view.prefilling:
            blocks += view.kv.blocks_for(request.num_target_tokens) - request.num_blocks
        return blocks

    def _current_ratio(self, view: EngineView) -> float:
        """The share of what they may generate: it falls a little each decode step."""
        least = self._init_ratio * _MIN_RATIO_FACTOR
        steps = view.decode_group.steps - self._ratio_step
        return max(self._ratio - (self._init_ratio - least) / _DECAY_STEPS * steps, least)

    def _retract(self, view: EngineView, batch: BatchBuilder) -> None:
        """While the next token of all does not fit, give up the one with least to lose."""
        group = view.decode_group
        while len(group.members) > 1 and group.blocks_due(1) > view.kv.free_blocks:
            sampled, request = group.sampled_tokens, _cheapest(view)
            batch.preempt(request)
            generated = sum(map(sampled, group.members))
            most = sum(self._max_new_tokens or r.output_tokens for r in group.members)
            share = (generated + _RETRACT_STEPS * len(group.members)) / most
            self._ratio, self._ratio_step = min(share, 1.0), group.steps


def _cheapest(view: EngineView) -> Request:
    """The decoding request with the shortest answer so far; of those, the longest prompt."""
    sampled = view.decode_group.sampled_tokens
    return min(view.decode_group.members, key=lambda r: (sampled(r), -r.prompt_tokens, -r.index))


class _TailQueue(FifoQueue):
    """Order of arrival; retracted requests go to the end, as new ones do."""

    put_back = FifoQueue.add
