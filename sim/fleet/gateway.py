"""Between clients and engines: admission, time-outs, retries, and lost requests.

A logical request is one row of the table, however often it is sent: its latencies count from the
first sending, all other columns describe its last attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import simpy

from sim.clock import Timers, to_s
from sim.engine.engine import Engine
from sim.fleet.handover import Handovers
from sim.fleet.routing import RoutedEngines
from sim.fleet.service import RetryBudget, ServiceConfig, ServiceLog
from sim.recorder import RequestLog
from sim.request import Request, Status
from sim.request_table import RequestTable


@dataclass(eq=False, slots=True)
class _Attempt:
    """One sending of a request by its client; a proxy may try several engines."""

    request: Request
    number: int
    engine: Engine | None = None
    timer: simpy.Event | None = None
    proxied: int = 0
    """Number of engines tried after the first."""
    admitted: bool = False


class Gateway:
    """Receives requests from the source, and from engines those that leave."""

    def __init__(
        self,
        env: simpy.Environment,
        table: RequestTable,
        log: RequestLog,
        service_log: ServiceLog,
        config: ServiceConfig,
    ) -> None:
        self._env = env
        self._table = table
        self._log = log
        self._service_log = service_log
        self._clients = config.clients
        self._budget = RetryBudget(config.clients, config.seed)
        self._proxy_retries = config.faults.proxy_retries if config.faults is not None else 0
        self._live: dict[int, _Attempt] = {}
        self._timers = Timers(env)
        self._num_ended = 0
        self._first_tokens: deque[tuple[int, int]] | None = None

    def connect(
        self,
        config: ServiceConfig,
        entry: RoutedEngines,
        handovers: Handovers | None,
        submit: Callable[[Engine, Request], None],
        on_end: Callable[[Request], None],
        on_all_ended: Callable[[], None],
    ) -> None:
        """``on_end`` is called with every request that is over, ``on_all_ended`` after the last
        one."""
        self._entry = entry
        self._handovers = handovers
        self._submit = submit
        self._admission = None if config.admission is None else config.admission(entry)
        self._on_end = on_end
        self._on_all_ended = on_all_ended
        if handovers is not None:
            handovers.on_fail = self._fail_handover

    def send(self, request: Request) -> None:
        """Send a request for the first time."""
        self._log.arrival_ns[request.index] = self._now_ns
        self._budget.first_attempt()
        self._send(_Attempt(request, 1))

    def left(self, request: Request) -> None:
        """Handle a request that an engine is done with: it finished, or can never be served."""
        attempt = self._live.pop(request.index)
        if self._first_tokens is not None:
            first_ns = self._log.first_token_ns[request.index]
            if first_ns >= 0:
                self._first_tokens.append((first_ns, first_ns - attempt.request.arrival_ns))
        self._let_go(attempt)
        self._ended(request)

    def crash(self, engine: Engine) -> None:
        """Handle the crash of an engine, with all requests in it."""
        lost = [attempt for attempt in self._live.values() if self._is_at(attempt, engine)]
        engine.crash()
        for attempt in lost:
            self._withdraw(attempt)
        for attempt in lost:
            self._retry_elsewhere(attempt, "the engine it was in went down")

    def watch_first_tokens(self) -> None:
        """Start to record what `ttfts_s` needs."""
        self._first_tokens = deque()

    def ttfts_s(self, window_s: float) -> list[float]:
        """Return what `sim.protocols.ServiceView.ttfts_s` promises."""
        assert self._first_tokens is not None
        now_ns = self._now_ns
        start_ns = now_ns - round(window_s * 1e9)
        while self._first_tokens and self._first_tokens[0][0] < start_ns:
            self._first_tokens.popleft()
        found = [ttft_ns for first_ns, ttft_ns in self._first_tokens if first_ns >= start_ns]
        for attempt in self._live.values():
            request = attempt.request
            first_ns = -1 if attempt.engine is None else attempt.engine.first_token_ns(request)
            if first_ns < 0:
                found.append(now_ns - request.arrival_ns)
            elif first_ns >= start_ns:
                found.append(first_ns - request.arrival_ns)
        return [to_s(ttft_ns) for ttft_ns in found]

    @property
    def num_live(self) -> int:
        """Number of requests that were admitted and have not left."""
        return len(self._live)

    @property
    def progress(self) -> int:
        """A number that grows with every sending and every end."""
        return len(self._service_log.sent) + self._num_ended

    @property
    def _now_ns(self) -> int:
        return self._env.now  # type: ignore[return-value]  # an int: it starts at one

    def _send(self, attempt: _Attempt) -> None:
        request = attempt.request
        self._service_log.sent.append(self._now_ns)
        reason = None if self._admission is None else self._admission.admit(request)
        if reason is not None:
            self._over(attempt, Status.REJECTED, reason)
            return
        attempt.admitted = True
        self._live[request.index] = attempt
        clients = self._clients
        if clients.ttft_timeout_ns is not None:
            look = partial(self._expect_first, attempt)
            attempt.timer = self._timers.after(clients.ttft_timeout_ns, look)
        elif clients.e2e_timeout_ns is not None:
            self._expect_end(attempt)
        self._dispatch(attempt, self._entry.choose(request))

    def _expect_first(self, attempt: _Attempt) -> None:
        """Handle the time-out for the first token of an attempt."""
        assert attempt.engine is not None
        assert self._clients.ttft_timeout_ns is not None
        if attempt.engine.first_token_ns(attempt.request) < 0:
            after_s = to_s(self._clients.ttft_timeout_ns)
            self._give_up(attempt, f"no first token after {after_s:g} s")
        elif self._clients.e2e_timeout_ns is not None:
            self._expect_end(attempt)

    def _expect_end(self, attempt: _Attempt) -> None:
        """Schedule the time-out for the end of an attempt's answer."""
        timeout_ns = self._clients.e2e_timeout_ns
        assert timeout_ns is not None
        reason = f"no answer after {to_s(timeout_ns):g} s"
        left_ns = max(timeout_ns - (self._clients.ttft_timeout_ns or 0), 0)
        attempt.timer = self._timers.after(left_ns, lambda: self._give_up(attempt, reason))

    def _give_up(self, attempt: _Attempt, reason: str) -> None:
        """End an attempt whose client gives up."""
        attempt.timer = None
        self._withdraw(attempt, drop=self._clients.server_notices)
        self._fail(attempt, Status.ABANDONED, reason)

    def _dispatch(self, attempt: _Attempt, position: int) -> None:
        """Hand an attempt to an engine that is up, as far as the proxy tries others."""
        entry = self._entry
        while True:
            attempt.engine = engine = entry.engines[position]
            if engine.is_up:
                self._submit(engine, attempt.request)
                return
            other = entry.next_up(position)
            if attempt.proxied >= self._proxy_retries or other == position:
                break
            attempt.proxied += 1
            self._service_log.proxy_retries += 1
            position = other
        down = "no engine is up" if not entry.num_up else "its engine is down"
        self._fail(attempt, Status.FAILED, down)

    def _retry_elsewhere(self, attempt: _Attempt, reason: str) -> None:
        """Retry an attempt that lost its engine on another one, or fail it."""
        if attempt.proxied >= self._proxy_retries:
            self._fail(attempt, Status.FAILED, reason)
            return
        attempt.proxied += 1
        self._service_log.proxy_retries += 1
        attempt.request = self._anew(attempt.request)
        position = self._entry.choose(attempt.request)
        if self._entry.engines[position] is attempt.engine:
            position = self._entry.next_up(position)
        self._dispatch(attempt, position)

    def _fail_handover(self, request: Request, reason: str) -> None:
        attempt = self._live[request.index]
        self._withdraw(attempt)
        self._retry_elsewhere(attempt, reason)

    def _is_at(self, attempt: _Attempt, engine: Engine) -> bool:
        if self._handovers is not None and attempt.request.handover is not None:
            return self._handovers.is_at(attempt.request, engine)
        return attempt.engine is engine

    def _withdraw(self, attempt: _Attempt, *, drop: bool = True) -> None:
        """Take an attempt's request out of the engines, or let it be served without a client."""
        request, engine = attempt.request, attempt.engine
        assert engine is not None
        if self._handovers is not None and request.handover is not None:
            self._handovers.cancel(request)
        elif engine.is_up and (drop or self._handovers is not None):
            engine.cancel(request)
        else:
            engine.disown(request)

    def _fail(self, attempt: _Attempt, status: Status, reason: str) -> None:
        del self._live[attempt.request.index]
        self._let_go(attempt)
        self._over(attempt, status, reason)

    def _let_go(self, attempt: _Attempt) -> None:
        if attempt.timer is not None:
            self._timers.off(attempt.timer)
            attempt.timer = None
        if self._admission is not None and attempt.admitted:
            self._admission.left(attempt.request)

    def _over(self, attempt: _Attempt, status: Status, reason: str) -> None:
        """Handle a failed attempt: its client retries later, or gives up for good."""
        request, log = attempt.request, self._log
        delay_ns = self._budget.delay_ns(request.index, attempt.number)
        if delay_ns is not None:
            self._service_log.client_retries += 1
            self._timers.after(delay_ns, partial(self._send_again, request, attempt.number + 1))
            return
        self._service_log.retries_denied = self._budget.denied
        if status is Status.REJECTED:
            log.rejected(request, self._now_ns, reason)
        else:
            log.failed(request.index, self._now_ns, status, reason)
        self._ended(request)

    def _send_again(self, request: Request, number: int) -> None:
        self._send(_Attempt(self._anew(request), number))

    def _anew(self, request: Request) -> Request:
        """Return a fresh copy of a request; its row now describes the new attempt."""
        index, now_ns = request.index, self._now_ns
        self._log.sent_again(index, now_ns)
        again = Request(
            index,
            now_ns,
            request.prompt_tokens,
            request.output_tokens,
            request.priority,
            request.tenant,
        )
        if self._table.samples is not None:
            further = self._table.samples.further(index)
            if further:
                again.ask_answers(further)
        if request.beams is not None:
            again.ask_beams(request.beams)
        return again

    def _ended(self, request: Request) -> None:
        self._num_ended += 1
        self._on_end(request)
        if self._num_ended == len(self._table):
            self._on_all_ended()
