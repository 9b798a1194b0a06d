"""The requests of one engine, from their arrival to their end, and what each step makes of them.

`receive` lets in what has arrived, `commit` books a planned step, `end` what its outputs, read
now, bring to an end. Of the clocks it knows nothing: that is `sim.engine.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sim.engine.arriving import ArrivingKV
from sim.engine.batch import Plan
from sim.engine.leaving import answers_of, refusal, take_out
from sim.engine.pipeline import InFlight
from sim.engine.view import EngineView
from sim.protocols import HandOver, ReplicaLoad
from sim.recorder import DecodeLog, RequestLog
from sim.request import Request, Status


class Lifecycle:
    """Who is in an engine, and where: arriving, waiting, running, or on the way elsewhere."""

    view: EngineView

    def __init__(
        self,
        log: RequestLog | DecodeLog,
        on_leave: Callable[[Request], None],
        replica: int,
        wake: Callable[[], None],
    ) -> None:
        """``wake``: let the engine look at what has changed from outside, at its next plan."""
        self._log = log
        self._on_leave = on_leave
        self._replica = replica
        self._wake = wake
        self.on_load: Callable[[ReplicaLoad], None] | None = None
        """Told of the load whenever it has changed."""
        self.hand_over: HandOver | None = None
        """Where this engine only prefills: takes what has its first token."""
        self.arriving: ArrivingKV | None = None
        """Where it decodes what was prefilled elsewhere."""

    def start(self, view: EngineView) -> None:
        """A new process with nothing in it."""
        self.view = view
        self.inbox: list[Request] = []
        self.queued_tokens = 0
        self.handed_over: dict[Request, None] = {}
        """Prefilled here; their blocks stay until their KV is elsewhere."""
        self.fetching: dict[Request, Callable[[], None]] = {}
        """Sent here, their prefixes still to be fetched; how to give each up."""
        self.pinned_for_peers = 0
        """Prefixes that others are fetching from here: their blocks stay."""
        self._cancelled: list[Request] = []
        if self.arriving is not None:
            self.arriving = ArrivingKV(view, self.arriving.on_blocks)

    def await_prefix(self, request: Request, give_up: Callable[[], None], now_ns: int) -> None:
        """It was sent here, and joins the queue when `prefix_arrived`: until then it counts as one
        that waits here. ``give_up`` is called if it is cancelled before."""
        self._note_arrival(request, now_ns)
        self.fetching[request] = give_up
        self.queued_tokens += request.prompt_tokens
        self.publish_load()

    def prefix_arrived(self, request: Request) -> None:
        """What was to be fetched for it is cached, or will not come."""
        del self.fetching[request]
        self.inbox.append(request)
        self._wake()

    def lend(self, prefixes: int) -> None:
        """So many more of its cached prefixes are being fetched; negative: no longer."""
        self.pinned_for_peers += prefixes
        if prefixes < 0:
            self._wake()

    def expect(self, request: Request) -> None:
        """A request prefilled elsewhere will be decoded here: it gets blocks for its KV."""
        assert self.arriving is not None, "an engine that takes KV"
        self.arriving.waiting.append(request)
        self.publish_load()
        self._wake()

    def join(self, request: Request) -> None:
        """All KV of an expected request is there."""
        assert self.arriving is not None, "an engine that takes KV"
        self.arriving.ready(request)
        self._wake()

    def let_go(self, request: Request) -> None:
        """The KV of a request that was handed over is at its new place: free its blocks."""
        self._free(request)
        self._wake()

    def _note_arrival(self, request: Request, now_ns: int) -> None:
        log, index = self._log, request.index
        if log.arrival_ns[index] < 0:  # not so if it is sent again
            log.arrival_ns[index] = now_ns
        log.replica[index] = self._replica

    def submit(self, request: Request, now_ns: int) -> bool:
        """Take an arriving request, to be seen by the next scheduler call; False: turned away."""
        log = self._log
        self._note_arrival(request, now_ns)
        reason = self.refusal(request)
        if reason:
            request.status = Status.REJECTED
            log.rejected(request, now_ns, reason)
            self._on_leave(request)
            return False
        self.inbox.append(request)
        self.queued_tokens += request.prompt_tokens
        self.publish_load()
        return True

    def refusal(self, request: Request) -> str | None:
        """Why it can never be served here; None if it can."""
        return refusal(request, self.view, self.hand_over)

    def _free(self, request: Request) -> None:
        del self.handed_over[request]
        self.view.kv.release(request, request.num_computed_tokens, will_return=False)

    def cancel(self, request: Request, in_flight: Iterable[InFlight]) -> None:
        """Let it leave at the next plan, wherever it is; see `disown`."""
        self._cancelled += self.disown(request, in_flight)

    def disown(self, request: Request, in_flight: Iterable[InFlight]) -> list[Request]:
        """Nobody waits for it any more: nothing is noted of it. Returns its answers."""
        answers = answers_of(request, self.view, in_flight)
        for answer in answers:
            answer.cancelled = True
        if request.samples is not None:
            request.samples.cancelled = True
        return answers

    def receive(self, in_flight: Iterable[InFlight], row: int, now_ns: int) -> bool:
        """At a scheduler call, of the run of steps ``row``: take in what came, drop what left.

        Whether a plan that stood before stands no more.
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
        if self.view.loading:
            changed |= self.view.loading.take_in()
        if self.arriving:
            for request in self.arriving.take_in():
                self._log.admitted(request, now_ns, row)
                changed = True
        return changed

    def _drop_cancelled(self, in_flight: Iterable[InFlight], row: int, now_ns: int) -> None:
        """Take out those that were cancelled since the last plan, and are still there."""
        arriving = self.arriving
        for request in self._cancelled:
            if not request.num_sampled_tokens and arriving is None:
                self.queued_tokens -= request.prompt_tokens
            if request in self.inbox:
                self.inbox.remove(request)
            elif request in self.fetching:
                self.fetching.pop(request)()
            elif request in self.handed_over:
                self._free(request)
            elif self.view.loading is not None and self.view.loading.drop(request):
                pass  # what is on its way to it arrives for nobody
            elif arriving is None or not arriving.drop(request):
                for done in take_out(request, self.view, in_flight):
                    self._leave_late(done, in_flight, row, now_ns)
        self._cancelled.clear()
        self.publish_load()

    def _leave_late(
        self, request: Request, in_flight: Iterable[InFlight], row: int, now_ns: int
    ) -> None:
        """It was done, but had to wait for others, which have gone."""
        launched = [batch for batch in in_flight if not batch.is_empty]
        if launched:
            launched[-1].finishing.append(request)
        else:
            self.finish(request, row - 1, now_ns)

    def note_changes(self, row: int) -> None:
        """After a scheduler call: whom it admitted and preempted."""
        view, log = self.view, self._log
        if not (view.newly_admitted or view.newly_preempted):
            return
        for request in view.newly_admitted:
            log.admitted(request, view.now_ns, row)
            request.loaded = ()  # preempted, it may load again
        for request in view.newly_preempted:
            log.preempted(request, row)
            if self.hand_over is not None:
                self.hand_over.preempted(request)
        view.newly_admitted.clear()
        view.newly_preempted.clear()
        self.publish_load()

    def commit(self, plan: Plan, batch: InFlight) -> None:
        """Book what the step computes: tokens, samples, who decodes next and who is done."""
        view, group = self.view, self.view.decode_group
        for request in plan.held_back:
            group.hold_back(request)
            if request.sample == 0 and not request.cancelled:
                self._log.held_back.append((request.index, batch.row))
        if plan.decodes:
            self.leave_group(group.advance(1), batch)
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
            if request.samples is not None and request.samples.unforked:
                self._fork(request, batch)
            if request.num_sampled_tokens == request.output_tokens:
                request.status = Status.FINISHING
                self._add_finishing(request, batch)
            elif self.hand_over is not None:
                request.status = Status.FINISHING
                del view.running[request]
                self.handed_over[request] = None
                batch.finishing.append(request)
                if request.gang is not None:  # it leaves by itself, and the others without it
                    request.gang.leave(batch.finishing)
            else:
                request.status = Status.DECODING
                view.kv.drop(request, request.num_computed_tokens)
                group.join(request)

    def _fork(self, request: Request, batch: InFlight) -> None:
        """Its prompt is computed: the other answers begin, each a running sequence from now on."""
        view, samples = self.view, request.samples
        assert samples is not None
        lengths, samples.unforked = samples.unforked, ()
        view.num_unforked -= len(lengths)
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
        """The last tokens of these decodes are planned, in this batch."""
        kv = self.view.kv
        for request in leaving:
            request.status = Status.FINISHING
            request.num_blocks = kv.blocks_held(request, request.num_computed_tokens)
            self._add_finishing(request, batch)

    def _add_finishing(self, request: Request, batch: InFlight) -> None:
        """This step plans its last token; it leaves when that is read, or its gang's is."""
        gang = request.gang
        if gang is None:
            batch.finishing.append(request)
            return
        if request.sample == 0 and not request.cancelled:
            self._log.last_token_row[request.index] = batch.row
        gang.done.append(request)
        gang.finish(batch.finishing)

    def read_first_tokens(self, batch: InFlight, visible_ns: int) -> None:
        """The outputs of a step are visible now: some requests have their first token."""
        for request in batch.first_tokens:
            if not request.cancelled:
                self._log.first_token_ns[request.index] = visible_ns

    def end(self, batch: InFlight, now_ns: int) -> None:
        """The outputs of a step are visible now: its last tokens end requests."""
        for request in batch.finishing:
            self.finish(request, batch.row, now_ns)

    def finish(self, request: Request, row: int, now_ns: int) -> None:
        """Its last token, planned in this row, has been read: free its blocks, let it go."""
        view = self.view
        if request.rounds and not (request.sample or request.cancelled):
            self._log.rounds[request.index] = request.rounds
        if self.hand_over is not None and request.num_sampled_tokens < request.output_tokens:
            if not request.cancelled:
                request.status = Status.TRANSFERRING
                self.hand_over.prefilled(request, self._replica)
            return
        if request in view.running:  # not so if it was preempted with its last token in flight
            view.left(request)
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
        self._log.finished(request, now_ns, row)
        self.publish_load()
        self._on_leave(request)

    @property
    def any_waiting(self) -> bool:
        """Whether a block that comes free may be taken by someone who has no place yet."""
        arriving = self.arriving
        return bool(self.view.waiting) or (arriving is not None and bool(arriving.waiting))

    @property
    def any_kv_elsewhere(self) -> bool:
        """Whether blocks are held for KV that moves between engines, or comes from a lower tier."""
        between = self.handed_over or self.arriving or self.fetching or self.pinned_for_peers
        return bool(between or self.view.loading)

    @property
    def is_empty(self) -> bool:
        """Whether no request is here, and none is on its way to or from here."""
        view = self.view
        return not (self.inbox or view.waiting or view.running or self.any_kv_elsewhere)

    def publish_load(self) -> None:
        """Tell who asked of the load."""
        if self.on_load is not None:
            waiting, running = len(self.view.waiting) + len(self.inbox), self.view.num_running
            if self.view.loading is not None:
                waiting += len(self.view.loading)
            waiting += len(self.fetching)
            if self.arriving is not None:
                waiting += len(self.arriving.waiting)
                running += self.arriving.in_place
            self.on_load(ReplicaLoad(waiting, running, self.queued_tokens))
