"""One serving engine: plan a step, run it on two clocks, read its tokens. A SimPy process.

How a token comes to be: `Engine.run` takes in arrivals and asks the scheduler for a plan. `_step`
books what the plan computes (`sim.engine.lifecycle`), launches it and, once two steps are in
flight, waits for the older one, whose tokens `_read_oldest` makes visible. A plan that may be
repeated unchanged is jumped over instead (`_jump`); a jump gives exactly the times that stepping
gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

import simpy

from sim.clock import Alarm, Clock, to_s
from sim.draws import uniform
from sim.engine.batch import UNTIL_CHANGE, Plan
from sim.engine.config import EngineConfig
from sim.engine.jump import Jump, jump_times, steps_to_jump, until_ns
from sim.engine.lifecycle import Lifecycle
from sim.engine.loading import LoadingKV, prefill_ns
from sim.engine.pipeline import InFlight, launch_step
from sim.engine.view import EngineView, Scheduler
from sim.engine.waiting import FifoQueue, WaitingQueue
from sim.errors import PolicyError
from sim.kv.pool import KVCache
from sim.kv.tiers import Tiers
from sim.protocols import ReplicaLoad, StepCost, StepPrice
from sim.recorder import DecodeLog, RequestLog
from sim.request import Request
from sim.shape import SharedSums, StepShape, chunk_shape
from sim.step_log import StepLog
from sim.throttle import Heat

Process = Generator[simpy.Event, None, None]


class Engine:
    """Serves the requests submitted to it until the simulation ends."""

    def __init__(
        self,
        env: Clock,
        config: EngineConfig,
        cost: StepCost,
        scheduler: Scheduler,
        kv: KVCache,
        request_log: RequestLog | DecodeLog,
        *,
        waiting: WaitingQueue | None = None,
        replica: int = 0,
        on_leave: Callable[[Request], None] = lambda request: None,
        tiers: Tiers | None = None,
    ) -> None:
        """``on_leave`` is called with every request that finishes or is rejected. ``tiers``: KV
        content below device memory."""
        self.replica = replica
        self._env = env
        self._cost = cost
        self._requests = request_log
        self.lifecycle = Lifecycle(request_log, on_leave, replica, self._wake)
        self._shares_output = kv.shares_output
        self._depth = 2 if config.async_scheduling else 1
        self.is_up = True
        self.on_crash: Callable[[Engine], None] | None = None
        self._gpu_free_ns = 0
        self._tiers = tiers
        if tiers is not None:
            kv.set_over(tiers)
            tiers.prefill_ns = lambda r, tokens: prefill_ns(self._cost, self.view.config, r, tokens)
        self.prefill_tokens = self.prefill_ns = 0
        """Prompt tokens computed so far, and the GPU time of the steps that computed them."""
        self._start(config, kv, scheduler, waiting)
        self.steps = StepLog(
            config.clip_tokens,
            shares_prefixes=self.view.follows_prefixes,
            speculates=config.speculation is not None,
        )

    def _start(
        self,
        config: EngineConfig,
        kv: KVCache,
        scheduler: Scheduler,
        waiting: WaitingQueue | None,
    ) -> None:
        """Start a process with empty queues."""
        self.view = EngineView(config, kv, FifoQueue() if waiting is None else waiting)
        attach = getattr(scheduler, "attach", None)
        if attach is not None:
            attach(self.view)
        if self._tiers is not None:
            view = self.view
            view.loading = LoadingKV(
                self._env, view.kv, view.waiting, self._tiers, self._requests, self._wake
            )
        self._scheduler = scheduler
        self._heat = Heat(self._cost.throttle)
        self.lifecycle.start(self.view)
        self._in_flight: deque[InFlight] = deque()
        self._idle: Alarm | None = None
        self._plan_stands = False
        self._jumping: Jump | None = None
        self._process = self._env.process(self.run())

    def submit(self, request: Request) -> None:
        """Take an arriving request; the next scheduler call sees it."""
        if self.lifecycle.submit(request, self._now_ns):
            self._wake()

    def prefill_ns_alone(self, context_tokens: int, tokens: int) -> int:
        """Return the GPU time of a step that computes one chunk of one prompt."""
        shape = chunk_shape(context_tokens, tokens, self.view.config.clip_tokens)
        if self.view.follows_prefixes:
            shape = shape._replace(shared=SharedSums())
        return self._cost.price(shape).gpu_ns

    @property
    def gpu_free_ns(self) -> int:
        """Time at which everything launched so far has been computed."""
        return self._gpu_free_ns

    def cancel(self, request: Request) -> None:
        """Remove a request at the next plan, wherever it is; `on_leave` is not called.

        Nothing more is recorded of it, not even the outputs of steps in flight.
        """
        self._requests.first_token_ns[request.index] = self.first_token_ns(request)
        self.lifecycle.cancel(request, self._in_flight)
        self._wake()

    def disown(self, request: Request) -> None:
        """Serve a request to its end although its client gave up; nothing more is recorded of
        it."""
        self._requests.first_token_ns[request.index] = self.first_token_ns(request)
        self.lifecycle.disown(request, self._in_flight)

    def first_token_ns(self, request: Request) -> int:
        """Return when the first token of a request became visible; -1 if it has not before this
        instant."""
        jump = self._jumping
        if jump is not None and jump.before is not None and request in jump.before.first_tokens:
            first_ns = jump.times.plan_ns(1)
            return first_ns if first_ns < self._now_ns else -1
        return self._requests.first_token_ns[request.index]

    @property
    def free_blocks(self) -> int:
        """Number of free KV blocks at this instant, also in the middle of a jump."""
        free, jump = self.view.kv.free_blocks, self._jumping
        if jump is None:
            return free
        steps = jump.planned(self._now_ns, self._env.acting)
        return free - jump.blocks_untaken(self.view.decode_group, steps)

    def catch_up(self) -> None:
        """In the middle of a jump, evict what its steps so far evict, so that cache watchers
        know."""
        jump, kv = self._jumping, self.view.kv
        if jump is not None and kv.watched is not None:
            steps = jump.planned(self._now_ns, self._env.acting)
            jump.take(kv, self.view.decode_group, steps)

    @property
    def is_empty(self) -> bool:
        """Whether no request is in the engine, and none is on its way to or from it."""
        return self.lifecycle.is_empty and self._is_drained

    def set_cost(self, cost: StepCost) -> None:
        """Replace the step cost, from the next plan on."""
        self._cost = cost
        self._wake()

    def crash(self) -> None:
        """Lose the process and everything it held; steps in flight end unread."""
        self.catch_up()
        if self.on_crash is not None:
            self.on_crash(self)
        self.close()
        if self._jumping is not None:
            jump, now_ns = self._jumping, self._now_ns
            self._gpu_free_ns = jump.times.gpu_end_ns(jump.times.first_plan_from(now_ns))
            jump.alarm.void()
            if jump.leaving is not None:
                jump.leaving.void()
        unread = self.steps.num_steps - self.steps.num_visible
        self.steps.add_visible([self._now_ns] * unread)
        self._process.target.callbacks.clear()
        self._idle = self._jumping = None
        self.is_up = False
        self.view.kv.lose_all()
        if self.view.loading is not None:
            self.view.loading.void()
        if self.lifecycle.on_load is not None:
            self.lifecycle.on_load(ReplicaLoad(0, 0))

    def restart(self, scheduler: Scheduler, waiting: WaitingQueue | None) -> None:
        """Start a new process after a crash, with an empty cache."""
        self.is_up = True
        self._start(self.view.config, self.view.kv, scheduler, waiting)
        self.lifecycle.publish_load()

    def _wake(self) -> None:
        """React to a change from outside at the next plan."""
        if self._idle is not None:
            self._idle.ring()
            self._idle = None
        elif self._jumping is not None:
            alarm = Alarm(self._env, self.replica)
            self._jumping.cut(alarm, self._now_ns, self._env.acting)

    def run(self) -> Process:
        """The SimPy process: each round is one scheduler call."""
        view = self.view
        while True:
            now_ns = view.now_ns = self._now_ns
            if view.kv.lifetime_ns is not None:
                view.kv.expire()
            if self.lifecycle.receive(self._in_flight, self.steps.num_rows, now_ns):
                self._plan_stands = False
            if view.running or view.waiting:
                plan = self._standing_plan() or self.schedule()
                # a jump is a fast path: `_step` alone gives the same times
                steps = steps_to_jump(view, self.lifecycle, self._in_flight, plan)
                yield from self._jump(plan, steps) if steps > 1 else self._step(plan)
            elif self._in_flight:
                yield from self._read_oldest(self._now_ns)
            else:
                self._idle = Alarm(self._env, self.replica)
                yield self._idle

    @property
    def _now_ns(self) -> int:
        return self._env.now  # type: ignore[return-value]  # an int: it starts at one

    @property
    def _is_drained(self) -> bool:
        """Whether no launched step has an output to be read."""
        return all(batch.is_empty for batch in self._in_flight)

    def schedule(self) -> Plan:
        """Call the scheduler once and record which requests it admitted and preempted."""
        view = self.view
        if self._shares_output and view.waiting:
            # blocks filled since the last lookup can be hit now
            for request in view.decode_group.members:
                view.kv.register(request, view.hashed_tokens(request))
                if view.decode_group.prefixes is not None:
                    view.decode_group.prefixes.follow(request)
        plan = self._scheduler(view)
        self._plan_stands = False
        self.steps.plans += 1
        self.lifecycle.note_changes(self.steps.num_rows)
        return plan

    def _standing_plan(self) -> Plan | None:
        """Return a plan of all decodes if the scheduler promised to choose exactly that, else
        None."""
        view, group = self.view, self.view.decode_group
        if not self._plan_stands or view.waiting or view.prefilling or not group.members:
            return None
        group.begin_step()
        due, seqs = group.blocks_due(1), group.num_seqs
        tokens = seqs * group.tokens_per_seq
        if due > view.kv.free_blocks or tokens > view.config.step_token_limit:
            return None
        view.kv.take(due)
        shape = StepShape(seqs, group.context_tokens, logits=seqs)
        if view.config.clip_tokens:
            sums = group.clipped_sums()
            clipped = (number for decoding in sums for number in (*decoding, 0, 0))
            shape = shape._replace(clipped=tuple(clipped))
        if view.follows_prefixes:
            shape = shape._replace(shared=view.shared_sums(seqs))
        shape = group.with_drafts(shape, [])
        return Plan(shape, [], [], True, UNTIL_CHANGE, None, 0)

    def _step(self, plan: Plan) -> Process:
        """Launch one step; read the oldest in flight once the pipeline is full.

        An empty plan (all running requests have their last token in flight) costs the host a
        scheduler call; it takes a place in the pipeline but leaves no row in the log.
        """
        view = self.view
        now_ns = view.now_ns
        schedule_ns = self._cost.schedule_ns(view.num_running)
        shape = plan.shape
        if not shape.num_tokens:
            is_stuck = not plan.preempted and self._is_drained
            if is_stuck and self.lifecycle.any_kv_elsewhere:
                # KV that is still being transferred holds the missing blocks
                self._in_flight.clear()
                self._idle = Alarm(self._env, self.replica)
                yield self._idle
                return
            if is_stuck:
                raise PolicyError(
                    f"at {to_s(now_ns):.6f} s the scheduler planned nothing although "
                    f"{len(view.running)} requests run, {len(view.waiting)} wait and no step is "
                    "in flight; the run would never end"
                )
            launched_ns = now_ns + schedule_ns
            batch = InFlight(launched_ns, self._cost.update_ns(0), -1, is_empty=True)
        else:
            price = self._cost.price(shape, self._draw(plan))
            swap_ns = self._swap_ns() if view.blocks_swapped else 0
            if plan.prefills and view.loading is not None and view.loading.due:
                swap_ns += self._stall_ns(now_ns + schedule_ns, price, swap_ns)
            launched_ns, end_ns, gpu_ns = launch_step(
                now_ns, self._gpu_free_ns, schedule_ns, price, self._heat, swap_ns
            )
            update_ns = self._cost.update_ns(shape.decode_seqs + shape.prefill_seqs)
            batch = InFlight(end_ns, update_ns, self.steps.num_rows)
            self._gpu_free_ns = end_ns
            state = (view.num_running, len(view.waiting), view.kv.free_blocks, plan.preempted)
            self.steps.append(1, now_ns, end_ns, gpu_ns, shape, *state)
            self.lifecycle.commit(plan, batch)
            if plan.prefills:
                self.prefill_tokens += shape.prefill_tokens
                self.prefill_ns += gpu_ns
            if self.lifecycle.hand_over is not None:
                for request, _ in plan.prefills:
                    self.lifecycle.hand_over.computed(
                        request, self.replica, end_ns - gpu_ns, end_ns
                    )
        self._in_flight.append(batch)
        if len(self._in_flight) < self._depth and not batch.is_empty:
            yield Alarm(self._env, self.replica).ring(launched_ns - now_ns)
        else:
            yield from self._read_oldest(launched_ns)

    def _swap_ns(self) -> int:
        """Return the time to move swapped blocks before the next logged step, and log it."""
        view = self.view
        swap_ns = round(view.blocks_swapped * view.config.swap_ns_per_block)
        self.steps.swaps.append((self.steps.num_rows, view.blocks_swapped, swap_ns))
        view.blocks_swapped = 0
        return swap_ns

    def _stall_ns(self, scheduled_ns: int, price: StepPrice, swap_ns: int) -> int:
        """Return how long the next logged step waits for layers that are being loaded, and log
        it."""
        assert self.view.loading is not None
        start_ns = max(self._gpu_free_ns, scheduled_ns + price.launch_delay_ns) + swap_ns
        stall_ns = self.view.loading.stall_ns(start_ns, price.gpu_ns)
        self.steps.stalls.append((self.steps.num_rows, stall_ns))
        return stall_ns

    def _draw(self, plan: Plan) -> float | None:
        """Return the quantile of the host's launch time, drawn from the step's first prefill, so
        that compared scenarios see the same launch times."""
        if not plan.prefills:
            return None
        request = plan.prefills[0][0]
        return uniform(self.view.config.seed, request.index, request.num_computed_tokens)

    def _jump(self, plan: Plan, steps: int) -> Process:
        """Run up to ``steps`` equal decode steps at once; an arrival cuts the run at a plan."""
        view, group = self.view, self.view.decode_group
        run = group.price(self._cost, plan.shape, steps)
        update_ns = self._cost.update_ns(group.num_seqs)
        before = self._in_flight.popleft() if self._in_flight else None
        times = jump_times(self._cost, view, before, self._gpu_free_ns, run, update_ns)
        leaving: Alarm | None = None
        if before is not None and before.finishing:  # they leave at the run's second plan
            leaving = Alarm(self._env, self.replica).ring(times.plan_ns(1) - view.now_ns)
            leaving.callbacks.append(lambda _: self.lifecycle.end(before, self._now_ns))
        look_ns = until_ns(plan, view)
        if look_ns is not None:
            steps = min(steps, times.first_plan_from(look_ns))

        state = (view.num_running, len(view.waiting), view.kv.free_blocks)
        alarm = Alarm(self._env, self.replica).ring(times.plan_ns(steps) - view.now_ns)
        jump = self._jumping = Jump(plan.shape, run, times, before, state, alarm, steps, leaving)
        yield alarm
        self._jumping = None

        self._plan_stands = plan.repeat >= UNTIL_CHANGE and plan.until_ns is None
        steps = jump.steps
        batch = InFlight(times.gpu_end_ns(steps), update_ns, self.steps.num_rows)
        self._gpu_free_ns = batch.gpu_end_ns
        self._log_jump(jump, steps, steps)
        jump.take(view.kv, group, steps)
        self.lifecycle.leave_group(group.advance(steps), batch)
        if before is None:
            self.lifecycle.end(batch, self._now_ns)
        else:
            self._in_flight.append(batch)

    def close(self) -> None:
        """Log the finished part of a jump that the end of the simulation cuts."""
        if self._jumping is not None:
            steps = self._jumping.times.first_plan_from(self._now_ns)
            self._log_jump(self._jumping, steps, steps - 1)

    def _log_jump(self, jump: Jump, steps: int, num_visible: int) -> None:
        jump.log(self.steps, self.view.decode_group, steps, num_visible)
        if jump.before is not None and num_visible:
            self.lifecycle.read_first_tokens(jump.before, jump.times.plan_ns(1))

    def _read_oldest(self, host_free_ns: int) -> Process:
        """Block on the oldest step in flight and make its tokens visible."""
        batch = self._in_flight.popleft()
        visible_ns = max(host_free_ns, batch.gpu_end_ns) + batch.update_ns
        yield Alarm(self._env, self.replica).ring(visible_ns - self._now_ns)
        if not batch.is_empty:
            self.steps.add_visible([visible_ns])
            self.lifecycle.read_first_tokens(batch, visible_ns)
            self.lifecycle.end(batch, visible_ns)
