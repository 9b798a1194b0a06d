"""Members of a decode group on their way to a length: how many, and when the next arrives.

A member's context grows by one token per step, so the step at which it reaches a length is known
when it joins. Members that arrive at the same step share one entry.
"""

from __future__ import annotations

from heapq import heappop, heappush

from sim.request import Request


class Crossings:
    """The members with a context below ``cap_tokens``, by the step at which each reaches it.

    A member with several hypotheses counts once for each.
    """

    __slots__ = ("_at", "_steps", "below", "cap_tokens")

    def __init__(self, cap_tokens: int) -> None:
        self.cap_tokens = cap_tokens
        self.below = 0
        """Sequences that have not reached the length."""
        self._at: dict[int, int] = {}
        self._steps: list[int] = []

    def is_below(self, request: Request, now: int) -> bool:
        """Whether a member has not reached the length at step ``now``."""
        return self._step_of(request) > now

    def track(self, request: Request, now: int) -> None:
        """Add a member that joins at step ``now``."""
        step = self._step_of(request)
        if step <= now:
            return
        self.below += request.width
        if step not in self._at:
            self._at[step] = 0
            heappush(self._steps, step)
        self._at[step] += request.width

    def forget(self, request: Request, now: int) -> None:
        """Remove a member that leaves at step ``now``."""
        step = self._step_of(request)
        if step <= now:
            return
        self.below -= request.width
        self._at[step] -= request.width
        if not self._at[step]:
            del self._at[step]

    def next_step(self) -> int | None:
        """Return the step at which the next member reaches the length."""
        steps = self._steps
        while steps and steps[0] not in self._at:
            heappop(steps)
        return steps[0] if steps else None

    def pass_step(self, now: int) -> int:
        """Advance to step ``now`` and return how many members reach the length in it. No step with
        a crossing may be skipped."""
        arrived = self._at.pop(now, 0)
        self.below -= arrived
        return arrived

    def _step_of(self, request: Request) -> int:
        return request.joined_at - request.num_computed_tokens + self.cap_tokens
