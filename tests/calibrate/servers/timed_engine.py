"""The stand-in for vLLM's engine core, behind the stand-in for its API server, in real time."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scenarios.build.replica import Replica
from tests.calibrate.engines.fake_core import FakeCore, FakeRequest

_TURNS = 8


class TimedEngine:
    """An engine whose steps take as long as fleetcast prices them, for `fake_server.running`."""

    takes_token_ids = True

    def __init__(self, replica: Replica, *, request_s: float) -> None:
        self._core = FakeCore(replica.cost)
        self._request_s = request_s
        self._server = asyncio.new_event_loop()
        self._arrived: queue.SimpleQueue[FakeRequest] = queue.SimpleQueue()
        self._answers: dict[str, queue.SimpleQueue[bool]] = {}
        self._is_working = False
        self._count = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let the engine step for as long as the context lasts."""
        self._is_working = True
        threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._run, self._server.run_forever)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_working = False
            self._server.call_soon_threadsafe(self._server.stop)
            for thread in threads:
                thread.join()
            self._server.close()

    def answer(self, body: dict[str, Any], tokens: int) -> Iterator[None]:
        """Yield once for each token of the answer, when it is there."""
        received = asyncio.run_coroutine_threadsafe(self._receive(), self._server)
        request = FakeRequest(f"r{received.result()}", tokens, body["max_tokens"])
        mine = self._answers[request.request_id] = queue.SimpleQueue()
        self._arrived.put(request)
        for _ in range(request.max_tokens):
            mine.get()
            yield

    async def _receive(self) -> int:
        """Work on a request, in turns with the others; return its number."""
        for _ in range(_TURNS):
            time.sleep(self._request_s / _TURNS)  # as work does, it lets nothing else run
            await asyncio.sleep(0)
        self._count += 1
        return self._count

    def _run(self) -> None:
        while self._is_working:
            if not self._core.scheduler.has_requests():
                try:
                    self._core.add_request(self._arrived.get(timeout=0.05))
                except queue.Empty:
                    continue
            while not self._arrived.empty():
                self._core.add_request(self._arrived.get())
            began_s, planned_s = time.perf_counter(), self._core.now_s
            outputs, _ = self._core.step_fn()
            took_s = self._core.now_s - planned_s
            time.sleep(max(0.0, began_s + took_s - time.perf_counter()))
            for output in outputs[0].outputs:
                self._answers[output.request_id].put(True)
