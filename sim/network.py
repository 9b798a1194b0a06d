"""Links with transfers on them: one shared pipe, or a network with max-min fair shares.

In a network a transfer gets what its most crowded link leaves it, and at most its own pace; what it
leaves unused goes to others. When a transfer starts or ends, rates are recomputed only for
transfers that share links with it, directly or through others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import simpy

from sim.clock import NS_PER_S


def call_after(env: simpy.Environment, delay_ns: int, call: Callable[[], None]) -> None:
    """Call ``call`` now if ``delay_ns`` is 0, else after that time."""
    if not delay_ns:
        call()
        return
    env.timeout(delay_ns).callbacks.append(lambda _: call())


class Transfer:
    """Bytes on one link. ``moved_bytes`` is exact once the transfer has ended or was cancelled."""

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
    """One pipe, shared equally. Each transfer pays the latency once, after its last byte."""

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
        """Bytes of all transfers that ended or were cancelled."""
        self.busy_ns = 0
        """Time with at least one transfer in flight, up to the last change."""

    @property
    def active(self) -> int:
        """Return the number of transfers in flight."""
        return self._active

    def start(self, num_bytes: int, on_done: Callable[[], None]) -> Transfer:
        """Start a transfer; ``on_done`` is called when its last byte has arrived, latency
        included."""
        self._advance()
        now_ns = int(self._env.now)
        transfer = Transfer(num_bytes, now_ns, self._served_bytes + num_bytes, on_done)
        self._made += 1
        heappush(self._queue, (transfer._ends_at, self._made, transfer))
        self._active += 1
        self._set_alarm()
        return transfer

    def cancel(self, transfer: Transfer) -> int:
        """Stop a transfer and return the whole bytes it has moved. Does nothing if it has ended."""
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
        """Schedule a wake-up for the next transfer that ends; an earlier wake-up becomes void."""
        if self._alarm is not None:
            self._alarm.callbacks.clear()
            self._alarm = None
        while self._queue and self._queue[0][2]._on_done is None:
            heappop(self._queue)  # cancelled
        if not self._queue:
            self._served_bytes = 0.0  # when idle: keeps the sums small, and so exact
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


_PATIENCE = 1e-9
"""Relative tolerance: rates this close are one bottleneck, and this fraction of a byte is no byte.
"""


class Flow:
    """Bytes on a path of links."""

    __slots__ = (
        "_left",
        "_rate",
        "_updated_ns",
        "_version",
        "num_bytes",
        "on_done",
        "pace",
        "path",
    )

    def __init__(
        self,
        path: tuple[str, ...],
        num_bytes: int,
        pace: float,
        now_ns: int,
        on_done: Callable[[], None] | None,
    ) -> None:
        self.path = path
        self.num_bytes = num_bytes
        self.pace = pace
        """Most bytes per nanosecond that the sender sends."""
        self.on_done = on_done
        """None once the flow has ended or was cancelled."""
        self._left = float(num_bytes)
        self._rate = 0.0
        self._updated_ns = now_ns
        self._version = 0

    def left_bytes(self, now_ns: int) -> float:
        """Return the bytes that have not arrived at ``now_ns``."""
        return max(self._left - self._rate * (now_ns - self._updated_ns), 0.0)


class Network:
    """Named links, each with a bandwidth. The same calls give the same times, to the nanosecond."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._bytes_per_ns: dict[str, float] = {}
        self._flows: dict[str, dict[Flow, None]] = {}
        self._ends: list[tuple[int, int, int, Flow]] = []  # (when, order, version, flow)
        self._made = 0
        self._alarm: tuple[int, simpy.Event] | None = None
        self.moved_bytes: dict[str, int] = {}
        """Bytes by link, of flows that ended or were cancelled."""

    def add_link(self, name: str, bytes_per_s: float) -> None:
        """Add a link, or set its bandwidth anew; 0 cuts it."""
        known = name in self._bytes_per_ns
        self._bytes_per_ns[name] = bytes_per_s / NS_PER_S
        if known:
            self._share_anew(self._flows[name])
        else:
            self._flows[name] = {}
            self.moved_bytes[name] = 0

    def bandwidth(self, name: str) -> float:
        """Return the bytes per second that a link can carry now."""
        return self._bytes_per_ns[name] * NS_PER_S

    def start(
        self,
        path: tuple[str, ...],
        num_bytes: int,
        on_done: Callable[[], None],
        *,
        latency_ns: int = 0,
        pace_bytes_per_s: float = math.inf,
    ) -> Flow:
        """Send bytes over all links of ``path``; ``on_done`` is called when the last has arrived.

        ``latency_ns`` passes after the bytes. With an empty path, or no bytes, only the latency
        passes, and the time that the pace asks for.
        """

        def arrived() -> None:
            call_after(self._env, latency_ns, on_done)

        pace = pace_bytes_per_s / NS_PER_S
        flow = Flow(path, num_bytes, pace, int(self._env.now), arrived)
        for name in path:
            self._flows[name][flow] = None
        self._share_anew([flow])
        return flow

    def cancel(self, flow: Flow) -> int:
        """Stop a flow and return the whole bytes it has moved."""
        now_ns = int(self._env.now)
        moved = flow.num_bytes - math.ceil(flow.left_bytes(now_ns))
        if flow.on_done is not None:
            neighbors = self._take_out(flow, moved)
            self._share_anew(neighbors)
        return moved

    def rate_bytes_per_s(self, flow: Flow) -> float:
        """Return the rate of a flow at this moment."""
        return flow._rate * NS_PER_S

    def _take_out(self, flow: Flow, moved_bytes: int) -> list[Flow]:
        """Remove a flow, count its bytes, and return the flows that shared a link with it."""
        flow.on_done = None
        neighbors: dict[Flow, None] = {}
        for name in flow.path:
            del self._flows[name][flow]
            self.moved_bytes[name] += moved_bytes
            neighbors |= self._flows[name]
        return list(neighbors)

    def _share_anew(self, changed: Iterable[Flow]) -> None:
        """Recompute the rates of all flows connected to ``changed``, and the next wake-up."""
        flows = self._connected(changed)
        now_ns = int(self._env.now)
        for flow in flows:
            flow._left = flow.left_bytes(now_ns)
            flow._updated_ns = now_ns
        for flow, rate in self._fair_rates(flows).items():
            flow._rate = rate
            flow._version += 1
            if rate > 0 or flow._left <= 0:
                wait_ns = math.ceil(flow._left / rate * (1 - _PATIENCE)) if rate > 0 else 0
                self._made += 1
                heappush(self._ends, (now_ns + wait_ns, self._made, flow._version, flow))
        self._set_alarm()

    def _connected(self, changed: Iterable[Flow]) -> list[Flow]:
        found: dict[Flow, None] = dict.fromkeys(f for f in changed if f.on_done is not None)
        queue, links = list(found), set()
        while queue:
            for name in queue.pop().path:
                if name in links:
                    continue
                links.add(name)
                new = [flow for flow in self._flows[name] if flow not in found]
                found |= dict.fromkeys(new)
                queue += new
        return list(found)

    def _fair_rates(self, flows: list[Flow]) -> dict[Flow, float]:
        """Progressive filling: raise all rates together until each flow meets its first limit."""
        rates: dict[Flow, float] = {}
        open_flows = dict.fromkeys(flows)
        room = {name: self._bytes_per_ns[name] for flow in flows for name in flow.path}
        counts = dict.fromkeys(room, 0)
        for flow in flows:
            for name in flow.path:
                counts[name] += 1
        while open_flows:
            shares = {name: max(room[name], 0.0) / counts[name] for name in room if counts[name]}
            limits = {
                flow: min([flow.pace, *(shares[name] for name in flow.path)]) for flow in open_flows
            }
            level = min(limits.values())
            for flow in [f for f, limit in limits.items() if limit <= level * (1 + _PATIENCE)]:
                rates[flow] = level if level < math.inf else flow._left + 1.0
                del open_flows[flow]
                for name in flow.path:
                    room[name] -= level
                    counts[name] -= 1
        return rates

    def _set_alarm(self) -> None:
        ends = self._ends
        while ends and (ends[0][3].on_done is None or ends[0][2] != ends[0][3]._version):
            heappop(ends)
        when_ns = ends[0][0] if ends else None
        if self._alarm is not None:
            if self._alarm[0] == when_ns:
                return
            self._alarm[1].callbacks.clear()
            self._alarm = None
        if when_ns is not None:
            alarm = self._env.timeout(when_ns - int(self._env.now))
            alarm.callbacks.append(self._wake)
            self._alarm = when_ns, alarm

    def _wake(self, _: simpy.Event) -> None:
        self._alarm = None
        now_ns = int(self._env.now)
        calls: list[Callable[[], None]] = []
        neighbors: dict[Flow, None] = {}
        while self._ends and self._ends[0][0] <= now_ns:
            version, flow = heappop(self._ends)[2:]
            if flow.on_done is not None and version == flow._version:
                calls.append(flow.on_done)
                neighbors |= dict.fromkeys(self._take_out(flow, flow.num_bytes))
        self._share_anew(neighbors)
        for call in calls:
            call()
