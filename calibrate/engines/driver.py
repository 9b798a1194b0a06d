"""Drive an engine core of vLLM step by step, and note when each step was planned and read.

The core is what runs inside vLLM's own engine process: the scheduler, the KV manager and the model
runner, without HTTP and tokenizer. Its scheduler is watched from outside: the calls are timed, and
what a plan holds is counted as the simulator counts it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

MakeRequest = Callable[[str, list[int], int], Any]
"""Makes a request of an id, prompt tokens and a number of output tokens, ready for the core."""

_FIRST_TOKEN_ID = 100  # below are special tokens
_LAST_TOKEN_IDS = 1000
_FULLEST = 0.97  # share of the KV blocks that a point may take


@dataclass(slots=True)
class Step:
    """One engine step: the columns of a step log, in their order; times are in seconds."""

    run: str
    t_sched: float
    t_sched_end: float
    t_out: float | None
    """When the outputs were read; None while the step is in flight."""
    t_upd_end: float | None
    prefill_tokens: int = 0
    prefill_reqs: int = 0
    decode_seqs: int = 0
    ctx_decode_sum: int = 0
    ctx_prefill_start_sum: int = 0
    attn_pairs_prefill: int = 0
    running: int = 0
    waiting: int = 0
    preempted: int = 0
    free_blocks: int = 0


STEP_COLUMNS = tuple(field.name for field in fields(Step))


class CoreDriver:
    """Hands requests to an engine core, steps it, and keeps a row of every step."""

    def __init__(
        self,
        core: Any,
        make_request: MakeRequest,
        vocab_size: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        seed: int = 1,
    ) -> None:
        self._core = core
        self._make_request = make_request
        last_id = max(_FIRST_TOKEN_ID + 1, vocab_size - _LAST_TOKEN_IDS)
        self._token_ids = range(_FIRST_TOKEN_ID, last_id)
        self._clock = clock
        self.sleep = sleep
        self._draws = random.Random(seed)
        self._scheduler = core.scheduler
        self._pool = self._scheduler.kv_cache_manager.block_pool
        coordinator = self._scheduler.kv_cache_manager.coordinator
        self._managers = list(coordinator.single_type_managers)
        self._prompt_tokens: dict[str, int] = {}
        self._given_tokens: dict[str, int] = {}
        self._in_flight: dict[int, Step] = {}
        self._num_requests = 0
        self.steps: list[Step] = []
        """Rows since the last call of `take_steps`."""
        self.run = ""
        """Name that new rows carry."""
        self.restart_clock()
        self._watch()

    def restart_clock(self) -> None:
        """Let the times of new rows count from now."""
        self._start_s = self._clock()

    @property
    def now_s(self) -> float:
        """Seconds since the clock was restarted."""
        return self._clock() - self._start_s

    # Requests.

    def request(self, tokens: int, output_tokens: int, *, given_tokens: int = 0) -> Any:
        """Prepare a request of random tokens.

        ``given_tokens`` of them are taken to be in the KV cache already, as whatever its blocks
        hold: attention reads them, nothing computes them.
        """
        self._num_requests += 1
        request_id = f"fleetcast-{self._num_requests}"
        size = len(self._token_ids)
        first = self._token_ids.start
        prompt = [first + int(self._draws.random() * size) for _ in range(tokens)]
        self._prompt_tokens[request_id] = tokens
        if given_tokens:
            self._given_tokens[request_id] = given_tokens
        return self._make_request(request_id, prompt, output_tokens)

    def add(self, request: Any) -> None:
        """Hand over a prepared request."""
        self._core.add_request(*request)

    def request_id(self, request: Any) -> str:
        """Return the id of a prepared request."""
        return str(request[0].request_id)

    @property
    def is_busy(self) -> bool:
        """Whether the core holds requests, or steps whose outputs have not been read."""
        return bool(self._scheduler.has_requests() or self._core.batch_queue)

    def step(self) -> Iterable[Any]:
        """Let the core take one turn, and return the outputs that it read."""
        outputs, executed = self._core.step_fn()
        self._core.post_step(executed)
        return outputs[0].outputs if outputs and 0 in outputs else ()

    def drain(self) -> None:
        """Step until nothing is left."""
        while self.is_busy:
            self.step()

    def clear(self) -> None:
        """Finish what is under way, and forget cached prefixes."""
        self.drain()
        self._core.reset_prefix_cache()
        self._prompt_tokens.clear()
        self._given_tokens.clear()

    def take_steps(self) -> list[Step]:
        """Return the rows of all steps that were read since the last call."""
        taken = [step for step in self.steps if step.t_upd_end is not None]
        self.steps = [step for step in self.steps if step.t_upd_end is None]
        return taken

    # Room in the KV cache.

    def fits(self, held_tokens: list[int], spare_tokens: int) -> bool:
        """Return whether sequences of these lengths fit together, each growing by
        ``spare_tokens``."""
        needed = sum(self._blocks_of(tokens + spare_tokens) for tokens in held_tokens)
        return needed <= int(_FULLEST * self._pool.num_gpu_blocks)

    def _blocks_of(self, tokens: int) -> int:
        needed = 0
        for manager in self._managers:
            size, skipped = manager.block_size, max(0, manager.get_num_skipped_tokens(tokens))
            needed += -(-tokens // size) - skipped // size + 2
        return needed

    @contextmanager
    def given_contexts(self) -> Iterator[None]:
        """Let requests have given contexts also where the engine caches no prefixes."""
        before = [getattr(manager, "enable_caching", None) for manager in self._managers]
        for manager in self._managers:
            manager.enable_caching = True
        try:
            yield
        finally:
            for manager, caching in zip(self._managers, before, strict=True):
                manager.enable_caching = caching

    # What is watched.

    def _watch(self) -> None:
        """Put timed calls in the place of three of the core's."""
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        schedule, update = scheduler.schedule, scheduler.update_from_output
        computed_blocks = manager.get_computed_blocks

        def timed_schedule(*args: Any, **options: Any) -> Any:
            start_s = self.now_s
            plan = schedule(*args, **options)
            step = Step(self.run, start_s, self.now_s, None, None)
            self._count(step, plan)
            if plan.total_num_scheduled_tokens:
                self.steps.append(step)
                self._in_flight[id(plan)] = step
            return plan

        def timed_update(plan: Any, output: Any) -> Any:
            step, read_s = self._in_flight.pop(id(plan), None), self.now_s
            outputs = update(plan, output)
            if step is not None:
                step.t_out, step.t_upd_end = read_s, self.now_s
            return outputs

        def given_blocks(request: Any) -> Any:
            given = self._given_tokens.get(request.request_id)
            return computed_blocks(request) if given is None else self._give(given)

        scheduler.schedule = timed_schedule
        scheduler.update_from_output = timed_update
        manager.get_computed_blocks = given_blocks

    def _count(self, step: Step, plan: Any) -> None:
        """Count what a plan holds: a request with its whole prompt computed decodes."""
        tokens = plan.num_scheduled_tokens
        cached = plan.scheduled_cached_reqs
        planned = [(r.req_id, r.num_computed_tokens) for r in plan.scheduled_new_reqs]
        planned += zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        for request_id, context in planned:
            new = tokens[request_id]
            if new == 1 and context >= self._prompt_tokens.get(request_id, 0):
                step.decode_seqs += 1
                step.ctx_decode_sum += context
            else:
                step.prefill_tokens += new
                step.prefill_reqs += 1
                step.ctx_prefill_start_sum += context
                step.attn_pairs_prefill += new * context + new * (new + 1) // 2
        step.running, step.waiting = self._scheduler.get_request_counts()
        step.preempted = len(plan.preempted_req_ids or ())
        step.free_blocks = self._pool.get_num_free_blocks()

    def _give(self, tokens: int) -> tuple[Any, int]:
        """Return free blocks as if they held the first ``tokens`` of a request, and how many.

        Only whole blocks of every kind of layer can be given where prefixes are cached. Outside a
        window there is the null block.
        """
        if self._pool.enable_caching:
            tokens -= tokens % math.lcm(*(m.block_size for m in self._managers))
        block = self._pool.free_block_queue.fake_free_list_head.next_free_block
        groups = []
        for manager in self._managers:
            holds_state = "Mamba" in type(manager).__name__
            size = manager.block_size
            count = tokens // size if holds_state else -(-tokens // size)
            skipped = min(count, max(0, manager.get_num_skipped_tokens(tokens)) // size)
            blocks = []
            for _ in range(count - skipped):
                blocks.append(block)
                block = block.next_free_block
            if self._pool.enable_caching:
                for given in blocks:
                    self._pool._maybe_evict_cached_block(given)
            groups.append([self._pool.null_block] * skipped + blocks)
        manager = self._scheduler.kv_cache_manager
        return manager.create_kv_cache_blocks(tuple(groups)), tokens
