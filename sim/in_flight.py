"""Work an engine has launched and not yet read: a step, or a run of equal steps jumped over."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.clock import Alarm
from sim.pipeline import RunTimes
from sim.protocols import DecodeRun
from sim.request import Request
from sim.shape import StepShape


@dataclass(slots=True)
class InFlight:
    """A launched step whose outputs have not been read."""

    gpu_end_ns: int
    update_ns: int
    row: int
    is_empty: bool = False
    first_tokens: list[Request] = field(default_factory=list)
    finishing: list[Request] = field(default_factory=list)


@dataclass(slots=True)
class Jump:
    """A run of equal steps under way; it ends after the last, or at a plan an arrival asks for."""

    shape: StepShape
    """Of the first step."""
    run: DecodeRun
    times: RunTimes
    before: InFlight | None
    """The step in flight when it began, read on the way; None without async scheduling."""
    state: tuple[int, int, int]
    """Running, waiting and free blocks at its first plan."""
    alarm: Alarm
    """Wakes the engine when the step after the run would be planned."""
    steps: int
    """How many steps it takes, as far as is known."""
    leaving: Alarm | None
    """Ends the requests of the step before, where there are any."""
    taken_steps: int = 1
    """Steps whose KV blocks are held already."""

    def cut(self, alarm: Alarm, now_ns: int) -> None:
        """Something arrived: wake the engine for its next plan from now on, with this alarm."""
        steps = self.times.first_plan_from(now_ns)
        if steps < self.steps:
            self.steps = steps
            alarm.ring(self.times.plan_ns(steps) - now_ns)
            alarm.take_over(self.alarm)
            self.alarm = alarm
