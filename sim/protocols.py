"""Contracts between the simulator and what it is given: costs, routers, admission, scaling.

`sim` receives these objects and never looks one up. Optional methods are named in each protocol.
Schedulers are in `sim.engine.view`, beside the state that they see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.request import Request
from sim.shape import StepShape
from sim.throttle import PowerThrottle


class StepPrice(NamedTuple):
    """The cost of one step, in integer nanoseconds.

    The engine runs two clocks (see `sim.engine.pipeline`): the host plans and launches, the GPU
    runs.
    """

    gpu_ns: int
    """GPU time of the step's kernels, run back to back."""
    launch_delay_ns: int = 0
    """Time from the end of scheduling to the step's first kernel, if the GPU is free."""
    launch_ns: int = 0
    """Time the host is busy preparing inputs and launching kernels."""
    tail_ns: int = 0
    """The last kernel ends at least this long after the last launch."""
    compute_ns: int = 0
    """The part of ``gpu_ns`` that is compute-bound in a step with prefill; it heats the device."""


class DecodeRun(NamedTuple):
    """The price of a run of decode-only steps. Each sequence's context grows by one token per step.

    A context clipped to a length grows by one token per step while it is shorter than the length.
    """

    first: StepPrice
    """Price of the first step; the host terms are the same for all steps."""
    gpu_cumulative_ns: list[int]
    """``[steps]`` GPU time up to the end of each step. Differences of neighbors equal the prices of
    single steps, bit for bit. (A list, because most runs are short.)"""
    shortest_ns: int
    """The least GPU time of any step of the run."""


class Rises(NamedTuple):
    """Growth of contexts before each step of a run in which contexts grow unevenly."""

    context: list[int]
    """``[steps]`` growth summed over the decoding sequences; the first is 0."""
    clips: list[list[int]]
    """``[clips][steps]`` growth of the sum of contexts clipped to each length."""


class StepCost(Protocol):
    """Prices engine steps. Compiled once per model, GPU, layout and calibration."""

    @property
    def throttle(self) -> PowerThrottle | None:
        """How the device's power limit slows steps; each engine keeps a state of its own. None: no
        limit."""
        ...

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """Price one step of this shape.

        ``draw``, uniform from 0 to 1, is the quantile of the host's launch time to use; None: its
        mean.
        """
        ...

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price ``steps`` decode-only steps, the first of which has this shape."""
        ...

    def schedule_ns(self, running: int, /) -> int:
        """Return the host time of one scheduler call with ``running`` requests in the engine."""
        ...

    def update_ns(self, seqs: int, /) -> int:
        """Return the host time to process the outputs of a step with ``seqs`` sequences."""
        ...

    def split(
        self, columns: Mapping[str, NDArray[np.float64]], /
    ) -> dict[str, NDArray[np.float64]]:
        """Split the GPU seconds of many steps by time account (see `sim.books.ledger`).

        ``columns`` has one float64 array ``[n]`` per column of `sim.shape.shape_columns`; a run of
        equal decode steps is given at its middle. The accounts of a row add up to its GPU time
        before rounding.
        """
        ...


class RoundCost(StepCost, Protocol):
    """The step cost of an engine that speculates; it also prices `StepShape.speculated`."""

    def price_rounds(self, shape: StepShape, rises: Rises, /) -> DecodeRun:
        """Price decode-only steps that verify drafts, the first of which has this shape."""
        ...


class Acceptance(Protocol):
    """Decides which drafted tokens the target accepts (see `sim.engine.config`).

    How many drafts of a request are accepted must not depend on when they are verified or on the
    rest of the batch: it belongs to the request, its seed and the index of its step.
    """

    def gains(
        self, request: Request, sampled_tokens: int, drafts: int, /
    ) -> Sequence[int] | NDArray[np.int64]:
        """Return the tokens that each further decode step gives, with ``drafts`` drafted in each.

        They add up from ``sampled_tokens`` to ``output_tokens`` exactly. Each is at least 1, the
        target's own token, and at most ``drafts`` more. ``request.rounds`` holds the tokens of
        earlier steps.
        """
        ...


class HandOver(Protocol):
    """Receives events of requests in an engine that only prefills (see `sim.fleet.handover`)."""

    def refusal(self, request: Request, /) -> str | None:
        """Return why no decode engine can ever take the request, or None if one can."""
        ...

    def computed(self, request: Request, source: int, start_ns: int, end_ns: int, /) -> None:
        """A chunk of the request runs on the GPU of replica ``source`` between these times."""
        ...

    def preempted(self, request: Request, /) -> None:
        """The request lost its blocks in the source and will be computed again."""
        ...

    def prefilled(self, request: Request, source: int, /) -> None:
        """The first token is visible; the source keeps the KV until it is told to free it."""
        ...

    def has_blocks(self, request: Request, /) -> None:
        """The decode engine has allocated the blocks that the KV will be written to."""
        ...


class CachedContent(Protocol):
    """What an eviction policy may know of content in a prefix cache."""

    uses: int
    """Number of requests that computed the content or hit it."""
    born: int
    """Position in the order in which content entered the cache."""


class Eviction(Protocol):
    """Chooses what a prefix cache evicts when blocks are needed; one instance per engine.

    With a method ``priority(content)``, the content with the lowest priority is evicted first, ties
    in the order of last use; the method is called when the last request releases the content.
    Without it the least recently used content is evicted first. With an attribute ``lifetime_ns``
    that is not None, content unused for that long is evicted too. Content held by requests is never
    evicted, and the tail of a prefix goes before its head.
    """


class ReplicaLoad(NamedTuple):
    """What a router sees of one engine. Engines publish it whenever it changes."""

    waiting: int
    running: int
    queued_tokens: int = 0
    """Prompt tokens of requests that were sent to the engine and have no first token yet."""


CacheWatcher = Callable[[int, int, int], None]
"""Called as ``watcher(replica, prefix id, number of its leading blocks that are cached)`` on a
change."""

Watch = Literal["immediate", "deferred", "deferred_timed"]
"""How soon a watcher is told of what a replica evicts.

``immediate`` is simple and slow: a replica that evicts cannot jump over steps. ``deferred``: the
watcher is told when it asks (`RoutingContext.catch_up`), or later; content it believes cached may
be gone meanwhile, added content is always reported immediately. ``deferred_timed``: deferred, and
`RoutingContext.now_ns` is the time of a change while its watcher is told.
"""


class Fetch(NamedTuple):
    """Where a request's engine is to fetch the beginning of its prompt from."""

    replica: int
    tokens: int
    """Upper bound; only what the peer has cached and the engine has not is transferred."""


class RoutingContext(Protocol):
    """What a router may know of the replicas it chooses among. Made once, before the run."""

    @property
    def num_replicas(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def now_ns(self) -> int: ...

    def session(self, request: Request, /) -> int | None:
        """Return the conversation of a request; None if the workload has no sessions."""
        ...

    def extra(self, name: str, request: Request, /) -> int | None:
        """Return a request's value in an optional column of the workload
        (`sim.request_table.RequestTable.extras`); None if there is no such column."""
        ...

    def prefix_ids(self, request: Request, /) -> Sequence[int]:
        """Return the ids of the prompt's prefixes, shortest first; empty if the workload has
        none."""
        ...

    @property
    def prefix_tokens(self) -> int:
        """Tokens per entry of `prefix_ids`; 0 if the workload has no prefixes."""
        ...

    @property
    def fetch_bytes_per_s(self) -> float | None:
        """Bandwidth of the network between the replicas; None if they cannot fetch from each
        other."""
        ...

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token of a fetched prefix."""
        ...

    def prefill_s(self, replica: int, cached_tokens: int, tokens: int, /) -> float:
        """Estimate the seconds to prefill ``tokens`` behind ``cached_tokens`` on an otherwise idle
        engine, by its own step cost (as offline profiling would)."""
        ...

    def watch_caches(self, watcher: CacheWatcher, /, when: Watch = "immediate") -> None:
        """Register a watcher for what the replicas' prefix caches hold."""
        ...

    def catch_up(self, replica: int, /) -> None:
        """Report to the watchers what this replica has evicted by now."""
        ...


class Router(Protocol):
    """Chooses the replica of an arriving request. Made by ``factory(context, **options)``.

    Optional methods ``down(replica)`` and ``up(replica)`` are called when a replica stops taking
    requests (known to have failed, draining, not started yet) and when it takes them again; the
    router then chooses among those that are up. Without these methods the next replica that is up
    stands in.

    With an optional method ``source(request, replica)``, engines that only prefill may fetch
    prefixes from each other (`sim.fleet.fetches`): it is called once a request has its replica, and
    returns a `Fetch` or None.
    """

    def choose(self, request: Request, /) -> int:
        """Return the index of the replica to send ``request`` to."""
        ...

    def publish(self, replica: int, load: ReplicaLoad, /) -> None:
        """Take note of a replica's new load; called on every change."""
        ...


class ServiceView(Protocol):
    """What admission and scaling may know of the engines behind them. Sums cover replicas that are
    up."""

    @property
    def now_ns(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def decode(self) -> ServiceView | None:
        """The view of the decode engines, if these engines only prefill; else None."""
        ...

    @property
    def num_up(self) -> int:
        """Number of replicas that take requests."""
        ...

    @property
    def num_starting(self) -> int:
        """Number of replicas that are starting."""
        ...

    @property
    def waiting(self) -> int:
        """Number of requests that no engine has begun."""
        ...

    @property
    def running(self) -> int: ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of requests in engines that have no first token yet."""
        ...

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens that one engine computes per second, measured over all steps with prefills
        so far; None before the first."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV pools of the replicas that are up, in tokens."""
        ...

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks held by requests, averaged over the replicas that are up."""
        ...

    def ttfts_s(self, window_s: float, /) -> list[float]:
        """Return the TTFT of requests whose first token came within the last ``window_s`` seconds,
        and the age of requests still waiting for theirs."""
        ...


class Admission(Protocol):
    """Decides which requests may enter. Made by ``factory(view, **options)``; stands before the
    router."""

    def admit(self, request: Request, /) -> str | None:
        """Return None to admit the request, or the reason for turning it away."""
        ...

    def left(self, request: Request, /) -> None:
        """A request that was admitted has left: finished, failed or given up."""
        ...


class Autoscaler(Protocol):
    """Decides how many replicas there should be. Made by ``factory(view, **options)``."""

    def wanted(self) -> int:
        """Return the number of replicas wanted, starting ones included. Called at a fixed
        interval."""
        ...
