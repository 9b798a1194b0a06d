"""Requests whose prefix is loaded from a tier below device memory before they are prefilled.

This is vLLM's state "waiting for remote KVs": when its turn comes, a request gets blocks for the
load and stands aside, so that others go on; when the load is complete, it returns to the head of
the queue and finds its prefix in device memory. With layer-wise loading it is admitted at once, and
the step that begins its prefill waits for layers that are not there in time (`exposed_ns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import simpy

from sim.accounts import CACHE_LOAD
from sim.clock import call_after
from sim.engine.batch import chunk_step
from sim.engine.step import Plan
from sim.engine.view import EngineView
from sim.kv.prefix_index import Hit
from sim.kv.tiers import Segment, Tiers
from sim.protocols import StepCost
from sim.request import Request, Status
from sim.step_log import StepLog


class LoadLog(Protocol):
    """Is told of loads (`sim.recorder`)."""

    def loading(self, request: Request, load_ns: int, /) -> None:
        """The request will wait ``load_ns`` for its KV."""
        ...


class LoadingKV:
    """The loads of one engine."""

    num_running = 0
    wants_blocks = False

    def __init__(self, env: simpy.Environment, tiers: Tiers, log: LoadLog) -> None:
        self._env = env
        self._tiers = tiers
        self._log = log

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._view = view
        self._kv = view.kv
        self._kv.set_over(self._tiers)
        self._wake = wake
        self._under_way: dict[Request, None] = {}
        self._ready: list[Request] = []
        # (start of transfer, end of transfer) of loads that the next step with prefills waits for
        self._due: list[tuple[int, int]] = []
        hooks = view.hooks
        hooks.places.append(self)
        hooks.take_in.append(self._take_in)
        hooks.crashed.append(self._void)
        if self._tiers.config.layerwise:
            hooks.admitted.append(self._overlap)
            hooks.wait_ns.append(self._stall_ns)
        else:
            hooks.loads_first.append(self._begin)

    @property
    def num_waiting(self) -> int:
        """Number of requests whose prefix is being loaded."""
        return len(self._under_way) + len(self._ready)

    @property
    def holding(self) -> Iterable[Request]:
        """Requests whose prefix is being loaded; they hold its blocks."""
        return (*self._under_way, *self._ready)

    @property
    def in_transit(self) -> bool:
        """Whether a prefix is being loaded, or is complete and not taken in yet."""
        return bool(self._under_way or self._ready)

    def _begin(self, request: Request, hit: Hit) -> bool:
        """Start loading the part of a request's prefix that is worth it, before the request is
        admitted.

        Returns False if nothing is worth loading. Happens once per admission: content that is
        evicted again before the request begins is computed.
        """
        found = self._find(request, hit)
        if not found:
            return False
        kv, now_ns = self._kv, int(self._env.now)
        kv.pin(request, hit)
        if request.is_several:
            kv.hold(request, 0)
        end_ns = self._load(request, hit, found)[1]
        self._view.waiting.remove(request)
        request.status = Status.TRANSFERRING
        self._under_way[request] = None
        self._log.loading(request, end_ns - now_ns)
        call_after(self._env, end_ns - now_ns, lambda: self._arrived(request))
        return True

    def _overlap(self, request: Request, hit: Hit) -> None:
        """Start a layer-wise load for a request being admitted; loaded tokens count as computed."""
        found = self._find(request, hit)
        if not found:
            return
        self._due.append(self._load(request, hit, found))
        tokens = request.num_blocks * self._kv.block_size
        request.num_computed_tokens = request.cached_tokens = tokens
        self._kv.register(request, tokens)

    def _stall_ns(self, plan: Plan, start_ns: int, gpu_ns: int, log: StepLog) -> int:
        """Return how long a step with prefills waits for their loads, and log it."""
        if not (plan.prefills and self._due):
            return 0
        layers = self._tiers.config.layers
        stall_ns = max(exposed_ns(*load, start_ns, gpu_ns, layers) for load in self._due)
        log.add_wait(CACHE_LOAD, len(self._due), stall_ns)
        self._due.clear()
        return stall_ns

    def drop(self, request: Request) -> bool:
        """Drop a cancelled request; returns False if it is not here."""
        if request in self._under_way:
            del self._under_way[request]
            tokens = request.pinned_blocks * self._kv.block_size
        elif request in self._ready:
            self._ready.remove(request)
            tokens = request.num_blocks * self._kv.block_size
        else:
            return False
        self._kv.release(request, tokens, will_return=False)
        request.status = Status.ABANDONED
        return True

    def _take_in(self, row: int, now_ns: int) -> bool:
        """Put requests whose load is complete back at the head of the waiting queue."""
        if not self._ready:
            return False
        kv = self._kv
        for request in reversed(self._ready):
            kv.release(request, request.num_blocks * kv.block_size, will_return=False)
            request.num_computed_tokens = 0
            request.status = Status.WAITING
            self._view.waiting.put_back(request)
        self._ready.clear()
        return True

    def _void(self) -> None:
        """Forget all loads, because the engine is gone."""
        self._under_way.clear()
        self._ready.clear()

    def _find(self, request: Request, hit: Hit) -> list[Segment]:
        if request.loaded:
            return []
        tiers, kv = self._tiers, self._kv
        found = tiers.find(request, hit, kv.hit_limit(request))
        return found[: tiers.worthwhile(request, hit, found, kv.block_size)]

    def _load(self, request: Request, hit: Hit, found: list[Segment]) -> tuple[int, int]:
        """Allocate blocks for the load and start it."""
        kv = self._kv
        size = kv.block_size
        blocks = hit.blocks + sum(segment.blocks for segment in found)
        has_blocks = kv.extend(request, blocks * size)
        assert has_blocks, "a request that fits"
        request.loaded = ((0, hit.blocks * size), *((s.tier + 1, s.blocks * size) for s in found))
        return self._tiers.load(found)

    def _arrived(self, request: Request) -> None:
        if request in self._under_way:
            del self._under_way[request]
            self._ready.append(request)
            self._wake()


def prefill_ns(cost: StepCost, view: EngineView, request: Request, computed_tokens: int) -> int:
    """Return the GPU time to prefill a request alone, from ``computed_tokens`` on."""
    total_ns = 0
    while computed_tokens < request.num_target_tokens:
        left = request.num_target_tokens - computed_tokens
        chunk = min(left, view.config.step_token_limit)
        shape = chunk_step(view, computed_tokens, chunk, samples=chunk == left)
        total_ns += cost.price(shape).gpu_ns
        computed_tokens += chunk
    return total_ns


def exposed_ns(begin_ns: int, end_ns: int, start_ns: int, gpu_ns: int, layers: int) -> int:
    """Return how much later a step ends if each layer can be computed only once it is loaded.

    The step would start at ``start_ns`` and take ``gpu_ns``. Layers are loaded evenly from
    ``begin_ns`` to ``end_ns`` and take equally long to compute. Layer i of L is loaded at begin +
    i/L (end - begin), with (L - i + 1)/L of the step still to come; the wait is the longest for the
    first or the last layer.
    """
    first_ns = begin_ns - (begin_ns - end_ns) // layers  # rounded up
    last_ns = end_ns - (gpu_ns - gpu_ns // layers)
    return max(0, first_ns - start_ns, last_ns - start_ns)
