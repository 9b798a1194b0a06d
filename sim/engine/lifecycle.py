"""The requests of one engine, from arrival to end, and what each step does to them.

A request in an engine is in one of these places: ``inbox`` (submitted, not seen by the scheduler),
``view.waiting``, ``view.prefilling``, the decode group, ``finishing`` of a step in flight (last
token planned), a gang's ``done``, or a place of a feature (``view.hooks.places``: its KV is being
loaded, fetched, received or sent on, or it waits for an adapter). `receive` takes in arrivals,
`commit` books a planned step, `end` ends the requests whose last token was read. The clocks belong
to `sim.engine.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sim.engine.hooks import any_of
from sim.engine.leaving import answers_of, refusal, take_out
from sim.engine.step import InFlight, Plan
from sim.engine.view import EngineView
from sim.protocols import ReplicaLoad
from sim.recorder import DecodeLog, RequestLog
from sim.request import Request, Status


class Lifecycle:
    """The requests in an engine and where each is: arriving, waiting, running or leaving."""

    view: EngineView

    def __init__(
        self,
        log: RequestLog | DecodeLog,
        on_leave: Callable[[Request], None],
        replica: int,
    ) -> None:
        self._log = log
        self._on_leave = on_leave
        self._replica = replica
        self.on_load: Callable[[ReplicaLoad], None] | None = None
        """Called with the engine's load whenever it has changed."""

    def start(self, view: EngineView) -> None:
        """Start with empty queues."""
        self.view = view
        self.inbox: list[Request] = []
        self.queued_tokens = 0
        self._cancelled: list[Request] = []

    def submit(self, request: Request, now_ns: int) -> bool:
        """Take an arriving request. Returns whether the next scheduler call sees it: False if it
        was rejected, or has to pass an API server first."""
        self._note_arrival(request, now_ns)
        reason = refusal(request, self.view)
        if reason:
            request.status = Status.REJECTED
            self._log.rejected(request, now_ns, reason)
            self._on_leave(request)
            return False
        api_server = self.view.api_server
        if api_server is None:
            self.inbox.append(request)
        else:
            api_server.receive(request)
        self._count_prompt(request)
        return api_server is None

    def await_prompt(self, request: Request, now_ns: int) -> None:
        """Note the arrival of a request that will join the inbox later; a place holds it."""
        self._note_arrival(request, now_ns)
        self._count_prompt(request)

    def _note_arrival(self, request: Request, now_ns: int) -> None:
        log, index = self._log, request.index
        if log.arrival_ns[index] < 0:  # not if it is sent again
            log.arrival_ns[index] = now_ns
        log.replica[index] = self._replica

    def _count_prompt(self, request: Request) -> None:
        self.queued_tokens += request.prompt_tokens
        self.publish_load()

    def cancel(self, request: Request, in_flight: Iterable[InFlight]) -> None:
        """Remove a request at the next plan, wherever it is; see `disown`."""
        self._cancelled += self.disown(request, in_flight)

    def disown(self, request: Request, in_flight: Iterable[InFlight]) -> list[Request]:
        """Record nothing more of a request whose client gave up. Returns its answers."""
        answers = answers_of(request, self.view, in_flight)
        for answer in answers:
            answer.cancelled = True
        if request.samples is not None:
            request.samples.cancelled = True
        return answers

    def receive(self, in_flight: Iterable[InFlight], row: int, now_ns: int) -> bool:
        """Take in arrivals and drop cancelled requests, at the scheduler call of log row ``row``.

        Returns whether an earlier plan no longer stands; requests that only wait do not change
        that, the engine looks at the queue itself.
        """
        changed = bool(self._cancelled)
        if changed:
            self._drop_cancelled(in_flight, row, now_ns)
        if self.inbox:
            for request in self.inbox:
                request.num_target_tokens = request.prompt_tokens
                if not request.cancelled:
                    self._log.seen_ns[request.index] = now_ns
                self.view.waiting.add(request)
            self.inbox.clear()
        for take_in in self.view.hooks.take_in:
            changed |= take_in(row, now_ns)
        return changed

    def _drop_cancelled(self, in_flight: Iterable[InFlight], row: int, now_ns: int) -> None:
        """Remove the requests that were cancelled since the last plan and are still here."""
        places = self.view.hooks.places
        for request in self._cancelled:
            if not request.num_sampled_tokens:
                self.queued_tokens -= request.prompt_tokens
            if request in self.inbox:
                self.inbox.remove(request)
            elif not any(place.drop(request) for place in places):
                for done in take_out(request, self.view, in_flight):
                    self._leave_late(done, in_flight, row, now_ns)
        self._cancelled.clear()
        self.publish_load()

    def _leave_late(
        self, request: Request, in_flight: Iterable[InFlight], row: int, now_ns: int
    ) -> None:
        """End a request that was done but had to wait for others, which have gone."""
        launched = [batch for batch in in_flight if not batch.is_empty]
        if launched:
            launched[-1].finishing.append(request)
        else:
            self.finish(request, row - 1, now_ns)

    def note_changes(self, row: int) -> None:
        """Record which requests the scheduler call admitted and preempted."""
        view, log = self.view, self._log
        if not (view.newly_admitted or view.newly_preempted):
            return
        for request in view.newly_admitted:
            log.admitted(request, view.now_ns, row)
            request.loaded = ()  # preempted, it may load again
        for request in view.newly_preempted:
            log.preempted(request, row)
            for preempted in view.hooks.preempted:
                preempted(request)
        view.newly_admitted.clear()
        view.newly_preempted.clear()
        self.publish_load()

    def commit(self, plan: Plan, batch: InFlight) -> None:
        """Book at its launch what a step will compute, before any token exists.

        As in vLLM's ``_update_after_schedule``: counts rise, finished prefills start to decode, and
        requests whose last token is planned go to ``batch.finishing``. The engine knows output
        lengths, so no step is planned beyond them.
        """
        view, group = self.view, self.view.decode_group
        for request in plan.held_back:
            group.hold_back(request)
            if request.sample == 0 and not request.cancelled:
                self._log.held_back.append((request.index, batch.row))
        if plan.decodes:
            leaving = group.advance(1)  # one token for each decode; returns whose last one it was
            self.leave_group(leaving, batch)
        for request, tokens in plan.prefills:
            request.num_computed_tokens += tokens
            if request.num_uncomputed_tokens:
                continue
            request.num_sampled_tokens += 1
            del view.prefilling[request]
            self._log.prefilled(request, batch.row)
            if request.num_sampled_tokens == 1:
                batch.first_tokens.append(request)
                self.queued_tokens -= request.prompt_tokens
            if request.num_unforked:
                self._fork(request, batch)
            if request.num_sampled_tokens == request.output_tokens:
                request.status = Status.FINISHING
                self._add_finishing(request, batch)
            elif not any_of(view.hooks.prefilled, request, batch):
                request.status = Status.DECODING
                # free the part of its prompt that exceeds the budgets of its layers, if any
                view.kv.drop(request, request.num_computed_tokens)
                group.join(request)

    def _fork(self, request: Request, batch: InFlight) -> None:
        """Start the other answers of a request whose prompt is computed, each as a running
        sequence."""
        view, samples = self.view, request.samples
        assert samples is not None
        lengths, samples.unforked = samples.unforked, ()
        view.num_unforked -= request.num_unforked
        request.num_unforked = 0
        for sample, output_tokens in enumerate(lengths, 1):
            answer = replace(
                request,
                output_tokens=output_tokens,
                sample=sample,
                nodes=None,
                pinned=[],
                shared=None,
            )
            view.kv.fork(request, answer)
            view.running[answer] = None
            if answer.gang is not None:
                answer.gang.members += 1
            if output_tokens == 1:
                answer.status = Status.FINISHING
                self._add_finishing(answer, batch)
            else:
                answer.status = Status.DECODING
                view.decode_group.join(answer)

    def leave_group(self, leaving: list[Request], batch: InFlight) -> None:
        """The last tokens of these decodes are planned in this batch."""
        kv = self.view.kv
        for request in leaving:
            request.status = Status.FINISHING
            request.num_blocks = kv.blocks_held(request, request.num_computed_tokens)
            self._add_finishing(request, batch)

    def _add_finishing(self, request: Request, batch: InFlight) -> None:
        """Let a request leave when this step's outputs are read, or with its static batch."""
        gang = request.gang
        if gang is None:
            batch.finishing.append(request)
            return
        if request.sample == 0 and not request.cancelled:
            self._log.last_token_row[request.index] = batch.row
        gang.done.append(request)
        gang.finish(batch.finishing)

    def read_first_tokens(self, batch: InFlight, visible_ns: int) -> None:
        """Record the first tokens among the outputs of a step that is visible now."""
        late_ns = 0
        if self.view.api_server is not None:
            late_ns = batch.sent_ns - visible_ns
            visible_ns = batch.sent_ns
        for request in batch.first_tokens:
            if not request.cancelled:
                self._log.first_token_ns[request.index] = visible_ns
                if late_ns:
                    self._log.api_first_ns[request.index] = late_ns

    def end(self, batch: InFlight, now_ns: int) -> None:
        """End the requests whose last token is among the outputs of a step that is visible now."""
        for request in batch.finishing:
            self.finish(request, batch.row, now_ns)

    def finish(self, request: Request, row: int, now_ns: int) -> None:
        """Free the blocks of a request whose last token, planned in this row, has been read."""
        view = self.view
        if request.rounds and not (request.sample or request.cancelled):
            self._log.rounds[request.index] = request.rounds
        if view.hooks.read and any_of(view.hooks.read, request):
            return
        if request in view.running:  # not if it was preempted with its last token in flight
            view.remove_running(request)
            view.kv.release(request, request.num_computed_tokens, will_return=False)
        request.status = Status.FINISHED
        if request.cancelled:
            self.publish_load()
            return
        if request.samples is not None:
            request.samples.num_open -= 1
            if request.sample == 0:
                self._log.last_token_row.setdefault(request.index, row)
            if request.samples.num_open or request.samples.cancelled:
                self.publish_load()
                return
        if view.api_server is not None:
            self.publish_load()
            view.api_server.answered(request, row)
            return
        self._log.finished(request, now_ns, row)
        self.publish_load()
        self._on_leave(request)

    @property
    def any_waiting(self) -> bool:
        """Whether a block that becomes free may be taken by a request that has no place yet."""
        view = self.view
        return bool(view.waiting) or any(place.wants_blocks for place in view.hooks.places)

    @property
    def is_empty(self) -> bool:
        """Whether no request is here, and none is on its way to or from here."""
        view = self.view
        if self.inbox or view.num_waiting or view.running:
            return False
        return not any(place.in_transit for place in view.hooks.places)

    def publish_load(self) -> None:
        """Publish the engine's load to the subscriber."""
        if self.on_load is not None:
            view, places = self.view, self.view.hooks.places
            waiting = len(view.waiting) + len(self.inbox) + sum(p.num_waiting for p in places)
            running = view.num_running + sum(place.num_running for place in places)
            self.on_load(ReplicaLoad(waiting, running, self.queued_tokens))
