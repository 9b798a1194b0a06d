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
from sim.engine.api_server import ApiServer
from sim.engine.batch import standing_plan
from sim.engine.config import EngineConfig
from sim.engine.features import own_features
from sim.engine.jump import Jumping, jump_times, steps_to_jump, until_ns
from sim.engine.lifecycle import Lifecycle
from sim.engine.pipeline import launch_step
from sim.engine.step import UNTIL_CHANGE, InFlight, Plan
from sim.engine.view import EngineView, Feature, Scheduler
from sim.engine.waiting import FifoQueue, WaitingQueue
from sim.errors import PolicyError
from sim.kv.pool import KVCache
from sim.protocols import ReplicaLoad, StepCost, StepPrice
from sim.recorder import DecodeLog, RequestLog
from sim.request import Request
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
    ) -> None:
        """``on_leave`` is called with every request that finishes or is rejected."""
        self.replica = replica
        self._env = env
        self._cost = cost
        self._requests = request_log
        self.lifecycle = Lifecycle(request_log, on_leave, replica)
        self._features = own_features(config, kv)
        if config.api_server is not None:
            api = ApiServer(env, config.api_server, self.lifecycle, request_log, on_leave)
            self._features.append(api)
        self._depth = 2 if config.async_scheduling else 1
        self.is_up = True
        self._gpu_free_ns = 0
        self.prefill_tokens = self.prefill_ns = 0
        """Prompt tokens computed so far, and the GPU time of the steps that computed them."""
        self._start(config, kv, scheduler, waiting)
        self.steps = self._new_log()

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
        self._scheduler = scheduler
        self._heat = Heat(self._cost.throttle)
        self.lifecycle.start(self.view)
        for feature in self._features:
            feature.start(self.view, self._wake)
        self._in_flight: deque[InFlight] = deque()
        self._idle: Alarm | None = None
        self._plan_stands = False
        self.jumping = Jumping(self._env, self.replica, self.view, self.lifecycle)
        self._process = self._env.process(self.run())

    def _new_log(self) -> StepLog:
        config = self.view.config
        return StepLog(
            config.clip_tokens,
            speculates=config.speculation is not None,
            feature_columns=tuple(self.view.hooks.shape_columns),
        )

    def add(self, feature: Feature) -> None:
        """Give the engine one more feature, before anything arrives."""
        self._features.append(feature)
        feature.start(self.view, self._wake)
        self.steps = self._new_log()

    def submit(self, request: Request) -> None:
        """Take an arriving request; the next scheduler call sees it."""
        if self.lifecycle.submit(request, self._env.now_ns):
            self._wake()

    @property
    def cost(self) -> StepCost:
        """What prices the engine's steps at present."""
        return self._cost

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
        first_ns = self.jumping.first_token_ns(request)
        return self._requests.first_token_ns[request.index] if first_ns is None else first_ns

    @property
    def free_blocks(self) -> int:
        """Number of free KV blocks at this instant, also in the middle of a jump."""
        return self.view.kv.free_blocks - self.jumping.untaken_blocks

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
        self.jumping.catch_up()
        for crashed in self.view.hooks.crashed:
            crashed()
        self.close()
        self._gpu_free_ns = self.jumping.abandon(self._gpu_free_ns)
        unread = self.steps.num_steps - self.steps.num_visible
        self.steps.add_visible([self._env.now_ns] * unread)
        self._process.target.callbacks.clear()
        self._idle = None
        self.is_up = False
        self.view.kv.lose_all()
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
        else:
            self.jumping.cut()

    def run(self) -> Process:
        """The SimPy process: each round is one scheduler call."""
        view = self.view
        while True:
            now_ns = view.now_ns = self._env.now_ns
            if self.lifecycle.receive(self._in_flight, self.steps.num_rows, now_ns):
                self._plan_stands = False
            if view.running or view.waiting:
                plan = (self._plan_stands and standing_plan(view)) or self.schedule()
                # a jump is a fast path: `_step` alone gives the same times
                steps = steps_to_jump(view, self.lifecycle, self._in_flight, plan)
                yield from self._jump(plan, steps) if steps > 1 else self._step(plan)
            elif self._in_flight:
                yield from self._read_oldest(self._env.now_ns)
            else:
                self._idle = Alarm(self._env, self.replica)
                yield self._idle

    @property
    def _is_drained(self) -> bool:
        """Whether no launched step has an output to be read."""
        return all(batch.is_empty for batch in self._in_flight)

    def schedule(self) -> Plan:
        """Call the scheduler once and record which requests it admitted and preempted."""
        view = self.view
        for before_plan in view.hooks.before_plan:
            before_plan()
        plan = self._scheduler(view)
        self._plan_stands = False
        self.steps.plans += 1
        self.lifecycle.note_changes(self.steps.num_rows)
        return plan

    def _step(self, plan: Plan) -> Process:
        """Launch one step; read the oldest in flight once the pipeline is full.

        An empty plan (all running requests have their last token in flight) costs the host a
        scheduler call; it takes a place in the pipeline but leaves no row in the log.
        """
        now_ns = self.view.now_ns
        if plan.shape.num_tokens:
            launched_ns, batch = self._launch(plan)
        elif self._is_drained and not plan.preempted:
            yield from self._await_blocks()
            return
        else:
            launched_ns = now_ns + self._cost.schedule_ns(self.view.num_running)
            batch = InFlight(launched_ns, self._cost.update_ns(0), -1, is_empty=True)
        self._in_flight.append(batch)
        if len(self._in_flight) < self._depth and not batch.is_empty:
            yield Alarm(self._env, self.replica).ring(launched_ns - now_ns)
        else:
            yield from self._read_oldest(launched_ns)

    def _launch(self, plan: Plan) -> tuple[int, InFlight]:
        """Launch a step and book what it computes; return when the host is free again."""
        view, shape, hooks = self.view, plan.shape, self.view.hooks
        now_ns, schedule_ns = view.now_ns, self._cost.schedule_ns(view.num_running)
        for host_ns in hooks.host_ns:
            schedule_ns += host_ns(plan, self.steps)
        price = self._cost.price(shape, self._draw(plan))
        wait_ns = self._wait_ns(plan, price, now_ns + schedule_ns) if hooks.wait_ns else 0
        launched_ns, end_ns, gpu_ns = launch_step(
            now_ns, self._gpu_free_ns, schedule_ns, price, self._heat, wait_ns
        )
        update_ns = self._cost.update_ns(shape.decode_seqs + shape.prefill_seqs)
        batch = InFlight(end_ns, update_ns, self.steps.num_rows)
        if view.api_server is not None:
            batch.parts = shape.logits - shape.draft_tokens
        self._gpu_free_ns = end_ns
        state = (view.num_running, view.num_waiting, view.kv.free_blocks, plan.preempted)
        self.steps.append(1, now_ns, end_ns, gpu_ns, shape, *state)
        self.lifecycle.commit(plan, batch)
        if plan.prefills:
            self.prefill_tokens += shape.prefill_tokens
            self.prefill_ns += gpu_ns
        for launched in hooks.launched:
            launched(plan, end_ns - gpu_ns, end_ns)
        return launched_ns, batch

    def _wait_ns(self, plan: Plan, price: StepPrice, scheduled_ns: int) -> int:
        """Return how long the step's kernels wait for what features must move first."""
        start_ns = max(self._gpu_free_ns, scheduled_ns + price.launch_delay_ns)
        wait_ns = 0
        for wait in self.view.hooks.wait_ns:
            wait_ns += wait(plan, start_ns + wait_ns, price.gpu_ns, self.steps)
        return wait_ns

    def _await_blocks(self) -> Process:
        """Sleep until KV that is being transferred arrives or leaves; it holds the missing
        blocks. Raises PolicyError if there is none: the run would never end."""
        view = self.view
        if not any(place.in_transit for place in view.hooks.places):
            raise PolicyError(
                f"at {to_s(view.now_ns):.6f} s the scheduler planned nothing although "
                f"{len(view.running)} requests run, {view.num_waiting} wait and no step is "
                "in flight; the run would never end"
            )
        self._in_flight.clear()
        self._idle = Alarm(self._env, self.replica)
        yield self._idle

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
        look_ns = until_ns(plan, view)
        if look_ns is not None:
            steps = min(steps, times.first_plan_from(look_ns))

        yield self.jumping.begin(plan, steps, run, times, before).alarm

        self._plan_stands = plan.repeat >= UNTIL_CHANGE and plan.until_ns is None
        steps = self.jumping.end(self.steps)
        batch = InFlight(times.gpu_end_ns(steps), update_ns, self.steps.num_rows - 1)
        if self.view.api_server is not None:
            batch.parts = plan.shape.logits - plan.shape.draft_tokens
            batch.sent_ns = self.view.api_server.sent_ns  # read already, if it was not overlapped
        self._gpu_free_ns = batch.gpu_end_ns
        self.lifecycle.leave_group(group.advance(steps), batch)
        if before is None:
            self.lifecycle.end(batch, self._env.now_ns)
        else:
            self._in_flight.append(batch)

    def close(self) -> None:
        """Log the finished part of a jump that the end of the simulation cuts."""
        self.jumping.close(self.steps)

    def _read_oldest(self, host_free_ns: int) -> Process:
        """Block on the oldest step in flight and make its tokens visible."""
        batch = self._in_flight.popleft()
        visible_ns = max(host_free_ns, batch.gpu_end_ns) + batch.update_ns
        yield Alarm(self._env, self.replica).ring(visible_ns - self._env.now_ns)
        if not batch.is_empty:
            api_server, sent_ns = self.view.api_server, visible_ns
            if api_server is not None:
                batch.sent_ns = sent_ns = api_server.send(batch.parts, visible_ns)
            self.steps.add_visible([sent_ns])
            self.lifecycle.read_first_tokens(batch, visible_ns)
            self.lifecycle.end(batch, visible_ns)
