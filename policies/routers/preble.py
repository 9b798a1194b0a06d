"""Preble's E2: exploit a cache that holds most of the prompt, else explore."""

from __future__ import annotations

from collections import deque

from policies.routers.cache_index import CacheIndex
from sim.clock import to_ns
from sim.errors import ScenarioError
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class Preble:
    """Exploit an engine that caches more than half of the prompt, else explore.

    Exploiting chooses the least loaded engine that caches the longest prefix. Exploring chooses the
    engine at which the request costs least, counting recent work there and
    its own prefill. Work is the predicted prefill time of what was sent to an engine within the
    last ``window_s`` seconds, without what was cached; an answer counts as ``decode_tokens`` prompt
    tokens. An engine with more than ``imbalance`` times the least work is not exploited. The cost
    leaves out what the request evicts (the paper adds the time to compute it again). The router
    learns ``cache_delay_s`` late what is cached and evicted. A choice looks at all engines:
    O(replicas). The lowest index wins among equals.

    Source: Srivatsa et al. 2024 (Preble, arXiv 2407.00023), section 3, algorithm E2.
    """

    def __init__(
        self,
        context: RoutingContext,
        *,
        window_s: float = 180.0,
        imbalance: float = 1.5,
        decode_tokens: int = 256,
        cache_delay_s: float = 0.0,
    ) -> None:
        if not window_s > 0:
            raise ScenarioError(f"window_s is {window_s}; it is above 0")
        if imbalance < 1:
            raise ScenarioError(f"imbalance is {imbalance}; it is at least 1")
        self._context = context
        self._index = CacheIndex(context, cache_delay_s)
        self._window_ns, self._imbalance = to_ns(window_s), imbalance
        self._decode_tokens = decode_tokens
        n = context.num_replicas
        self._sent: list[deque[tuple[int, float]]] = [deque() for _ in range(n)]
        self._work_s = [0.0] * n
        self._is_up = [True] * n

    def choose(self, request: Request) -> int:
        ids, size = self._context.prefix_ids(request), self._context.prefix_tokens
        prompt = request.prompt_tokens
        depth, holders = self._index.deepest(ids)
        cached = min(depth * size, prompt - 1)
        self._forget_old()
        up = [replica for replica, is_up in enumerate(self._is_up) if is_up] or [0]
        least_s = min(self._work_s[replica] for replica in up)
        exploits = [
            replica
            for replica in holders
            if self._is_up[replica] and self._work_s[replica] <= self._imbalance * least_s
        ]
        if exploits and cached > prompt - cached:
            replica = min(exploits, key=lambda one: (self._work_s[one], one))
            self._send(replica, cached, prompt)
            return replica
        costs = {
            one: self._work_s[one] + self._cost_s(one, cached if one in holders else 0, prompt)
            for one in up
        }
        replica = min(costs, key=lambda one: (costs[one], one))
        self._send(replica, cached if replica in holders else 0, prompt)
        return replica

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        pass

    def down(self, replica: int) -> None:
        self._index.lost(replica)
        self._is_up[replica] = False

    def up(self, replica: int) -> None:
        """Take requests again, with no recent work."""
        self._is_up[replica] = True
        self._sent[replica].clear()
        self._work_s[replica] = 0.0

    def _send(self, replica: int, cached: int, prompt: int) -> None:
        cost_s = self._cost_s(replica, cached, prompt)
        self._sent[replica].append((self._context.now_ns, cost_s))
        self._work_s[replica] += cost_s

    def _cost_s(self, replica: int, cached: int, prompt: int) -> float:
        """Return the seconds of a request at a replica: its prefill, and how much its answer slows
        others."""
        own_s = self._context.prefill_s(replica, cached, prompt - cached)
        return own_s + self._context.prefill_s(replica, 0, self._decode_tokens)

    def _forget_old(self) -> None:
        before_ns = self._context.now_ns - self._window_ns
        for replica, sent in enumerate(self._sent):
            while sent and sent[0][0] < before_ns:
                self._work_s[replica] -= sent.popleft()[1]
            if not sent:
                self._work_s[replica] = 0.0  # rounding errors of the sum do not pile up
