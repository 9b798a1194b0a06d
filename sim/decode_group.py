"""The decoding sequences of one engine, advanced together in O(1) a step.

Every member gains one token a decode step, so the group keeps one counter of steps and sums over
its members. A member's own progress is the counter less its value when the member joined. What
changes does so at known counts: a member leaves when its last token is planned (a bucket a
count), and needs a new KV block each time its context crosses a block edge (a phase a member).
"""

from __future__ import annotations

from heapq import heappop, heappush

from sim.request import Request


class DecodeGroup:
    """Members, their context sum, and when the next of them leaves or needs a block."""

    def __init__(self, block_size: int) -> None:
        self.steps = 0
        """Decode steps planned so far."""
        self.context_tokens = 0
        """Computed tokens in the KV cache, summed over the members."""
        self.members: dict[Request, None] = {}
        self._block_size = block_size
        # Members whose next token opens a new block when steps % block_size equals the index.
        self._due_by_phase = [0] * block_size
        self._leaving: dict[int, list[Request]] = {}
        self._leave_steps: list[int] = []

    def computed_tokens(self, request: Request) -> int:
        """Tokens of a member whose KV has been planned."""
        return request.num_computed_tokens + self.steps - request.joined_at

    def sampled_tokens(self, request: Request) -> int:
        """Tokens a member has been planned to sample, the ones in flight included."""
        return request.num_sampled_tokens + self.steps - request.joined_at

    def join(self, request: Request) -> None:
        """Add a request whose prefill is complete; it decodes from the next step on."""
        request.joined_at = self.steps
        self.members[request] = None
        self.context_tokens += request.num_computed_tokens
        self._due_by_phase[self._phase(request)] += 1
        self._leave_at(self._last_step(request), request)

    def remove(self, request: Request) -> None:
        """Take a member out (preempted), its own counts brought up to date."""
        self._forget_leave(request)
        self._settle(request)

    def steps_to_leave(self) -> int:
        """Decode steps until the next member's last one; 0 for an empty group."""
        heap = self._leave_steps
        while heap and heap[0] not in self._leaving:
            heappop(heap)  # left already, or everyone due then was preempted
        return heap[0] - self.steps if heap else 0

    def blocks_due(self, steps: int) -> int:
        """New KV blocks the next ``steps`` decode steps of the whole group need."""
        if steps == 1:
            return self._due_by_phase[self.steps % self._block_size]
        cycles, rest = divmod(steps, self._block_size)
        start = self.steps % self._block_size
        stop = start + rest
        wrapped = sum(self._due_by_phase[: max(stop - self._block_size, 0)])
        return cycles * len(self.members) + sum(self._due_by_phase[start:stop]) + wrapped

    def needs_block(self, request: Request) -> bool:
        """Whether this member's next token opens a new block."""
        return self.computed_tokens(request) % self._block_size == 0

    def steps_within(self, free_blocks: int, steps: int) -> int:
        """The most steps, up to ``steps``, whose new blocks fit into ``free_blocks``."""
        most = len(self.members) * (steps // self._block_size + 1)
        if most <= free_blocks or self.blocks_due(steps) <= free_blocks:
            return steps
        low, high = 0, steps  # blocks_due(low) fits, blocks_due(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.blocks_due(middle) <= free_blocks:
                low = middle
            else:
                high = middle
        return low

    def advance(self, steps: int) -> list[Request]:
        """Plan ``steps`` decode steps for all; return those for whom it was the last one.

        The caller never steps past `steps_to_leave`. The ones returned have left the group.
        """
        self.steps += steps
        self.context_tokens += steps * len(self.members)
        leaving = self._leaving.pop(self.steps, None)
        if leaving is None:
            return []
        for request in leaving:
            self._settle(request)
        return leaving

    def hold_back(self, request: Request) -> None:
        """Leave a member out of the next step; call it before `advance`."""
        self._forget_leave(request)
        self._due_by_phase[self._phase(request)] -= 1
        self.context_tokens -= 1
        request.joined_at += 1
        self._due_by_phase[self._phase(request)] += 1
        self._leave_at(self._last_step(request), request)

    def _last_step(self, request: Request) -> int:
        return request.joined_at + request.output_tokens - request.num_sampled_tokens

    def _leave_at(self, step: int, request: Request) -> None:
        if step not in self._leaving:
            self._leaving[step] = []
            heappush(self._leave_steps, step)
        self._leaving[step].append(request)

    def _forget_leave(self, request: Request) -> None:
        step = self._last_step(request)
        bucket = self._leaving[step]
        bucket.remove(request)
        if not bucket:
            del self._leaving[step]

    def _phase(self, request: Request) -> int:
        return (request.joined_at - request.num_computed_tokens) % self._block_size

    def _settle(self, request: Request) -> None:
        del self.members[request]
        self._due_by_phase[self._phase(request)] -= 1
        computed_tokens = self.computed_tokens(request)
        self.context_tokens -= computed_tokens
        request.num_sampled_tokens = self.sampled_tokens(request)
        request.num_computed_tokens = computed_tokens
