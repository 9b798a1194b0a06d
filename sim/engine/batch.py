"""Building one engine step. The builder owns the budgets; the policy only orders and preempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sim.engine.hooks import any_of
from sim.engine.state import EngineState
from sim.engine.step import UNTIL_CHANGE, Plan
from sim.request import Gang, Request, Status
from sim.shape import StepShape, causal_pairs, chunk_shape, chunk_sums, clipped


def standing_plan(view: EngineState) -> Plan | None:
    """Return the plan of all decodes that a scheduler chose to repeat until something changes.

    None if something has changed: requests wait or prefill, none decodes, or budget or blocks are
    short.
    """
    group = view.decode_group
    if view.waiting or view.prefilling or not group.members:
        return None
    group.begin_step()
    due, seqs = group.blocks_due(1), group.num_seqs
    tokens = seqs * group.tokens_per_seq
    if due > view.kv.free_blocks or tokens > view.config.step_token_limit:
        return None
    view.kv.take(due)
    shape = StepShape(seqs, group.context_tokens, logits=seqs)
    if view.config.clip_tokens:
        clips = group.clipped_sums()
        shape = shape._replace(clipped=tuple(n for decodes in clips for n in (*decodes, 0, 0)))
    plan = Plan(group.with_drafts(shape, []), [], [], True, UNTIL_CHANGE, None, 0)
    return _completed(plan, view) if view.hooks.shaped else plan


def chunk_step(
    view: EngineState, computed_tokens: int, tokens: int, *, samples: bool = True
) -> StepShape:
    """Return the step that computes one chunk of one prompt alone; ``samples``: its last chunk."""
    shape = chunk_shape(computed_tokens, tokens, view.config.clip_tokens, samples=samples)
    plan = Plan(shape, [], [], decodes=False, repeat=1, until_ns=None, preempted=0)
    return _completed(plan, view).shape


def _completed(plan: Plan, view: EngineState) -> Plan:
    """Return the plan with what features add to the shape of its step."""
    for complete in view.hooks.shaped:
        plan = plan._replace(shape=complete(plan.shape, plan))
    return plan


def newest(view: EngineState) -> Request:
    """Return vLLM's FCFS victim: the request admitted last."""
    return next(reversed(view.running))


class BatchBuilder:
    """One step under construction; it lives for one scheduler call."""

    __slots__ = (
        "_aligns",
        "_all_decodes",
        "_decoding",
        "_preempted",
        "_prefills",
        "_token_budget",
        "_view",
    )

    def __init__(self, view: EngineState) -> None:
        self._view = view
        self._token_budget = view.config.step_token_limit
        self._prefills: dict[Request, int] = {}
        # chosen request -> new blocks it was given
        self._decoding: dict[Request, int] | None = None
        self._all_decodes = False
        self._preempted = 0
        self._aligns = view.aligns_chunks

    @property
    def token_budget(self) -> int:
        """Number of tokens that can still be added."""
        return self._token_budget

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the step so far."""
        return self._view.config.step_token_limit - self._token_budget

    @property
    def has_preempted(self) -> bool:
        """Whether any request was preempted for this step (vLLM then admits no new one)."""
        return self._preempted > 0

    @property
    def num_prefills(self) -> int:
        """Number of prefilling requests in the step so far."""
        return len(self._prefills)

    def add_running(self, victim: Callable[[EngineState], Request] = newest) -> None:
        """Add the tokens of all running requests, preempting ``victim(view)`` while KV blocks are
        short.

        If all decodes fit, they are added together and prefills follow; otherwise requests are
        added one by one in order of admission, as vLLM does. Both give the same batch while the
        budget lasts.
        """
        rest = self._view.prefilling if self._add_decode_group() else self._view.running
        if rest:
            self._add_each(rest, victim)

    def add_decodes(self, victim: Callable[[EngineState], Request] = newest) -> None:
        """Add every decoding request, preempting ``victim(view)`` while KV blocks are short."""
        if not self._add_decode_group():
            self._add_each(self._view.decode_group.members, victim)

    def add(self, request: Request, max_tokens: int | None = None) -> bool:
        """Add one running request; of a prefill at most ``max_tokens``.

        Returns False and changes nothing if the request cannot be part of the step: it is not
        running, already added or done, the token budget is used up, or too few KV blocks are free.
        """
        return self._can_add(request) and self._add(request, max_tokens)

    def admit(
        self,
        request: Request,
        max_tokens: int | None = None,
        *,
        reserve_tokens: int = 0,
        gang: Gang | None = None,
    ) -> bool:
        """Take a request from the waiting queue and add the first chunk of its prompt.

        Returns False and changes nothing if the token budget or ``running_seq_limit`` is used up,
        or if the whole known sequence, less its prefix hits, does not fit into the free blocks
        (vLLM's admission check; only the chunk's blocks are allocated). A request that was swapped
        out is swapped in and continues where it was.

        A feature may set the request aside, for example to load its prefix from a lower tier
        (`sim.engine.loading`). Then True is returned, and the request is in neither queue until the
        feature returns it to the waiting queue.

        ``max_tokens=0`` gives the request a place now, and tokens in a later step.
        ``reserve_tokens``: prompt and answer tokens whose blocks the request holds from now on, at
        most what the pool has; beyond them it grows block by block. ``gang``: the static batch with
        which it leaves.
        """
        view, hooks = self._view, self._view.hooks
        if self._token_budget <= 0 and max_tokens != 0:
            return False
        seqs = view.num_running + view.num_unforked + request.num_unforked + request.width
        if hooks.places:
            seqs += sum(place.num_running for place in hooks.places)
        if seqs > view.config.running_seq_limit:
            return False
        if hooks.stands_aside and any_of(hooks.stands_aside, request):
            return True
        if request.swapped_blocks:
            return self._swap_in(request, max_tokens)
        kv = view.kv
        hit = kv.lookup(request)
        if reserve_tokens:
            reserve_tokens = kv.reservable(request, reserve_tokens)
        if not kv.fits(request, hit, reserve_tokens):
            return False
        if hooks.loads_first and any_of(hooks.loads_first, request, hit):
            return True
        if self._aligns and max_tokens != 0:
            if not self._chunk(request, hit.blocks * view.config.block_size):
                return False
            # keep a state where this prompt and others with the same prefix part
            if hit.common > hit.blocks:
                junction = (hit.common - hit.blocks) * view.config.block_size
                max_tokens = junction if max_tokens is None else min(junction, max_tokens)
        kv.pin(request, hit)
        for admitted in hooks.admitted:
            admitted(request, hit)
        if reserve_tokens or request.is_several:
            kv.hold(request, reserve_tokens)
        if gang is not None and request.gang is None:
            request.gang = gang
            gang.members += 1
        view.move_to_running(request)
        # cannot fail: budget and blocks were checked above
        return max_tokens == 0 or self.add(request, max_tokens)

    def admit_waiting(self) -> None:
        """Admit from the head of the waiting queue until a request does not fit; none skips
        ahead."""
        waiting = self._view.waiting
        while waiting and self.admit(waiting.first()):
            pass

    def preempt(self, request: Request) -> None:
        """Free a running request's blocks and put it back into the waiting queue, to be recomputed.

        If it is part of this step already, it is taken out and its tokens return to the budget.
        """
        extra_blocks = 0
        self._token_budget += self._prefills.pop(request, 0)
        if request.status is Status.DECODING and self._has_decode(request):
            chosen = self._chosen_decodes()
            extra_blocks = chosen.pop(request)
            self._token_budget += self._tokens_per_step(request)
        self._view.move_to_waiting(request, extra_blocks=extra_blocks)
        self._preempted += 1

    def plan(self, *, repeat: int = 1, until_ns: int | None = None) -> Plan:
        """Close the step and return its plan.

        ``repeat`` promises that the policy would make the same choice for that many steps
        (`UNTIL_CHANGE`: until something changes); ``until_ns``: that it would until then.
        """
        group = self._view.decode_group
        held_back: list[Request] = []
        seqs, context = group.num_seqs, group.context_tokens
        decodes = self._all_decodes or bool(self._decoding)
        if not decodes:
            seqs = context = 0
        elif self._decoding is not None:
            held_back = [request for request in group.members if request not in self._decoding]
            for request in held_back:
                seqs -= request.width
                context -= request.width * group.computed_tokens(request)
        logits = seqs
        tokens = pairs = prefill_context = 0
        for request, chunk in self._prefills.items():
            tokens += chunk
            pairs += causal_pairs(request.num_computed_tokens, chunk)
            prefill_context += request.num_computed_tokens
            if chunk == request.num_uncomputed_tokens:  # hypotheses begin with the first token
                logits += request.width if request.num_sampled_tokens else 1
        sums = self._clipped(decodes, held_back) if self._view.config.clip_tokens else ()
        shape = StepShape(
            seqs, context, len(self._prefills), tokens, prefill_context, pairs, logits, sums
        )
        shape = group.with_drafts(shape, held_back)
        chunks = list(self._prefills.items())
        plan = Plan(shape, chunks, held_back, decodes, repeat, until_ns, self._preempted)
        return _completed(plan, self._view) if self._view.hooks.shaped else plan

    def _clipped(self, decodes: bool, held_back: list[Request]) -> tuple[int, ...]:
        """Return `StepShape.clipped` of the step."""
        group = self._view.decode_group
        contexts = [
            (request, group.computed_tokens(request), request.prompt_tokens)
            for request in held_back
        ]
        found: list[int] = []
        clips = self._view.config.clip_tokens
        for clip, (tokens, growing) in zip(clips, group.clipped_sums(), strict=True):
            if not decodes:
                tokens = growing = 0
            for request, context, prompt in contexts:
                tokens -= request.width * clipped(clip, context, prompt)
                growing -= group.clip_growth(request, clip)
            prefix = pairs = 0
            for request, chunk in self._prefills.items():
                more = chunk_sums(clip, request.num_computed_tokens, chunk)
                prefix, pairs = prefix + more[0], pairs + more[1]
            found += (tokens, growing, prefix, pairs)
        return tuple(found)

    def _add_decode_group(self) -> bool:
        """Add all decodes together. Returns False and changes nothing if budget or blocks are
        short."""
        view = self._view
        group = view.decode_group
        if self._all_decodes:
            return True
        tokens = group.num_seqs * group.tokens_per_seq
        if self._decoding is not None or tokens > self._token_budget:
            return False
        due = group.blocks_due(1)
        if due > view.kv.free_blocks:
            return False
        view.kv.take(due)
        self._all_decodes = True
        self._token_budget -= tokens
        return True

    def _add_each(
        self, requests: Iterable[Request], victim: Callable[[EngineState], Request]
    ) -> None:
        for request in list(requests):
            while self._can_add(request) and not self._add(request, None):
                chosen = victim(self._view)
                self.preempt(chosen)
                if chosen is request:
                    return  # vLLM ends the running part of the step here

    def _swap_in(self, request: Request, max_tokens: int | None) -> bool:
        """Admit a request whose blocks are on the host; they and the next token's blocks must
        fit."""
        view, group = self._view, self._view.decode_group
        if request.num_uncomputed_tokens:
            tokens = max(request.num_target_tokens, request.num_computed_tokens + 1)
            needed, least = view.kv.blocks_for(tokens), 1
        else:
            tokens = request.num_computed_tokens + group.tokens_ahead
            needed = view.kv.blocks_held(request, min(tokens, view.config.max_model_len))
            least = group.tokens_per_seq
        if needed > view.kv.free_blocks or self._token_budget < least:
            return False
        view.move_to_running(request)
        if request.status is not Status.DECODING:
            return max_tokens == 0 or self.add(request, max_tokens)
        if self._decoding is None and not self._all_decodes and len(group.members) > 1:
            self._decoding = {}  # none of the others has been chosen so far
        elif self._decoding is None:
            view.kv.take(group.blocks_needed(request))
            self._all_decodes = True
            self._token_budget -= group.tokens_per_seq
            return True
        return self._add(request, None)

    def _can_add(self, request: Request) -> bool:
        if self._token_budget <= 0:
            return False
        if request.status is Status.DECODING:
            tokens = self._tokens_per_step(request)
            return tokens <= self._token_budget and not self._has_decode(request)
        if request.status is not Status.PREFILLING or request in self._prefills:
            return False
        return not self._aligns or self._chunk(request, request.num_computed_tokens) > 0

    def _add(self, request: Request, max_tokens: int | None) -> bool:
        """Take KV blocks and budget. Returns False and changes nothing if blocks are short."""
        kv = self._view.kv
        if request.status is Status.DECODING:
            needed = self._view.decode_group.blocks_needed(request)
            if needed:
                if kv.free_blocks < needed:
                    return False
                kv.take(needed)
            self._chosen_decodes()[request] = needed
            self._token_budget -= self._tokens_per_step(request)
            return True
        if max_tokens == 0:
            return False
        tokens = self._chunk(request, request.num_computed_tokens)
        if max_tokens is not None:
            tokens = min(tokens, max_tokens)
        if not kv.extend(request, request.num_computed_tokens + tokens):
            return False
        kv.register(request, request.num_computed_tokens + tokens)
        if self._aligns:
            kv.checkpoint(request, request.num_computed_tokens + tokens)
        self._prefills[request] = tokens
        self._token_budget -= tokens
        return True

    def _chunk(self, request: Request, computed: int) -> int:
        """Return how many tokens of a prompt, ``computed`` of which are done, the step has room
        for.

        Where recurrent states are kept, a chunk ends at a block boundary or with the prompt; 0 if
        the budget reaches no boundary (vLLM's ``_mamba_block_aligned_split``).
        """
        tokens = min(request.num_target_tokens - computed, self._token_budget)
        longest = self._view.config.long_prefill_token_threshold
        if longest:
            tokens = min(tokens, longest)
        if not self._aligns:
            return tokens
        block_size, stop = self._view.config.block_size, computed + tokens
        last_edge = request.num_target_tokens // block_size * block_size
        if stop < last_edge:
            return max(0, stop // block_size * block_size - computed)
        return last_edge - computed if computed < last_edge < stop else tokens

    def _tokens_per_step(self, request: Request) -> int:
        """Return the tokens that a decode step computes for a request."""
        return request.width * self._view.decode_group.tokens_per_seq

    def _has_decode(self, request: Request) -> bool:
        return self._all_decodes or (self._decoding is not None and request in self._decoding)

    def _chosen_decodes(self) -> dict[Request, int]:
        """Return the decodes chosen so far, one by one (the whole group, if all of it was
        added)."""
        if self._decoding is None:
            group = self._view.decode_group
            self._decoding = {}
            if self._all_decodes:
                self._decoding = {
                    request: group.blocks_needed(request) for request in group.members
                }
        self._all_decodes = False
        return self._decoding
