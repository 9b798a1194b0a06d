"""Runs of equal decode steps that an engine jumps over: their length and their times.

A jump gives exactly the times that stepping gives. It ends after its last step, or at the first
plan after something arrives from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.clock import Alarm, Clock
from sim.engine.api_server import ApiServer
from sim.engine.decode_group import DecodeGroup
from sim.engine.hooks import any_of
from sim.engine.lifecycle import Lifecycle
from sim.engine.pipeline import RunTimes, run_async, run_sync
from sim.engine.speculative_group import SpeculativeGroup
from sim.engine.step import InFlight, Plan
from sim.engine.view import EngineView
from sim.kv.pool import KVCache
from sim.protocols import DecodeRun, StepCost
from sim.request import Request
from sim.shape import StepShape
from sim.step_log import StepLog

Group = DecodeGroup | SpeculativeGroup

_LONGEST_STEPS = 1024  # bounds the work spent on a jump that an arrival may cut short


@dataclass(slots=True)
class Jump:
    """A run of equal steps that is under way."""

    shape: StepShape
    """Shape of the first step."""
    run: DecodeRun
    times: RunTimes
    before: InFlight | None
    """The step in flight when the run began, read during the run; None without async scheduling."""
    state: tuple[int, int, int]
    """Running requests, waiting requests and free blocks at the first plan."""
    alarm: Alarm
    """Wakes the engine when the step after the run would be planned."""
    steps: int
    """Number of steps of the run, as far as is known."""
    leaving: Alarm | None
    """Ends the requests that the step before finishes, if there are any."""
    api_server: ApiServer | None
    taken_steps: int = 1
    """Steps whose KV blocks are taken already; the plan took those of the first step."""

    def cut(self, alarm: Alarm, now_ns: int, acting: int) -> None:
        """End the run at its next plan from ``now_ns`` on, because something arrived."""
        steps = self.planned(now_ns, acting)
        if steps < self.steps:
            self.steps = steps
            alarm.ring(self.times.plan_ns(steps) - now_ns)
            alarm.take_over(self.alarm)
            self.alarm = alarm

    def planned(self, now_ns: int, acting: int) -> int:
        """Return the steps that stepping would have planned before the event that is being
        processed, which has priority ``acting`` in its instant."""
        steps = self.times.first_plan_from(now_ns)
        if steps >= self.steps:
            return self.steps
        comes_now = self.times.plan_ns(steps) == now_ns
        return steps + (comes_now and acting > self.alarm.priority)

    def blocks_untaken(self, group: Group, steps: int) -> int:
        """Return the blocks that the first ``steps`` steps need beyond those taken already."""
        return group.blocks_due(steps) - group.blocks_due(self.taken_steps)

    def take(self, kv: KVCache, group: Group, steps: int) -> None:
        """Take the blocks of the first ``steps`` steps."""
        if kv.watched == "deferred_timed":
            for step in range(self.taken_steps, steps):
                due = self.blocks_untaken(group, step + 1)
                if due > 0:
                    kv.evicting_ns = self.times.plan_ns(step)
                    kv.take(due)
                    self.taken_steps = step + 1
            kv.evicting_ns = None
        else:
            kv.take(self.blocks_untaken(group, steps))
        self.taken_steps = max(steps, self.taken_steps)

    def log(self, log: StepLog, group: Group, steps: int, num_visible: int) -> None:
        """Log the run: ``steps`` steps planned, the outputs of ``num_visible`` visible."""
        plan_ns, end_ns = self.times.plan_ns(0), self.times.gpu_end_ns(steps)
        busy_ns = self.run.gpu_cumulative_ns[steps - 1]
        shape = group.run_shape(self.shape, steps)
        log.append(steps, plan_ns, end_ns, busy_ns, shape, *self.state, 0)
        log.add_visible(self._sent_ns(self.times.visible_ns(num_visible)))

    def _sent_ns(self, visible_ns: list[int]) -> list[int]:
        """Return when clients have what was read at these times; without an API server, then."""
        if self.api_server is None or not visible_ns:
            return visible_ns
        parts = self.shape.logits - self.shape.draft_tokens
        if self.before is None:
            return self.api_server.send_run(parts, visible_ns)
        return [self.before.sent_ns, *self.api_server.send_run(parts, visible_ns[1:])]


class Jumping:
    """The jump of one engine process that is under way, if there is one, as others see it.

    In the middle of a jump the engine's own state is that of its first plan: what its steps so far
    have taken and made visible is worked out when it is asked for.
    """

    def __init__(self, env: Clock, replica: int, view: EngineView, lifecycle: Lifecycle) -> None:
        self._env = env
        self._replica = replica
        self._view = view
        self._lifecycle = lifecycle
        self.current: Jump | None = None

    def begin(
        self, plan: Plan, steps: int, run: DecodeRun, times: RunTimes, before: InFlight | None
    ) -> Jump:
        """Start a run of ``steps`` steps; its alarm rings when the step after it would be planned.

        ``before`` is the step in flight, which is read at the run's second plan.
        """
        env, view = self._env, self._view
        leaving: Alarm | None = None
        if before is not None and view.api_server is not None:
            # it is read at the second plan, whatever arrives
            before.sent_ns = view.api_server.send(before.parts, times.plan_ns(1))
        if before is not None and before.finishing:
            leaving = Alarm(env, self._replica).ring(times.plan_ns(1) - view.now_ns)
            leaving.callbacks.append(lambda _: self._lifecycle.end(before, env.now_ns))
        state = (view.num_running, view.num_waiting, view.kv.free_blocks)
        alarm = Alarm(env, self._replica).ring(times.plan_ns(steps) - view.now_ns)
        self.current = Jump(
            plan.shape, run, times, before, state, alarm, steps, leaving, view.api_server
        )
        return self.current

    def end(self, log: StepLog) -> int:
        """Log the jump whose alarm has rung, and take its blocks; return its number of steps."""
        jump, view = self.current, self._view
        assert jump is not None
        self.current = None
        self._log(jump, log, jump.steps, jump.steps)
        jump.take(view.kv, view.decode_group, jump.steps)
        return jump.steps

    def cut(self) -> None:
        """End the run at its next plan, because something arrived."""
        if self.current is not None:
            alarm = Alarm(self._env, self._replica)
            self.current.cut(alarm, self._env.now_ns, self._env.acting)

    def close(self, log: StepLog) -> None:
        """Log the finished part of a jump that the end of the simulation, or a crash, cuts."""
        if self.current is not None:
            steps = self.current.times.first_plan_from(self._env.now_ns)
            self._log(self.current, log, steps, steps - 1)

    def abandon(self, gpu_free_ns: int) -> int:
        """Wake nothing more; return when the GPU has computed what was launched, which is
        ``gpu_free_ns`` without a jump."""
        jump, self.current = self.current, None
        if jump is None:
            return gpu_free_ns
        jump.alarm.void()
        if jump.leaving is not None:
            jump.leaving.void()
        return jump.times.gpu_end_ns(jump.times.first_plan_from(self._env.now_ns))

    def first_token_ns(self, request: Request) -> int | None:
        """Return when the jump makes the first token of a request visible, -1 if not before this
        instant; None if it does not."""
        jump = self.current
        if jump is None or jump.before is None or request not in jump.before.first_tokens:
            return None
        first_ns = jump.times.plan_ns(1)
        return first_ns if first_ns < self._env.now_ns else -1

    @property
    def untaken_blocks(self) -> int:
        """Blocks that the steps so far have needed, and that the pool still counts as free."""
        if self.current is None:
            return 0
        return self.current.blocks_untaken(self._view.decode_group, self._planned(self.current))

    def catch_up(self) -> None:
        """Evict what the steps so far evict, so that cache watchers know."""
        jump, view = self.current, self._view
        if jump is not None and view.kv.watched is not None:
            jump.take(view.kv, view.decode_group, self._planned(jump))

    def _planned(self, jump: Jump) -> int:
        return jump.planned(self._env.now_ns, self._env.acting)

    def _log(self, jump: Jump, log: StepLog, steps: int, num_visible: int) -> None:
        jump.log(log, self._view.decode_group, steps, num_visible)
        if jump.before is not None and num_visible:
            self._lifecycle.read_first_tokens(jump.before, jump.times.plan_ns(1))


def steps_to_jump(
    view: EngineView, lifecycle: Lifecycle, in_flight: Sequence[InFlight], plan: Plan
) -> int:
    """Return how many steps a plan can be repeated before anything the engine knows of changes."""
    config, group = view.config, view.decode_group
    oldest = in_flight[0] if in_flight else None
    depth = 2 if config.async_scheduling else 1
    if (
        plan.repeat <= 1
        or plan.preempted  # the next step may admit again
        or plan.prefills
        or plan.held_back
        or not plan.decodes
        or (view.hooks.must_step and any_of(view.hooks.must_step))
        or not config.fast_forward
        or len(in_flight) != depth - 1
        or (oldest is not None and _ends_plan(oldest, view, lifecycle))
        or (view.waiting and view.kv.shares_output)
    ):
        return 1
    unchanged = min(group.steps_to_leave(), group.steps_to_cross())
    steps = min(plan.repeat, unchanged, _LONGEST_STEPS)
    # A watcher that is told of each eviction immediately cannot be told in the middle of a jump.
    room = view.kv.empty_blocks if view.kv.tells_at_once else view.kv.free_blocks
    return group.steps_within(room + group.blocks_due(1), steps)


def _ends_plan(oldest: InFlight, view: EngineView, lifecycle: Lifecycle) -> bool:
    """Whether reading a step may change what is planned next."""
    if oldest.is_empty:
        return True
    # The prefix common to all running requests may grow once one of them has left.
    is_cascade = view.config.shared_prefix_attention == "cascade"
    return bool(oldest.finishing) and (is_cascade or lifecycle.any_waiting)


def jump_times(
    cost: StepCost,
    view: EngineView,
    before: InFlight | None,
    gpu_free_ns: int,
    run: DecodeRun,
    update_ns: int,
) -> RunTimes:
    """Return when the steps of a run planned now are planned, end and become visible."""
    schedule_ns = cost.schedule_ns(view.num_running)
    if before is None:
        return run_sync(view.now_ns, gpu_free_ns, schedule_ns, update_ns, run)
    rest_running = view.num_running
    for request in before.finishing:
        rest_running -= request.width
    return run_async(
        view.now_ns,
        before.gpu_end_ns,
        (schedule_ns, before.update_ns),
        (cost.schedule_ns(rest_running), update_ns),
        run,
    )


def until_ns(plan: Plan, view: EngineView) -> int | None:
    """Return the latest time to plan again, for the policy or because cached content expires."""
    kv = view.kv
    if kv.lifetime_ns is None or (kv.watched is None and not view.waiting):
        return plan.until_ns  # no lookup sees it before the next plan
    # Content released during the run expires one lifetime later.
    times = (plan.until_ns, kv.index.next_expiry_ns(), view.now_ns + kv.lifetime_ns)
    return min(time_ns for time_ns in times if time_ns is not None)
