"""Members of a decode group on their way to a length: how many, and when the next arrives.

A member's context grows by one token a step, so the step at which it reaches a length is known
when it joins. Members that arrive at the same step are one entry.
"""

from __future__ import annotations

from heapq import heappop, heappush

from sim.request import Request


class Crossings:
    """The members with a context below ``cap_tokens``, by the step at which each reaches it.

    A member counts as many times as it is sequences.
    """

    __slots__ = ("_at", "_steps", "below", "cap_tokens")

    def __init__(self, cap_tokens: int) -> None:
        self.cap_tokens = cap_tokens
        self.below = 0
        """Sequences that have not reached it."""
        self._at: dict[int, int] = {}
        self._steps: list[int] = []

    def is_below(self, request: Request, now: int) -> bool:
        """Whether a member has not reached it at step ``now``."""
        return self._step_of(request) > now

    def track(self, request: Request, now: int) -> None:
        """A member joins."""
        step = self._step_of(request)
        if step <= now:
            return
        self.below += request.width
        if step not in self._at:
            self._at[step] = 0
            heappush(self._steps, step)
        self._at[step] += request.width

    def forget(self, request: Request, now: int) -> None:
        """A member leaves."""
        step = self._step_of(request)
        if step <= now:
            return
        self.below -= request.width
        self._at[step] -= request.width
        if not self._at[step]:
            del self._at[step]

    def next_step(self) -> int | None:
        """When the next member reaches it."""
        steps = self._steps
        while steps and steps[0] not in self._at:
            heappop(steps)
        return steps[0] if steps else None

    def pass_step(self, now: int) -> int:
        """It is step ``now``, and none with a crossing was left out: how many reach it now."""
        arrived = self._at.pop(now, 0)
        self.below -= arrived
        return arrived

    def _step_of(self, request: Request) -> int:
        return request.joined_at - request.num_computed_tokens + self.cap_tokens
