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
    over: Alarm
    steps: int
    """How many steps it takes, as far as is known."""
    is_cut: bool = False

    def end_after(self, steps: int, alarm: Alarm, now_ns: int) -> None:
        """Wake the engine when the step after these would be planned."""
        self.steps = steps
        alarm.ring(self.times.plan_ns(steps) - now_ns)
        alarm.callbacks.append(lambda _: self._end(steps))

    def cut(self, alarm: Alarm, now_ns: int) -> None:
        """Something arrived: plan anew at the next scheduler call from now on."""
        if not self.is_cut:
            self.is_cut = True
            self.end_after(self.times.first_plan_from(now_ns), alarm, now_ns)

    def _end(self, steps: int) -> None:
        if steps == self.steps and not self.over.triggered:  # else: it has been cut shorter
            self.over.fire()
