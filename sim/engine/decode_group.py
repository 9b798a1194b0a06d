"""The decoding sequences of one engine, advanced together in O(1) per step.

Every member gains one token per decode step, so the group keeps one counter of steps and sums over
its members; a member's own progress is the counter minus its value when the member joined. What
changes does so at known counts: a member leaves when its last token is planned (one bucket per
count), needs new KV pages when its context crosses a block boundary (one phase per member), and
stops adding to a clipped sum, or taking pages for a window, when its context reaches a length
(`sim.engine.crossings`). Between these counts every sum grows by the same amount per step. Tokens
dropped from a prompt count as never present; they shift the phase in which pages are opened.

A member answered by beam search counts once per hypothesis, all of one length. Its pages are those
of one growing sequence; the additional blocks of the other hypotheses are fixed (`sim.beams`).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

from sim.engine.crossings import Crossings
from sim.kv.layout import PLAIN, KVLayout, window_blocks
from sim.kv.shared_prefix import PrefixTree
from sim.protocols import DecodeRun, StepCost
from sim.request import Request
from sim.shape import Clip, StepShape, dropped

_NEVER = 1 << 60


class Observer(Protocol):
    """Is told which requests decode from which step on; a policy can derive per-step counts from
    it."""

    def joined(self, request: Request, /) -> None:
        """The request decodes from the group's next step on; ``request.joined_at`` is that step."""
        ...

    def left(self, request: Request, /) -> None:
        """The request no longer decodes; ``joined_at`` is unchanged."""
        ...


class DecodeGroup:
    """Decoding requests, their context sums, and when the next of them leaves or needs pages."""

    tokens_per_seq = 1
    """Tokens that a step computes per sequence."""
    tokens_ahead = 1
    """Tokens beyond its context for which a member's first step needs blocks."""

    def __init__(
        self,
        block_size: int,
        clip_tokens: tuple[Clip, ...] = (),
        layout: KVLayout = PLAIN,
    ) -> None:
        self.steps = 0
        """Number of decode steps planned so far."""
        self.num_seqs = 0
        """Number of sequences; a member with several hypotheses counts once for each."""
        self.context_tokens = 0
        """Computed tokens in the KV cache, summed over the sequences."""
        self.members: dict[Request, None] = {}
        self.observers: list[Observer] = []
        self.prefix_trees: list[PrefixTree] = []
        """Trees of the prefixes that members share, for kernels that read them once."""
        self._block_size = block_size
        self._growing_pages = 1 if layout.grows else 0
        # Pages that members' next tokens open when steps % block_size equals the index.
        self._due_by_phase = [0] * block_size
        self._due_per_cycle = 0
        self._leaving: dict[int, list[Request]] = {}
        self._leave_steps: list[int] = []
        # When members outgrow their reservations; those whose reservation lasts are not listed.
        self._outgrowing: dict[int, list[Request]] = {}
        self._outgrow_steps: list[int] = []
        self._clips = [Crossings(clip) for clip in clip_tokens if isinstance(clip, int)]
        self._clipped_tokens = [0] * len(self._clips)
        # Members with dropped prompt tokens; their number never changes.
        self._budgets = [clip for clip in clip_tokens if isinstance(clip, tuple)]
        self._dropped_tokens = [0] * len(self._budgets)
        self._prompts = layout.prompts
        # A window takes pages until the context is as long as all the blocks it ever holds.
        self._windows = [
            (Crossings(window_blocks(window_tokens, block_size) * block_size), groups)
            for window_tokens, groups in layout.windows
        ]
        self._crossings = [*self._clips, *(window for window, _ in self._windows)]

    def computed_tokens(self, request: Request) -> int:
        """Return the tokens of a member whose KV has been planned."""
        return request.num_computed_tokens + self.steps - request.joined_at

    def sampled_tokens(self, request: Request) -> int:
        """Return the tokens that a member has been planned to sample, those in flight included."""
        return request.num_sampled_tokens + self.steps - request.joined_at

    def begin_step(self) -> None:
        """Prepare for planning a step."""

    def held_tokens(self, request: Request) -> int:
        """Return the tokens of a member whose blocks it holds, reservations excluded."""
        return self.computed_tokens(request)

    def last_gain(self, request: Request) -> int:
        """Return the tokens that a member's newest step gives; unknown to the engine until it is
        read."""
        return 1

    def with_drafts(self, shape: StepShape, held_back: list[Request]) -> StepShape:
        """Return the next step's shape with drafts; here there are none."""
        return shape

    def run_shape(self, shape: StepShape, steps: int) -> StepShape:
        """Return the shape of a run of ``steps`` steps whose first has this shape."""
        return shape

    def price(self, cost: StepCost, shape: StepShape, steps: int) -> DecodeRun:
        """Price the next ``steps`` steps, the first of which has this shape."""
        return cost.price_decodes(shape, steps)

    def join(self, request: Request) -> None:
        """Add a request whose prefill is complete; it decodes from the next step on."""
        request.joined_at = self.steps
        self.members[request] = None
        width = request.width
        self.num_seqs += width
        self.context_tokens += width * request.num_computed_tokens
        for index, clip in enumerate(self._clips):
            reached = min(request.num_computed_tokens, clip.cap_tokens)
            self._clipped_tokens[index] += width * reached
        for index, budgets in enumerate(self._budgets):
            self._dropped_tokens[index] += width * dropped(budgets, request.prompt_tokens)
        crossings = self._tracking(request) if request.reserved_tokens else self._crossings
        for crossing in crossings:
            crossing.track(request, self.steps)
        if request.reserved_tokens:
            self._track_reservation(request)
        self._count_pages(request, 1)
        self._leave_at(self._last_step(request), request)
        for observer in self.observers:
            observer.joined(request)
        for tree in self.prefix_trees:
            tree.join(request)

    def remove(self, request: Request) -> None:
        """Take out a preempted member and bring its own counts up to date."""
        self._forget_leave(request)
        self._settle(request)

    def steps_to_leave(self) -> int:
        """Return the decode steps until the next member's last one; 0 for an empty group."""
        heap = self._leave_steps
        while heap and heap[0] not in self._leaving:
            heappop(heap)  # left already, or every member due then was preempted
        return heap[0] - self.steps if heap else 0

    def steps_to_cross(self) -> int:
        """Return the decode steps until a sum changes its growth, because a member reaches a
        length."""
        nearest = _NEVER
        for crossing in self._crossings:
            step = crossing.next_step()
            if step is not None and step < nearest:
                nearest = step
        if self._outgrowing:
            heap = self._outgrow_steps
            while heap[0] not in self._outgrowing:
                heappop(heap)
            nearest = min(nearest, heap[0])
        return nearest - self.steps

    def clipped_sums(self) -> list[tuple[int, int]]:
        """Return, per clip, the sum of contexts clipped to it and its growth per step."""
        below = (clip.below for clip in self._clips)
        sums = list(zip(self._clipped_tokens, below, strict=True))
        for budgets, tokens in zip(self._budgets, self._dropped_tokens, strict=True):
            layers = len(budgets)
            sums.append((layers * self.context_tokens - tokens, layers * self.num_seqs))
        return sums

    def blocks_due(self, steps: int) -> int:
        """Return the new KV pages that the next ``steps`` decode steps of the whole group need.

        ``steps`` must not exceed `steps_to_cross`: from there on windows need fewer pages, or
        reservations are used up.
        """
        if steps == 1:
            return self._due_by_phase[self.steps % self._block_size]
        cycles, rest = divmod(steps, self._block_size)
        start = self.steps % self._block_size
        stop = start + rest
        wrapped = sum(self._due_by_phase[: max(stop - self._block_size, 0)])
        return cycles * self._due_per_cycle + sum(self._due_by_phase[start:stop]) + wrapped

    def clip_growth(self, request: Request, clip: Clip) -> int:
        """Return what a member adds to the growth of a clip's sum in the next step."""
        if isinstance(clip, tuple):
            return request.width * len(clip)
        return request.width * (self.computed_tokens(request) < clip)

    def blocks_needed(self, request: Request) -> int:
        """Return the new KV pages of this member's next token."""
        computed_tokens = self.computed_tokens(request)
        pages = 0 if computed_tokens % self._block_size else self._pages_per_block(request)
        if not self._prompts:
            return pages
        for gone, groups in self._kept_pages(request):
            pages += 0 if (computed_tokens - gone) % self._block_size else groups
        return pages

    def steps_within(self, free_blocks: int, steps: int) -> int:
        """Return the most steps, up to ``steps``, whose new pages fit into ``free_blocks``."""
        most = self._due_per_cycle * (steps // self._block_size + 1)
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
        """Plan ``steps`` decode steps for all members; return those for which it was the last one.

        The caller never steps past `steps_to_leave` or `steps_to_cross`. The returned requests have
        left the group.
        """
        self.steps += steps
        self.context_tokens += steps * self.num_seqs
        if self._crossings:
            self._cross(steps)
        if self._outgrowing:
            for request in self._outgrowing.pop(self.steps, ()):
                for window, _ in self._windows:
                    window.track(request, self.steps)
                self._count_pages(request, 1)
        leaving = self._leaving.pop(self.steps, None)
        if leaving is None:
            return []
        for request in leaving:
            self._settle(request)
        return leaving

    def hold_back(self, request: Request) -> None:
        """Leave a member out of the next step; call it before `advance`."""
        for observer in self.observers:
            observer.left(request)
        self._forget_leave(request)
        self._count_pages(request, -1)
        if request.reserved_tokens:
            self._forget_reservation(request)
        self.context_tokens -= request.width
        for crossing in self._tracking(request) if request.reserved_tokens else self._crossings:
            crossing.forget(request, self.steps)
        # counted as if its context were a token shorter: the step adds it again
        request.joined_at += 1
        for index, clip in enumerate(self._clips):
            self._clipped_tokens[index] -= request.width * clip.is_below(request, self.steps)
        for crossing in self._tracking(request) if request.reserved_tokens else self._crossings:
            crossing.track(request, self.steps)
        if request.reserved_tokens:
            self._track_reservation(request)
        self._count_pages(request, 1)
        self._leave_at(self._last_step(request), request)
        for observer in self.observers:
            observer.joined(request)

    def _track_reservation(self, request: Request) -> None:
        step = self._outgrown_at(request)
        if self.steps < step < self._last_step(request):
            if step not in self._outgrowing:
                self._outgrowing[step] = []
                heappush(self._outgrow_steps, step)
            self._outgrowing[step].append(request)

    def _forget_reservation(self, request: Request) -> None:
        step = self._outgrown_at(request)
        bucket = self._outgrowing.get(step)
        if bucket is not None and request in bucket:
            bucket.remove(request)
            if not bucket:
                del self._outgrowing[step]

    def _tracking(self, request: Request) -> list[Crossings]:
        """Yield the lengths on whose way a member counts; windows take no pages of a
        reservation."""
        return self._clips if self._has_reserved(request) else self._crossings

    def _has_reserved(self, request: Request) -> bool:
        """Whether a member's next token, if there is one, has a block in its reservation."""
        step = self._outgrown_at(request)
        return step > self.steps or step >= self._last_step(request)

    def _outgrown_at(self, request: Request) -> int:
        return request.joined_at + request.reserved_tokens - request.num_computed_tokens

    def _cross(self, steps: int) -> None:
        for index, clip in enumerate(self._clips):
            self._clipped_tokens[index] += steps * clip.below
            clip.pass_step(self.steps)
        for window, groups in self._windows:
            pages = groups * window.pass_step(self.steps)
            if pages:  # their contexts end at a block boundary, so this is their phase
                self._due_by_phase[self.steps % self._block_size] -= pages
                self._due_per_cycle -= pages

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

    def _pages_per_block(self, request: Request) -> int:
        if request.reserved_tokens and self._has_reserved(request):
            return 0
        pages = self._growing_pages
        for window, groups in self._windows:
            if window.is_below(request, self.steps):
                pages += groups
        return pages

    def _count_pages(self, request: Request, sign: int) -> None:
        """Add (``sign`` 1) or remove (-1) the pages that a member's blocks open, by phase."""
        pages = sign * self._pages_per_block(request)
        phase = (request.joined_at - request.num_computed_tokens) % self._block_size
        self._due_by_phase[phase] += pages
        self._due_per_cycle += pages
        if not self._prompts:
            return
        for gone, groups in self._kept_pages(request):
            self._due_by_phase[(phase + gone) % self._block_size] += sign * groups
            self._due_per_cycle += sign * groups

    def _kept_pages(self, request: Request) -> list[tuple[int, int]]:
        """Return the tokens dropped from the member's prompt and the pages per further block, by
        budget.

        No tokens are dropped where blocks are reserved.
        """
        if request.reserved_tokens:
            if self._has_reserved(request):
                return []
            return [(0, groups) for _, groups in self._prompts]
        prompt_tokens = request.prompt_tokens
        return [(max(0, prompt_tokens - budget), groups) for budget, groups in self._prompts]

    def _settle(self, request: Request) -> None:
        del self.members[request]
        for observer in self.observers:
            observer.left(request)
        for tree in self.prefix_trees:
            tree.leave(request)
        self._count_pages(request, -1)
        if request.reserved_tokens:
            self._forget_reservation(request)
        computed_tokens, width = self.computed_tokens(request), request.width
        self.num_seqs -= width
        self.context_tokens -= width * computed_tokens
        for index, clip in enumerate(self._clips):
            self._clipped_tokens[index] -= width * min(computed_tokens, clip.cap_tokens)
        for index, budgets in enumerate(self._budgets):
            self._dropped_tokens[index] -= width * dropped(budgets, request.prompt_tokens)
        crossings = self._tracking(request) if request.reserved_tokens else self._crossings
        for crossing in crossings:
            crossing.forget(request, self.steps)
        request.num_sampled_tokens = self.sampled_tokens(request)
        request.num_computed_tokens = computed_tokens
