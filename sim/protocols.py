"""Every plug point of the simulator, on one page. `sim` is handed these; it never looks one up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.request import Request
from sim.shape import StepShape
from sim.throttle import PowerThrottle


class StepPrice(NamedTuple):
    """What one step costs, in integer nanoseconds.

    The engine runs two clocks (see `sim.engine.pipeline`): the host plans and launches, the GPU
    runs.
    """

    gpu_ns: int
    """GPU time of the step's kernels, back to back."""
    launch_delay_ns: int = 0
    """From the end of scheduling to the step's first kernel, if the GPU is free."""
    launch_ns: int = 0
    """How long the host is busy preparing inputs and launching."""
    tail_ns: int = 0
    """The last kernel cannot end earlier than the last launch plus this."""
    compute_ns: int = 0
    """Part of ``gpu_ns`` bound by compute in a step with prefill: it heats the device."""


class DecodeRun(NamedTuple):
    """The price of a run of decode-only steps whose context grows by one a sequence a step.

    Contexts clipped to a length grow by one a step for each sequence below it.
    """

    first: StepPrice
    """The first step's; the host terms are the same for all."""
    gpu_cumulative_ns: list[int]
    """``[steps]`` GPU time up to the end of each step. Its differences are what pricing each step
    by itself gives, bit for bit. (A list: most runs are short.)"""
    shortest_ns: int
    """The least GPU time of any of them."""


class Rises(NamedTuple):
    """What contexts have grown by before each step of a run, in which they grow unevenly."""

    context: list[int]
    """``[steps]`` summed over the decoding sequences; 0 first."""
    clips: list[list[int]]
    """The same of each clip's sum."""


class StepCost(Protocol):
    """Prices engine steps. Compiled once per (model, GPU, layout, calibration)."""

    @property
    def throttle(self) -> PowerThrottle | None:
        """How the device's power limit acts; each engine keeps the state of its own."""
        ...

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """The cost of one step of this shape.

        ``draw``, uniform from 0 to 1, says where in its distribution the host's launch time falls;
        None stands for the mean.
        """
        ...

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price ``steps`` decode-only steps, the first of this shape."""
        ...

    def schedule_ns(self, running: int, /) -> int:
        """Host time of one scheduler call with ``running`` requests in the engine."""
        ...

    def update_ns(self, seqs: int, /) -> int:
        """Host time to process the outputs of a step with ``seqs`` sequences."""
        ...

    def split(
        self, columns: Mapping[str, NDArray[np.float64]], /
    ) -> dict[str, NDArray[np.float64]]:
        """GPU seconds of many steps by time account (see `sim.books.ledger`).

        ``columns`` has one float64 array ``[n]`` per column of `sim.shape.shape_columns`; a run of
        equal decode steps is given at its middle. The accounts of a row add
        up to its GPU time before rounding.
        """
        ...


class RoundCost(StepCost, Protocol):
    """The step cost of an engine that speculates: it knows `StepShape.speculated` too."""

    def price_rounds(self, shape: StepShape, rises: Rises, /) -> DecodeRun:
        """Price decode-only steps that verify drafts, the first of this shape."""
        ...


class Acceptance(Protocol):
    """Which drafted tokens the target accepts (see `sim.engine.speculation`).

    What a request's drafts come to must not depend on when they are verified or beside whom: it
    belongs to the request, its seed and the number of its step.
    """

    def gains(
        self, request: Request, sampled_tokens: int, drafts: int, /
    ) -> Sequence[int] | NDArray[np.int64]:
        """Tokens that each further decode step gives, with so many drafted each time.

        From ``sampled_tokens`` on, to ``output_tokens`` exactly: at least 1, the target's own, and
        at most ``drafts`` more. ``request.rounds`` has what its steps have given so far.
        """
        ...


class HandOver(Protocol):
    """What an engine that only prefills tells of its requests (see `sim.fleet.handover`)."""

    def refusal(self, request: Request, /) -> str | None:
        """Why no decode engine can ever take it; None if one can."""
        ...

    def computed(self, request: Request, source: int, start_ns: int, end_ns: int, /) -> None:
        """A chunk of it is on the GPU of replica ``source`` between these times; it counts as
        computed."""
        ...

    def preempted(self, request: Request, /) -> None:
        """It lost its blocks in the source, and will be computed anew."""
        ...

    def prefilled(self, request: Request, source: int, /) -> None:
        """Its first token is visible, and the source holds its KV until told to let go."""
        ...

    def has_blocks(self, request: Request, /) -> None:
        """Its residence in a decode engine has the blocks that its KV goes to."""
        ...


class CachedContent(Protocol):
    """What an eviction policy may know of content in a prefix cache."""

    uses: int
    """Requests that computed it or hit it."""
    born: int
    """Its place in the order in which content came to the cache."""


class Eviction(Protocol):
    """Chooses what a prefix cache drops when blocks are needed; one for each engine.

    If it has a method ``priority(content)``, the content with the lowest goes first, ties in the
    order of last use; it is asked when no request holds the content any more. Otherwise the least
    recently used goes first, and with an attribute ``lifetime_ns`` that is not None whatever
    nobody used for so long. What requests hold never goes, and tails go before their heads.
    """


class ReplicaLoad(NamedTuple):
    """What a router sees of one engine; engines publish it whenever it changes."""

    waiting: int
    running: int
    queued_tokens: int = 0
    """Prompt tokens of requests that were sent there and have no first token yet."""


CacheWatcher = Callable[[int, int, int], None]
"""Told of (replica, prefix id, resident leading blocks of it) on every change."""

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
    """At most; what the other has cached of them, and the engine has not, comes over."""


class RoutingContext(Protocol):
    """What a router may know of the replicas it chooses among. Made once, before the run."""

    @property
    def num_replicas(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def now_ns(self) -> int: ...

    def session(self, request: Request, /) -> int | None:
        """The conversation a request belongs to; None where the workload has none."""
        ...

    def prefix_ids(self, request: Request, /) -> Sequence[int]:
        """Ids of its prompt's prefixes, the shortest first; empty where the workload has none."""
        ...

    @property
    def prefix_tokens(self) -> int:
        """Tokens that one of `prefix_ids` stands for; 0 where the workload has none."""
        ...

    @property
    def fetch_bytes_per_s(self) -> float | None:
        """Of the network between these replicas; None where they cannot fetch from each other."""
        ...

    @property
    def kv_bytes_per_token(self) -> int:
        """Of what is fetched."""
        ...

    def prefill_s(self, replica: int, cached_tokens: int, tokens: int, /) -> float:
        """What so many prompt tokens behind cached ones take an engine with nothing else to do, by
        its own step cost: an estimate, as offline profiling gives it."""
        ...

    def watch_caches(self, watcher: CacheWatcher, /, when: Watch = "immediate") -> None:
        """Be told of what replicas' prefix caches hold."""
        ...

    def catch_up(self, replica: int, /) -> None:
        """Be told of what this replica has evicted by now."""
        ...


class Router(Protocol):
    """Chooses the replica of an arriving request. Made by ``factory(context, **options)``.

    If it has methods ``down(replica)`` and ``up(replica)``, it is told when a replica takes no
    requests any more (known to have failed, being drained, not started yet) and when it does
    again; what it chooses is up. Otherwise the next replica that is up stands in.

    If it has a method ``source(request, replica)``, engines that only prefill may fetch prefixes
    from each other (`sim.fleet.fetches`): it is asked, once a request has its replica, for a
    `Fetch` or None.
    """

    def choose(self, request: Request, /) -> int:
        """Index of the replica to send ``request`` to."""
        ...

    def publish(self, replica: int, load: ReplicaLoad, /) -> None:
        """Take note of a replica's new load. Called on every change."""
        ...


class ServiceView(Protocol):
    """What admission and scaling may know of the engines behind them. Sums are over those up."""

    @property
    def now_ns(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def decode(self) -> ServiceView | None:
        """The engines that decode for these, where these only prefill."""
        ...

    @property
    def num_up(self) -> int:
        """Replicas that take requests."""
        ...

    @property
    def num_starting(self) -> int:
        """Replicas on their way up."""
        ...

    @property
    def waiting(self) -> int:
        """Requests that no engine has begun."""
        ...

    @property
    def running(self) -> int: ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of requests in engines that have no first token yet."""
        ...

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens that one engine computes a second, measured over all steps with prefills so
        far; None before the first."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV pools of the replicas up hold."""
        ...

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks held by requests, mean over the replicas up."""
        ...

    def ttfts_s(self, window_s: float, /) -> list[float]:
        """TTFT of requests whose first token came within the last so many seconds, and the age of
        those that still wait for it."""
        ...


class Admission(Protocol):
    """Says who may come in. Made by ``factory(view, **options)``; one stands before the router."""

    def admit(self, request: Request, /) -> str | None:
        """None, or why it is turned away."""
        ...

    def left(self, request: Request, /) -> None:
        """A request that was admitted has left: finished, failed or given up."""
        ...


class Autoscaler(Protocol):
    """Says how many replicas there should be. Made by ``factory(view, **options)``."""

    def wanted(self) -> int:
        """Replicas, those on their way up included. Asked at a fixed interval."""
        ...
