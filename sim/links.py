"""A pipe shared by transfers: each in flight gets an equal part of it (processor sharing).

In virtual time, the bytes that every transfer in flight has been served since the link was last
idle, a transfer ends at a known point whatever comes later; a heap of those costs O(log n) each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import simpy

from sim.clock import NS_PER_S


def call_after(env: simpy.Environment, delay_ns: int, call: Callable[[], None]) -> None:
    """Call now, or after so many nanoseconds."""
    if not delay_ns:
        call()
        return
    env.timeout(delay_ns).callbacks.append(lambda _: call())


class Transfer:
    """Bytes on their way. ``moved_bytes`` is exact once it has ended or was cancelled."""

    __slots__ = ("_ends_at", "_on_done", "moved_bytes", "num_bytes", "started_ns")

    def __init__(
        self, num_bytes: int, started_ns: int, ends_at: float, on_done: Callable[[], None]
    ) -> None:
        self.num_bytes = num_bytes
        self.started_ns = started_ns
        self.moved_bytes = 0
        self._ends_at = ends_at
        self._on_done: Callable[[], None] | None = on_done


class Link:
    """One pipe with a bandwidth and a latency, which each transfer pays once, after its bytes."""

    def __init__(self, env: simpy.Environment, bytes_per_s: float, latency_ns: int = 0) -> None:
        self._env = env
        self._bytes_per_ns = bytes_per_s / NS_PER_S
        self._latency_ns = latency_ns
        self._served_bytes = 0.0  # virtual time
        self._updated_ns = 0
        self._queue: list[tuple[float, int, Transfer]] = []
        self._active = 0
        self._made = 0
        self._alarm: simpy.Event | None = None
        self.moved_bytes = 0
        """Of all transfers that ended or were cancelled."""
        self.busy_ns = 0
        """Time with at least one transfer in flight, up to the last change."""

    @property
    def active(self) -> int:
        """Transfers in flight."""
        return self._active

    def start(self, num_bytes: int, on_done: Callable[[], None]) -> Transfer:
        """Send bytes; ``on_done`` is called when the last has arrived (after the latency)."""
        self._advance()
        now_ns = int(self._env.now)
        transfer = Transfer(num_bytes, now_ns, self._served_bytes + num_bytes, on_done)
        self._made += 1
        heappush(self._queue, (transfer._ends_at, self._made, transfer))
        self._active += 1
        self._set_alarm()
        return transfer

    def cancel(self, transfer: Transfer) -> int:
        """Stop a transfer; returns the whole bytes it has moved. Nothing if it has ended."""
        if transfer._on_done is None:
            return transfer.moved_bytes
        self._advance()
        left = max(transfer._ends_at - self._served_bytes, 0.0)
        self._end(transfer, transfer.num_bytes - math.ceil(left))
        self._set_alarm()
        return transfer.moved_bytes

    def _advance(self) -> None:
        now_ns = int(self._env.now)
        elapsed_ns = now_ns - self._updated_ns
        self._updated_ns = now_ns
        if self._active:
            self.busy_ns += elapsed_ns
            self._served_bytes += elapsed_ns * self._bytes_per_ns / self._active

    def _set_alarm(self) -> None:
        """Wake when the next transfer ends; an alarm that was set before is void."""
        if self._alarm is not None:
            self._alarm.callbacks.clear()
            self._alarm = None
        while self._queue and self._queue[0][2]._on_done is None:
            heappop(self._queue)  # cancelled
        if not self._queue:
            self._served_bytes = 0.0  # idle: keeps the sums small, so exact
            return
        left = max(self._queue[0][0] - self._served_bytes, 0.0)
        delay_ns = math.ceil(left * self._active / self._bytes_per_ns)
        self._alarm = self._env.timeout(delay_ns)
        self._alarm.callbacks.append(self._wake)

    def _wake(self, _: simpy.Event) -> None:
        self._alarm = None
        self._advance()
        # The alarm was for the first: rounding must not leave it a fraction of a byte short.
        self._served_bytes = max(self._served_bytes, self._queue[0][0])
        ended = []
        while self._queue and self._queue[0][0] <= self._served_bytes:
            transfer = heappop(self._queue)[2]
            if transfer._on_done is not None:
                ended.append(transfer._on_done)
                self._end(transfer, transfer.num_bytes)
        self._set_alarm()
        for on_done in ended:
            call_after(self._env, self._latency_ns, on_done)

    def _end(self, transfer: Transfer, moved_bytes: int) -> None:
        transfer._on_done = None
        transfer.moved_bytes = moved_bytes
        self.moved_bytes += moved_bytes
        self._active -= 1
