"""Links that transfers cross on paths, with max-min fair shares, as congestion control gives.

A transfer gets what its most crowded link leaves it, and at most its own pace; what it leaves
unused goes to others. When a transfer starts or ends, rates are recomputed only for transfers that
share links with it, directly or through others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import simpy

from sim.clock import FOREVER_NS, NS_PER_S, call_after

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
        "is_over",
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
        on_done: Callable[[], None],
    ) -> None:
        self.path = path
        self.num_bytes = num_bytes
        self.pace = pace
        """Most bytes per nanosecond that the sender sends."""
        self.on_done = on_done
        self.is_over = False
        """Whether the flow has ended or was cancelled."""
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
        self._alarm_ns = FOREVER_NS
        self._alarm_calls: list[Callable[[simpy.Event], None]] = []
        """Callbacks of the event at that time; cleared if another time comes first."""
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
        if not flow.is_over:
            neighbors = self._take_out(flow, moved)
            self._share_anew(neighbors)
        return moved

    def rate_bytes_per_s(self, flow: Flow) -> float:
        """Return the rate of a flow at this moment."""
        return flow._rate * NS_PER_S

    def _take_out(self, flow: Flow, moved_bytes: int) -> list[Flow]:
        """Remove a flow, count its bytes, and return the flows that shared a link with it."""
        flow.is_over = True
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
        found: dict[Flow, None] = dict.fromkeys(f for f in changed if not f.is_over)
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
        while ends and (ends[0][3].is_over or ends[0][2] != ends[0][3]._version):
            heappop(ends)
        when_ns = ends[0][0] if ends else FOREVER_NS
        if when_ns == self._alarm_ns:
            return
        self._alarm_calls.clear()
        self._alarm_ns = when_ns
        if ends:
            alarm = self._env.timeout(when_ns - int(self._env.now))
            alarm.callbacks.append(self._wake)
            self._alarm_calls = alarm.callbacks

    def _wake(self, _: simpy.Event) -> None:
        self._alarm_ns = FOREVER_NS
        now_ns = int(self._env.now)
        calls: list[Callable[[], None]] = []
        neighbors: dict[Flow, None] = {}
        while self._ends and self._ends[0][0] <= now_ns:
            version, flow = heappop(self._ends)[2:]
            if not flow.is_over and version == flow._version:
                calls.append(flow.on_done)
                neighbors |= dict.fromkeys(self._take_out(flow, flow.num_bytes))
        self._share_anew(neighbors)
        for call in calls:
            call()
