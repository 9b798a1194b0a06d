"""The API server in front of an engine: what clients wait for beside the engine itself.

A request is received, checked and tokenized before the engine sees it; every part of an answer,
one sequence's tokens of one step, is detokenized and sent before its client has it. Both are work
of a Python process that has time of its own, and its event loop takes turns: requests on their way
in share the time equally, so that those of a burst reach the engine near its end, and parts on
their way out go one after the other. Here the two directions do not slow each other. The engine
never waits for its API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING

from sim.clock import Clock, Timers, call_after
from sim.engine.config import ApiServerConfig
from sim.engine.view import EngineView
from sim.recorder import DecodeLog, RequestLog
from sim.request import Request

if TYPE_CHECKING:
    import simpy

    from sim.engine.lifecycle import Lifecycle


class Intake:
    """One process that works on all requests it has at once, in equal shares of its time.

    Times are kept as work done on each request since the start, which all requests have in common:
    one is done once that has grown by its own work.
    """

    def __init__(self, env: Clock, on_done: Callable[[Request], None]) -> None:
        self._env = env
        self._timers = Timers(env)
        self._on_done = on_done
        self._ends: list[tuple[float, int, Request]] = []
        self._num_received = 0
        self._done_ns = 0.0
        self._updated_ns = 0
        self._alarm: simpy.Event | None = None

    def receive(self, request: Request, work_ns: float) -> None:
        """Begin to work on a request."""
        self._advance()
        self._num_received += 1
        heappush(self._ends, (self._done_ns + work_ns, self._num_received, request))
        self._set_alarm()

    def _advance(self) -> None:
        now_ns = self._env.now_ns
        if self._ends:
            self._done_ns += (now_ns - self._updated_ns) / len(self._ends)
        self._updated_ns = now_ns

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._timers.off(self._alarm)
            self._alarm = None
        if self._ends:
            left_ns = max(self._ends[0][0] - self._done_ns, 0.0) * len(self._ends)
            self._alarm = self._timers.after(ceil(left_ns), self._end)

    def _end(self) -> None:
        """Let the next request go, and those that are done at the same time."""
        self._alarm = None
        self._advance()
        self._done_ns = max(self._done_ns, self._ends[0][0])
        while self._ends and self._ends[0][0] <= self._done_ns:
            self._on_done(heappop(self._ends)[2])
        self._set_alarm()


class ApiServer:
    """Requests on their way to one engine, and its answers on their way to clients."""

    num_running = 0
    wants_blocks = False
    holding: Iterable[Request] = ()

    def __init__(
        self,
        env: Clock,
        config: ApiServerConfig,
        lifecycle: Lifecycle,
        log: RequestLog | DecodeLog,
        on_leave: Callable[[Request], None],
    ) -> None:
        """``on_leave`` is called with every request whose answer its client has."""
        self._env = env
        self._config = config
        self._lifecycle = lifecycle
        self._log = log
        self._on_leave = on_leave

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._wake = wake
        self._received_ns: dict[Request, int] = {}
        self._intakes = [Intake(self._env, self._pass_on) for _ in range(self._config.servers)]
        self._num_received = 0
        self.sent_ns = 0
        """When the last part so far is with its client."""
        view.api_server = self
        view.hooks.places.append(self)

    @property
    def num_waiting(self) -> int:
        """Number of requests that the engine has not got yet."""
        return len(self._received_ns)

    @property
    def in_transit(self) -> bool:
        """Whether a request is on its way to the engine."""
        return bool(self._received_ns)

    def drop(self, request: Request) -> bool:
        """Forget a cancelled request; returns False if it is not here."""
        return self._received_ns.pop(request, None) is not None

    def receive(self, request: Request) -> None:
        """Receive a request; the engine gets it once it is tokenized."""
        config = self._config
        work_ns = config.request_ns + config.prompt_token_ns * request.prompt_tokens
        self._received_ns[request] = self._env.now_ns
        intake = self._intakes[self._num_received % config.servers]
        self._num_received += 1
        intake.receive(request, work_ns)

    def _pass_on(self, request: Request) -> None:
        received_ns = self._received_ns.pop(request, None)
        if received_ns is not None:
            self._log.api_arrival_ns[request.index] = self._env.now_ns - received_ns
            self._lifecycle.inbox.append(request)
            self._wake()

    def send(self, parts: int, read_ns: int) -> int:
        """Send a step's parts, read at ``read_ns``; return when their clients have them."""
        work_ns = -(-parts // self._config.servers) * self._config.part_ns
        self.sent_ns = max(self.sent_ns, read_ns) + work_ns
        return self.sent_ns

    def send_run(self, parts: int, read_ns: list[int]) -> list[int]:
        """Send the parts of a run of equal steps; return when clients have those of each."""
        return [self.send(parts, step_ns) for step_ns in read_ns]

    def answered(self, request: Request, row: int) -> None:
        """End a request once its client has the parts sent so far; its last token was planned in
        this row."""
        late_ns = max(self.sent_ns - self._env.now_ns, 0)
        self._log.api_answer_ns[request.index] = late_ns

        def leave() -> None:
            self._log.finished(request, self._env.now_ns, row)
            self._on_leave(request)

        call_after(self._env, late_ns, leave)
