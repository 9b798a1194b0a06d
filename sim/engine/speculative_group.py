"""The decoding sequences of an engine that speculates: several tokens per step, advanced in O(1).

Which drafts are accepted belongs to the request, so the tokens of each of its steps are known when
it joins: a vector, which is added to per-step sums and taken out if the member leaves early. A step
reads its column of the sums; a run of steps is a slice of them. The number of drafts depends on the
number of members; when it changes, all members are laid out again.

It replaces `sim.engine.decode_group.DecodeGroup` and has the same interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import cast

import numpy as np

from sim.arrays import Int64
from sim.engine.config import Speculation
from sim.engine.decode_group import Observer
from sim.kv.layout import PLAIN, KVLayout, pages_by_tokens
from sim.protocols import DecodeRun, Rises, RoundCost, StepCost
from sim.request import Request
from sim.shape import Clip, StepShape, clip_layers, clipped

_NEVER = 1 << 60
_GAINS, _BLOCKS, _CLIPS = 0, 1, 2  # rows of a vector and of the sums


@dataclass(slots=True)
class _Member:
    """What one sequence adds to the group's sums, from a step of the group on."""

    start: int
    """The group's step at which the first column of ``vector`` lies."""
    vector: Int64
    """``[2 + lengths, steps]``: tokens gained, blocks taken, growth of clipped contexts."""
    done: Int64
    """``[steps + 1]``: tokens gained before each step."""
    held: Int64
    """``[steps + 1]``: tokens whose blocks are held before each step."""

    @property
    def steps(self) -> int:
        """Number of steps until the last token is planned."""
        return len(self.held) - 1


class SpeculativeGroup:
    """Decoding requests, their sums by step, and when the next of them leaves."""

    def __init__(
        self,
        block_size: int,
        speculation: Speculation,
        *,
        clip_tokens: tuple[Clip, ...] = (),
        layout: KVLayout = PLAIN,
        max_model_len: int,
        unread_steps: int,
    ) -> None:
        """``unread_steps``: steps that are launched and not read when a step is planned."""
        self.steps = 0
        self.context_tokens = 0
        self.members: dict[Request, None] = {}
        self.observers: list[Observer] = []
        self._speculation = speculation
        self.drafts = speculation.drafts(0)
        """Tokens that the next step verifies per member."""
        self._block_size = block_size
        self._layout = layout
        self._is_plain = layout == PLAIN
        self._longest = max_model_len
        self._unread_steps = unread_steps
        self._clips = clip_tokens
        self._lengths = [clip for clip in clip_tokens if isinstance(clip, int)]
        self._clipped_tokens = [0] * len(clip_tokens)
        self._laid_out: dict[Request, _Member] = {}
        self._sums = np.zeros((_CLIPS + len(self._lengths), 1024), np.int64)
        self._origin = 0  # the group's step of the first column
        self._risen: list[list[int]] = []
        self._taken: list[int] = []
        self._priced_at = -1
        self._no_rises = (0,) * len(self._lengths)
        self._leaving: dict[int, list[Request]] = {}
        self._leave_steps: list[int] = []

    @property
    def num_seqs(self) -> int:
        """Number of sequences; members have one hypothesis each here."""
        return len(self.members)

    @property
    def tokens_per_seq(self) -> int:
        """Tokens that the next step computes per member."""
        return 1 + self.drafts

    @property
    def tokens_ahead(self) -> int:
        """Tokens beyond its context for which a member's first step needs blocks."""
        return self._speculation.tokens_ahead(self.drafts, unread_steps=0)

    def begin_step(self) -> None:
        """Choose the number of drafts for the step about to be planned."""
        drafts = self._speculation.drafts(len(self.members))
        if drafts == self.drafts:
            return
        self.drafts = drafts
        for request in self.members:
            held = self.held_tokens(request)
            self._take_out(request)
            self._lay_out(request, held)

    def computed_tokens(self, request: Request) -> int:
        """Return the tokens of a member whose KV has been planned and will be kept."""
        return request.num_computed_tokens + self._gained(request)

    def sampled_tokens(self, request: Request) -> int:
        """Return the tokens that a member has been planned to give, those in flight included."""
        return request.num_sampled_tokens + self._gained(request)

    def held_tokens(self, request: Request) -> int:
        """Return the tokens of a member whose blocks it holds, drafts included."""
        member = self._laid_out[request]
        return int(member.held[self.steps - member.start])

    def last_gain(self, request: Request) -> int:
        """Return the tokens that a member's newest step gives; unknown to the engine until it is
        read."""
        member = self._laid_out[request]
        step = self.steps - member.start
        return int(member.vector[_GAINS, step - 1]) if step else request.last_gain

    def join(self, request: Request) -> None:
        """Add a request whose prefill is complete; it decodes from the next step on."""
        request.joined_at = self.steps
        request.last_gain = 1  # the last token of its prefill
        self.members[request] = None
        self._lay_out(request, request.num_computed_tokens)
        self.context_tokens += request.num_computed_tokens
        for index, clip in enumerate(self._clips):
            reach = clipped(clip, request.num_computed_tokens, request.prompt_tokens)
            self._clipped_tokens[index] += reach
        for observer in self.observers:
            observer.joined(request)

    def remove(self, request: Request) -> None:
        """Take out a preempted member and bring its own counts up to date."""
        self._forget(request)
        self._settle(request)

    def hold_back(self, request: Request) -> None:
        """Leave a member out of the next step; call it before `advance`."""
        for observer in self.observers:
            observer.left(request)
        self._forget(request)
        member = self._laid_out[request]
        step = self.steps - member.start
        member.start += 1
        request.joined_at += 1
        self._add(request, member, step)
        for observer in self.observers:
            observer.joined(request)

    def steps_to_leave(self) -> int:
        """Return the decode steps until the next member's last one; 0 for an empty group."""
        heap = self._leave_steps
        while heap and heap[0] not in self._leaving:
            heappop(heap)
        return heap[0] - self.steps if heap else 0

    def steps_to_cross(self) -> int:
        """Return a bound on steps between changes of growth; here there is none, sums are kept by
        step."""
        return _NEVER

    def clipped_sums(self) -> list[tuple[int, int]]:
        """Return, per clip, the sum of contexts clipped to it and its growth in the next step."""
        if not self.members:
            return [(0, 0)] * len(self._clips)
        grown, place = [], self.steps - self._origin
        for index, clip in enumerate(self._clips):
            row = _CLIPS + index if isinstance(clip, int) else _GAINS
            grown.append(clip_layers(clip) * int(self._sums[row, place]))
        return list(zip(self._clipped_tokens, grown, strict=True))

    def clip_growth(self, request: Request, clip: Clip) -> int:
        """Return what a member adds to the growth of a clip's sum in the next step."""
        row = _CLIPS + self._lengths.index(clip) if isinstance(clip, int) else _GAINS
        return clip_layers(clip) * self._next(request, row)

    def blocks_due(self, steps: int) -> int:
        """Return the new KV pages that the next ``steps`` decode steps of the whole group need."""
        if not self.members:
            return 0  # there may be no column for the step
        place = self.steps - self._origin
        if steps == 1:
            return int(self._sums[_BLOCKS, place])
        if self._priced_at == self.steps and steps < len(self._taken):
            return self._taken[steps]
        return int(self._sums[_BLOCKS, place : place + steps].sum())

    def blocks_needed(self, request: Request) -> int:
        """Return the new KV pages of this member's next step."""
        return self._next(request, _BLOCKS)

    def steps_within(self, free_blocks: int, steps: int) -> int:
        """Return the most steps, up to ``steps``, whose new pages fit into ``free_blocks``."""
        if self._is_plain:  # an upper bound, wherever each block ends
            most = 2 + (steps + 3) * self.tokens_per_seq // self._block_size
            if len(self.members) * most <= free_blocks:
                return steps
        place = self.steps - self._origin
        due = self._sums[_BLOCKS, place : place + steps].cumsum()
        if not steps or not self.members or due[-1] <= free_blocks:
            return steps
        return int(np.searchsorted(due, free_blocks, side="right"))

    def with_drafts(self, shape: StepShape, held_back: list[Request]) -> StepShape:
        """Return the next step's shape with the tokens it verifies."""
        seqs = shape.decode_seqs
        accepted = 0
        if seqs:
            accepted = int(self._sums[_GAINS, self.steps - self._origin]) - seqs
            accepted -= sum(self._next(request, _GAINS) for request in held_back)
        drafts = seqs * self.drafts
        sums = (drafts, accepted, 0, *self._no_rises)
        return StepShape(
            seqs,
            shape.decode_context_tokens,
            shape.prefill_seqs,
            shape.prefill_tokens,
            shape.prefill_context_tokens,
            shape.prefill_pairs,
            shape.logits + drafts,
            shape.clipped,
            shape.shared,
            sums,
        )

    def run_shape(self, shape: StepShape, steps: int) -> StepShape:
        """Return the shape of the run priced last, of which ``steps`` steps were taken."""
        risen = self._risen
        accepted = risen[0][steps] - steps * shape.decode_seqs
        rises = (sum(of_sum[:steps]) for of_sum in risen)
        return shape._replace(speculated=(shape.draft_tokens, accepted, *rises))

    def price(self, cost: StepCost, shape: StepShape, steps: int) -> DecodeRun:
        """Price the next ``steps`` steps, the first of which has this shape."""
        place = self.steps - self._origin
        rows = (_GAINS, *range(_CLIPS, len(self._sums)))
        grown = (self._sums[row, place : place + steps].tolist() for row in rows)
        # For the run: what each sum has grown by before each step, and after the last.
        self._risen = risen = [[0, *accumulate(of_sum)] for of_sum in grown]
        self._taken = [0, *accumulate(self._sums[_BLOCKS, place : place + steps].tolist())]
        self._priced_at = self.steps
        context = risen[0][:steps]
        clips = [
            risen[1 + index][:steps]
            if isinstance(clip, int)
            else [clip_layers(clip) * tokens for tokens in context]
            for index, clip in enumerate(self._clips)
        ]
        return cast(RoundCost, cost).price_rounds(shape, Rises(context, clips))

    def advance(self, steps: int) -> list[Request]:
        """Plan ``steps`` decode steps for all members; return those for which it was the last
        one."""
        if not self.members:
            self.steps += steps
            return []
        place = self.steps - self._origin
        if steps == 1:
            self.context_tokens += int(self._sums[_GAINS, place])
        elif self._priced_at == self.steps:
            self.context_tokens += self._risen[0][steps]
        else:
            self.context_tokens += int(self._sums[_GAINS, place : place + steps].sum())
        self.steps += steps
        for index, clip in enumerate(self._clips):
            row = _CLIPS + index if isinstance(clip, int) else _GAINS
            grown = int(self._sums[row, place : place + steps].sum())
            self._clipped_tokens[index] += clip_layers(clip) * grown
        leaving = self._leaving.pop(self.steps, None)
        if leaving is None:
            return []
        for request in leaving:
            self._settle(request)
        return leaving

    def _gained(self, request: Request) -> int:
        member = self._laid_out[request]
        return int(member.done[self.steps - member.start])

    def _next(self, request: Request, row: int) -> int:
        member = self._laid_out[request]
        return int(member.vector[row, self.steps - member.start])

    def _lay_out(self, request: Request, held_tokens: int) -> None:
        """Compute and add what each further step of a request gives and needs."""
        speculation, drafts, known = self._speculation, self.drafts, request.num_computed_tokens
        gains = np.asarray(
            speculation.acceptance.gains(request, request.num_sampled_tokens, drafts), np.int64
        )
        steps = len(gains)
        done = np.empty(steps + 1, np.int64)
        done[0] = 0
        gains.cumsum(out=done[1:])
        held = np.empty(steps + 1, np.int64)
        held[0] = held_tokens
        # Contexts of the first step are known; later steps build on unread ones.
        unread = self._unread_steps if drafts else 0
        held[1] = known + speculation.tokens_ahead(drafts, unread_steps=0)
        ahead = known + speculation.tokens_ahead(drafts, unread_steps=unread)
        np.add(done[:-2] if unread else done[1:-1], ahead, out=held[2:])
        longest = self._longest
        if request.reserved_tokens:  # drafts beyond its end are not kept
            longest = request.prompt_tokens + request.output_tokens
        if held[-1] > longest:
            np.minimum(held, longest, out=held)
        if held[1] < held_tokens:
            np.maximum(held, held_tokens, out=held)
        vector = np.empty((len(self._sums), steps), np.int64)
        vector[_GAINS] = gains
        pages = self._pages(request, held)
        np.subtract(pages[1:], pages[:-1], out=vector[_BLOCKS])
        for row, length in enumerate(self._lengths, _CLIPS):
            vector[row] = np.diff(np.minimum(known + done, length))
        member = self._laid_out[request] = _Member(self.steps, vector, done, held)
        self._add(request, member, 0)

    def _add(self, request: Request, member: _Member, step: int) -> None:
        """Add a member's steps, from its step ``step`` on, to the sums."""
        self._priced_at = -1
        last = member.start + member.steps
        self._make_room(last)
        place = member.start + step - self._origin
        self._sums[:, place : last - self._origin] += member.vector[:, step:]
        if last not in self._leaving:
            self._leaving[last] = []
            heappush(self._leave_steps, last)
        self._leaving[last].append(request)

    def _pages(self, request: Request, tokens: Int64) -> Int64:
        reserved = request.reserved_tokens
        prompt = None if reserved else request.prompt_tokens
        if reserved:
            tokens = np.maximum(tokens, reserved)
        if self._is_plain:
            return (tokens + (self._block_size - 1)) // self._block_size
        return pages_by_tokens(self._layout, tokens, self._block_size, prompt)

    def _make_room(self, last: int) -> None:
        """Provide columns up to step ``last``: drop past ones, and double the number if too few."""
        rows, columns = self._sums.shape
        if last - self._origin < columns:
            return
        live = self._sums[:, self.steps - self._origin :]
        self._sums = np.zeros((rows, max(columns, 2 * (last - self.steps + 1))), np.int64)
        self._sums[:, : live.shape[1]] = live
        self._origin = self.steps

    def _take_out(self, request: Request) -> None:
        """Take a member's further steps out of the sums and bring its counts up to date."""
        member = self._laid_out[request]
        self._forget(request)
        self._note(request, member)

    def _forget(self, request: Request) -> None:
        """Remove the member from the bucket of the step in which it would have ended."""
        self._priced_at = -1
        member = self._laid_out[request]
        step, place = self.steps - member.start, self.steps - self._origin
        rest = member.vector[:, step:]
        self._sums[:, place : place + rest.shape[1]] -= rest
        last = member.start + member.steps
        bucket = self._leaving[last]
        bucket.remove(request)
        if not bucket:
            del self._leaving[last]

    def _note(self, request: Request, member: _Member) -> None:
        step = self.steps - member.start
        gained = int(member.done[step])
        if step > 0:
            request.last_gain = int(member.vector[_GAINS, step - 1])
            request.rounds += member.vector[_GAINS, :step].astype(np.uint8).tobytes()
        request.num_sampled_tokens += gained
        request.num_computed_tokens += gained

    def _settle(self, request: Request) -> None:
        del self.members[request]
        for observer in self.observers:
            observer.left(request)
        held = self.held_tokens(request)
        self._note(request, self._laid_out.pop(request))
        computed = request.num_computed_tokens
        request.lookahead_tokens = held - computed
        self.context_tokens -= computed
        for index, clip in enumerate(self._clips):
            self._clipped_tokens[index] -= clipped(clip, computed, request.prompt_tokens)
