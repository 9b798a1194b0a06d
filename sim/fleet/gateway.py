"""Between clients and engines: admission, time-outs, retries, and lost requests.

A logical request is one row of the table, however often it is sent: its latencies count from the
first sending, all other columns describe its last attempt.

The life of an attempt: `_send` asks admission and the router, `_dispatch` finds an engine that is
up, `_wait` and `_look` are the client's patience. It ends in `left` (answered or refused for good),
or in `_fail` and `_over`, where its client may send the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import simpy

from sim.clock import Timers, to_s
from sim.engine.engine import Engine
from sim.fleet.handover import Handovers
from sim.fleet.routing import RoutedEngines
from sim.fleet.service import Deadline, RetryBudget, ServiceConfig, ServiceLog
from sim.fleet.source import RequestMaker
from sim.recorder import RequestLog
from sim.request import Request, Status


@dataclass(eq=False, slots=True)
class Attempt:
    """One sending of a request by its client; a proxy may try several engines."""

    request: Request
    number: int
    engine: Engine
    proxied: int = 0
    """Number of engines tried after the first."""
    timers: list[simpy.Event] = field(default_factory=list)
    """When the client looks for what it waits for."""


class Residences(Protocol):
    """Where the engines of a fleet hold requests, and how they give them up."""

    def is_at(self, attempt: Attempt, engine: Engine, /) -> bool:
        """Whether an attempt would be lost with this engine."""
        ...

    def withdraw(self, attempt: Attempt, /, *, drop: bool) -> None:
        """Take a request out of the engines; without ``drop``, it may be served to its end
        without a client."""
        ...


class MixedEngines:
    """The `Residences` of engines that serve requests from start to end."""

    def is_at(self, attempt: Attempt, engine: Engine) -> bool:
        """Whether an attempt was sent to this engine."""
        return attempt.engine is engine

    def withdraw(self, attempt: Attempt, *, drop: bool) -> None:
        """Take a request out of its engine, or let it be served without a client."""
        if attempt.engine.is_up and drop:
            attempt.engine.cancel(attempt.request)
        else:
            attempt.engine.disown(attempt.request)


class PrefillAndDecodeEngines:
    """The `Residences` of engines that hand requests over; what is given up is always dropped."""

    def __init__(self, handovers: Handovers) -> None:
        self._handovers = handovers

    def is_at(self, attempt: Attempt, engine: Engine) -> bool:
        """Whether an attempt has KV, or a place for it, in this engine."""
        if attempt.request.handover is None:
            return attempt.engine is engine
        return self._handovers.is_at(attempt.request, engine)

    def withdraw(self, attempt: Attempt, *, drop: bool) -> None:
        """Take a request out of both of its engines."""
        if attempt.request.handover is not None:
            self._handovers.cancel(attempt.request)
        elif attempt.engine.is_up:
            attempt.engine.cancel(attempt.request)
        else:
            attempt.engine.disown(attempt.request)


class Gateway:
    """Receives requests from the source, and from engines those that leave."""

    def __init__(
        self,
        env: simpy.Environment,
        requests: RequestMaker,
        log: RequestLog,
        service_log: ServiceLog,
        config: ServiceConfig,
    ) -> None:
        self._env = env
        self._requests = requests
        self._log = log
        self._service_log = service_log
        self._config = config
        self._deadlines = config.clients.deadlines
        self._budget = RetryBudget(config.clients, config.seed)
        self._live: dict[int, Attempt] = {}
        self._timers = Timers(env)
        self._num_ended = 0
        self._first_tokens: deque[tuple[int, int]] = deque(maxlen=0)
        """(time, TTFT) of first tokens, in order; none are kept until they are watched."""

    def connect(
        self,
        entry: RoutedEngines,
        residences: Residences,
        submit: Callable[[Engine, Request], None],
        on_end: Callable[[Request], None],
        on_all_ended: Callable[[], None],
    ) -> None:
        """``on_end`` is called with every request that is over, ``on_all_ended`` after the last
        one."""
        self._entry = entry
        self._residences = residences
        self._submit = submit
        self._admission = self._config.admission(entry)
        self._on_end = on_end
        self._on_all_ended = on_all_ended

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

    # An attempt begins.

    def send(self, request: Request) -> None:
        """Send a request for the first time."""
        self._log.arrival_ns[request.index] = self._now_ns
        self._budget.first_attempt()
        self._send(request, 1)

    def _send_again(self, request: Request, number: int) -> None:
        self._send(self._anew(request), number)

    def _send(self, request: Request, number: int) -> None:
        self._service_log.sent.append(self._now_ns)
        reason = self._admission.admit(request)
        if reason is not None:
            self._over(request, number, Status.REJECTED, reason)
            return
        position = self._entry.choose(request)
        attempt = Attempt(request, number, self._entry.engines[position])
        self._live[request.index] = attempt
        self._wait(attempt, self._deadlines)
        self._dispatch(attempt, position)

    def _dispatch(self, attempt: Attempt, position: int) -> None:
        """Hand an attempt to an engine that is up, as far as the proxy tries others."""
        entry = self._entry
        while True:
            attempt.engine = engine = entry.engines[position]
            if engine.is_up:
                self._submit(engine, attempt.request)
                return
            other = entry.next_up(position)
            if other == position or not self._tries_another(attempt):
                break
            position = other
        down = "no engine is up" if not entry.num_up else "its engine is down"
        self._fail(attempt, Status.FAILED, down)

    def _tries_another(self, attempt: Attempt) -> bool:
        """Whether the proxy tries one more engine; counts it if so."""
        if attempt.proxied >= self._config.faults.proxy_retries:
            return False
        attempt.proxied += 1
        self._service_log.proxy_retries += 1
        return True

    # Its client waits.

    def _wait(self, attempt: Attempt, deadlines: Sequence[Deadline], waited_ns: int = 0) -> None:
        """Schedule the next look of a client; clients without deadlines wait forever."""
        if deadlines:
            look = partial(self._look, attempt, deadlines)
            attempt.timers.append(self._timers.after(deadlines[0].after_ns - waited_ns, look))

    def _look(self, attempt: Attempt, deadlines: Sequence[Deadline]) -> None:
        """Give up what is not there at the first of the deadlines, or wait for the next."""
        due, *later = deadlines
        if not due.needs_answer and attempt.engine.first_token_ns(attempt.request) >= 0:
            self._wait(attempt, later, due.after_ns)
            return
        self._residences.withdraw(attempt, drop=self._config.clients.server_notices)
        self._fail(attempt, Status.ABANDONED, due.reason)

    # It loses its engine.

    def crash(self, engine: Engine) -> None:
        """Handle the crash of an engine, with all requests in it."""
        lost = [a for a in self._live.values() if self._residences.is_at(a, engine)]
        engine.crash()
        for attempt in lost:
            self._residences.withdraw(attempt, drop=True)
        for attempt in lost:
            self._retry_elsewhere(attempt, "the engine it was in went down")

    def fail_handover(self, request: Request, reason: str) -> None:
        """Handle a request that no decode engine takes over."""
        attempt = self._live[request.index]
        self._residences.withdraw(attempt, drop=True)
        self._retry_elsewhere(attempt, reason)

    def _retry_elsewhere(self, attempt: Attempt, reason: str) -> None:
        """Retry an attempt that lost its engine on another one, or fail it."""
        if not self._tries_another(attempt):
            self._fail(attempt, Status.FAILED, reason)
            return
        attempt.request = self._anew(attempt.request)
        position = self._entry.choose(attempt.request)
        if self._entry.engines[position] is attempt.engine:
            position = self._entry.next_up(position)
        self._dispatch(attempt, position)

    def _anew(self, request: Request) -> Request:
        """Return a fresh copy of a request; its row now describes the new attempt."""
        self._log.sent_again(request.index, self._now_ns)
        return self._requests.again(request, self._now_ns)

    # It ends.

    def left(self, request: Request) -> None:
        """Handle a request that an engine is done with: it finished, or can never be served."""
        attempt = self._live.pop(request.index)
        first_ns = self._log.first_token_ns[request.index]
        if first_ns >= 0:
            self._first_tokens.append((first_ns, first_ns - attempt.request.arrival_ns))
        self._let_go(attempt)
        self._ended(request)

    def _fail(self, attempt: Attempt, status: Status, reason: str) -> None:
        del self._live[attempt.request.index]
        self._let_go(attempt)
        self._over(attempt.request, attempt.number, status, reason)

    def _let_go(self, attempt: Attempt) -> None:
        for timer in attempt.timers:
            self._timers.off(timer)
        self._admission.left(attempt.request)

    def _over(self, request: Request, number: int, status: Status, reason: str) -> None:
        """Handle a failed attempt: its client retries later, or gives up for good."""
        if self._budget.take(number):
            self._service_log.client_retries += 1
            delay_ns = self._budget.delay_ns(request.index, number)
            self._timers.after(delay_ns, partial(self._send_again, request, number + 1))
            return
        self._service_log.retries_denied = self._budget.denied
        if status is Status.REJECTED:
            self._log.rejected(request, self._now_ns, reason)
        else:
            self._log.failed(request.index, self._now_ns, status, reason)
        self._ended(request)

    def _ended(self, request: Request) -> None:
        self._num_ended += 1
        self._on_end(request)
        if self._num_ended == self._requests.num_requests:
            self._on_all_ended()

    # First tokens, for autoscalers.

    def watch_first_tokens(self) -> Callable[[float], list[float]]:
        """Start to record first tokens; return `sim.protocols.ServiceView.ttfts_s`."""
        self._first_tokens = deque()
        return self._ttfts_s

    def _ttfts_s(self, window_s: float) -> list[float]:
        now_ns = self._now_ns
        start_ns = now_ns - round(window_s * 1e9)
        while self._first_tokens and self._first_tokens[0][0] < start_ns:
            self._first_tokens.popleft()
        found = [ttft_ns for first_ns, ttft_ns in self._first_tokens if first_ns >= start_ns]
        for attempt in self._live.values():
            request = attempt.request
            first_ns = attempt.engine.first_token_ns(request)
            if first_ns < 0:
                found.append(now_ns - request.arrival_ns)
            elif first_ns >= start_ns:
                found.append(first_ns - request.arrival_ns)
        return [to_s(ttft_ns) for ttft_ns in found]
