"""Mooncake's conductor: route each prompt to the earliest predicted first token."""

from __future__ import annotations

from collections.abc import Sequence

from policies.routers.cache_index import CacheIndex
from policies.routers.lowest import Lowest
from sim.errors import ScenarioError
from sim.protocols import Fetch, ReplicaLoad, RoutingContext
from sim.request import Request


class Conductor:
    """Choose the engine with the least sum of queue, transfer and prefill times.

    The candidates are the engines that cache the longest prefix, and the one with the shortest
    queue. An engine that caches less of the prompt than another may fetch the rest over the
    network, if that is faster than computing it and the other caches more than
    ``balance_threshold`` times as much. Prefixes in demand are replicated so, and the fetch counts
    in the estimate. The queue is estimated in prompt tokens, as if none were cached; the network as
    if it were idle. The router learns ``cache_delay_s`` late what is cached and evicted. The lowest
    index wins among equals.

    Source: Qin et al. 2025 (Mooncake, FAST; arXiv 2407.00079), algorithm 1 and section 6.
    """

    def __init__(
        self,
        context: RoutingContext,
        *,
        balance_threshold: float = 1.5,
        cache_delay_s: float = 0.0,
    ) -> None:
        if balance_threshold < 1:
            raise ScenarioError(f"balance_threshold is {balance_threshold}; it is at least 1")
        self._context = context
        self._threshold = balance_threshold
        self._index = CacheIndex(context, cache_delay_s)
        n = context.num_replicas
        self._queued = [0] * n
        self._is_down = [False] * n
        self._shortest = Lowest(n)
        self._s_per_token: list[float | None] = [None] * n
        self._planned: tuple[int, int, Fetch] | None = None

    def choose(self, request: Request) -> int:
        ids = self._context.prefix_ids(request)
        size, prompt = self._context.prefix_tokens, request.prompt_tokens
        depth, holders = self._index.deepest(ids)
        longest = min(depth * size, prompt - 1)
        peers = [replica for replica in holders if not self._is_down[replica]]
        peer = min(peers, key=lambda replica: (self._queued[replica], replica), default=None)
        best: tuple[float, int, Fetch | None] | None = None
        for replica in sorted({*peers, self._shortest.best()}):
            local = longest if replica in holders else self._cached(ids[:depth], replica)
            queue_s = self._queued[replica] * self._prefill_s_per_token(replica)
            found_s = queue_s + self._context.prefill_s(replica, local, prompt - local)
            if best is None or found_s < best[0]:
                best = found_s, replica, None
            bandwidth = self._context.fetch_bytes_per_s
            if peer is None or bandwidth is None or longest <= self._threshold * local:
                continue
            transfer_s = (longest - local) * self._context.kv_bytes_per_token / bandwidth
            prefill_s = self._context.prefill_s(replica, longest, prompt - longest)
            if queue_s + transfer_s + prefill_s < best[0]:
                best = queue_s + transfer_s + prefill_s, replica, Fetch(peer, longest)
        assert best is not None
        _, replica, fetch = best
        self._planned = None if fetch is None else (request.index, replica, fetch)
        return replica

    def source(self, request: Request, replica: int) -> Fetch | None:
        """Return where the last request chosen for is to fetch from, if it was sent where
        chosen."""
        if self._planned is None or self._planned[:2] != (request.index, replica):
            return None
        return self._planned[2]

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        self._queued[replica] = load.queued_tokens
        self._shortest.set(replica, load.queued_tokens)

    def down(self, replica: int) -> None:
        self._index.lost(replica)
        self._is_down[replica] = True
        self._shortest.down(replica)

    def up(self, replica: int) -> None:
        self._is_down[replica] = False
        self._shortest.up(replica)

    def _cached(self, ids: Sequence[int], replica: int) -> int:
        """Return how many leading tokens of these prefixes a replica caches."""
        return self._index.depth(ids, replica) * self._context.prefix_tokens

    def _prefill_s_per_token(self, replica: int) -> float:
        """Return the seconds per token of a prompt of common length, because the queue's mean is
        unknown."""
        found = self._s_per_token[replica]
        if found is None:
            found = self._context.prefill_s(replica, 0, _COMMON_TOKENS) / _COMMON_TOKENS
            self._s_per_token[replica] = found
        return found


_COMMON_TOKENS = 4096
