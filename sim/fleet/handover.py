"""Prefill on one engine, decode on another: how a request's KV moves between them.

A handed-over request has two residences, a `Request` in each engine. The source's keeps its blocks
until the last byte has arrived; the target's holds the blocks to be written before the first byte
is sent. So KV in flight has a place at both ends, and an owner at each.

``pull``: the decode engine is asked once the prefill is done, and fetches all of it. ``push``: it
is asked when the prefill begins, and receives each chunk of the prompt layer by layer while it is
computed (what was computed before it had blocks, at once).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import simpy

from sim.clock import NS_PER_S, call_after
from sim.engine.engine import Engine
from sim.engine.leaving import refusal
from sim.engine.transfers import ArrivingKV, SendingKV
from sim.errors import PolicyError
from sim.network import Flow, Network
from sim.protocols import Router
from sim.recorder import DecodeLog
from sim.request import Request

Mode = Literal["pull", "push"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """How KV moves from prefill to decode engines."""

    bytes_per_token: int
    fixed_bytes: int = 0
    """Bytes per sequence, whatever its length."""
    layers: int = 1
    """Number of parts in which a chunk's KV is pushed."""
    latency_ns: int = 0
    mode: Mode = "pull"
    prefill_nic_bytes_per_s: float
    """Bandwidth out of one prefill engine, all its GPUs together; the next field: into a decode
    engine."""
    decode_nic_bytes_per_s: float
    core_bytes_per_s: float | None = None
    """Bandwidth of all transfers together; None: the network between engines is no bottleneck."""


class _Chunk(NamedTuple):
    computed_tokens: int
    """Computed tokens of the request, up to the chunk's end."""
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Handover:
    """One request between its two engines."""

    source: Engine
    target: Engine
    twin: Request
    """Its residence in the target."""
    here: Request | None = None
    """Its residence in the source, once its prefill is done."""
    has_blocks: bool = False
    chunks: list[_Chunk] = field(default_factory=list)
    """Chunks that are not sent yet."""
    sent_tokens: int = 0
    open_chunks: int = 0
    """Chunks that have not arrived."""
    flow: Flow | None = None
    """What is being sent."""
    waiting: list[tuple[int, float, int]] = field(default_factory=list)
    """Bytes of chunks that follow it, the pace at which they come, and since when (ns)."""
    fixed_sent: bool = False
    is_under_way: bool = True


@dataclass(slots=True)
class Handovers:
    """Every request that is decoded elsewhere, from its arrival to its first decode there."""

    env: simpy.Environment
    config: TransferConfig
    network: Network
    log: DecodeLog
    router: Router
    """The router of the decode engines."""
    targets: Sequence[Engine]
    on_fail: Callable[[Request, str], None] | None = None
    """Called if there is no decode engine to ask; None: there always is one."""
    sources: dict[int, Engine] = field(default_factory=dict)
    """Prefill engines by replica."""
    _sending: dict[int, SendingKV] = field(default_factory=dict)
    _arriving: dict[int, ArrivingKV] = field(default_factory=dict)
    under_way: dict[int, _Handover] = field(default_factory=dict)
    moved_bytes: int = 0

    def connect(self, sources: Sequence[Engine]) -> None:
        """Connect every engine to its network links."""
        config = self.config
        for source in sources:
            self._sending[source.replica] = SendingKV(self, source.replica)
            source.add(self._sending[source.replica])
            self.sources[source.replica] = source
            self.network.add_link(f"out {source.replica}", config.prefill_nic_bytes_per_s)
        for target in self.targets:
            arriving = ArrivingKV(target.lifecycle, self.log, self.has_blocks)
            self._arriving[target.replica] = arriving
            target.add(arriving)
            self.network.add_link(f"in {target.replica}", config.decode_nic_bytes_per_s)
        if config.core_bytes_per_s is not None:
            self.network.add_link("core", config.core_bytes_per_s)

    def refusal(self, request: Request) -> str | None:
        """Return why no decode engine can ever take a request, or None if one can."""
        if request.output_tokens == 1:
            return None
        kinds = {id(target.view.config): target for target in self.targets}.values()
        reasons = [refusal(request, target.view) for target in kinds]
        return None if None in reasons else f"on decode engines: {reasons[0]}"

    def computed(self, request: Request, source: int, start_ns: int, end_ns: int) -> None:
        """The source runs a chunk of the prompt on the GPU between these times (push)."""
        if self.config.mode == "pull" or request.output_tokens == 1:
            return
        if request.index not in self.under_way:
            self._ask(request, source)
        handover = self.under_way.get(request.index)
        if handover is not None:
            handover.chunks.append(_Chunk(request.num_computed_tokens, start_ns, end_ns))
            self._push(handover)

    def prefilled(self, request: Request, source: int) -> None:
        """The first token is visible: the rest is decoded elsewhere."""
        if self.config.mode == "pull" and not self._ask(request, source):
            return
        handover = self.under_way[request.index]
        handover.here = request
        now_ns = int(self.env.now)
        handover.chunks.append(_Chunk(request.num_computed_tokens, now_ns, now_ns))
        self._push(handover)

    def preempted(self, request: Request) -> None:
        """The request lost its blocks in the source; free what is held for it in the target."""
        handover = self.under_way.get(request.index)
        if handover is not None:
            self._give_up(handover)
            request.handover = None

    def has_blocks(self, twin: Request) -> None:
        """The target holds the blocks for the KV; ``twin.cached_tokens`` were in its own cache."""
        handover = self.under_way[twin.index]
        handover.has_blocks = True
        handover.sent_tokens = twin.cached_tokens  # found in its own prefix cache: not sent
        self.log.reserved_ns[twin.index] = int(self.env.now)
        self._push(handover)

    def cancel(self, request: Request) -> None:
        """Drop a request at both ends, with its transfers, and free its blocks."""
        handover: _Handover = request.handover
        if handover.is_under_way and handover.source.is_up:
            handover.source.cancel(request)
        self._give_up(handover)

    def _give_up(self, handover: _Handover) -> None:
        """Cancel the transfers and the residence in the target."""
        if handover.is_under_way:
            handover.is_under_way = False
            del self.under_way[handover.twin.index]
            if handover.flow is not None:
                self.moved_bytes += self.network.cancel(handover.flow)
        if handover.target.is_up:
            handover.target.cancel(handover.twin)

    def is_at(self, request: Request, engine: Engine) -> bool:
        """Whether a request that is handed over would be lost with this engine."""
        handover: _Handover = request.handover
        return engine is handover.target or (handover.is_under_way and engine is handover.source)

    def _ask(self, request: Request, source: int) -> bool:
        """Choose the decode engine of a request; False if there is none."""
        replica = self.router.choose(request)
        if not 0 <= replica < len(self.targets):
            raise PolicyError(
                f"the router of decode engines chose {replica} of {len(self.targets)}"
            )
        target = self.targets[replica]
        if not target.is_up:
            assert self.on_fail is not None, "someone who knows of engines that are down"
            self.on_fail(request, "its decode engine is down")
            return False
        twin = Request(
            request.index,
            request.arrival_ns,
            request.prompt_tokens,
            request.output_tokens,
            request.priority,
            request.tenant,
        )
        twin.num_target_tokens = request.prompt_tokens
        twin.num_sampled_tokens = 1  # by the source
        self.log.replica[request.index] = target.replica
        handover = self.under_way[request.index] = _Handover(self.sources[source], target, twin)
        request.handover = handover
        self._arriving[target.replica].expect(twin)
        return True

    def _push(self, handover: _Handover) -> None:
        """Send the chunks that are computed, or being computed, to a target with blocks."""
        if not handover.has_blocks:
            return
        now_ns, config = int(self.env.now), self.config
        for chunk in handover.chunks:
            new = max(chunk.computed_tokens - handover.sent_tokens, 0)
            handover.sent_tokens += new
            if new and config.bytes_per_token:
                # The first layer is available after its part of the step, each further one a
                # layer's time later.
                layer_ns = (chunk.end_ns - chunk.start_ns) // config.layers
                left_ns = chunk.end_ns - max(chunk.start_ns + layer_ns, now_ns)
                num_bytes = new * config.bytes_per_token
                pace = num_bytes / left_ns * NS_PER_S if left_ns > 0 else math.inf
                self._send(handover, num_bytes, max(chunk.start_ns + layer_ns - now_ns, 0), pace)
        handover.chunks.clear()
        if handover.here is not None:
            if config.fixed_bytes and not handover.fixed_sent:
                handover.fixed_sent = True
                self._send(handover, config.fixed_bytes, 0, math.inf)
            self._join_if_complete(handover)

    def _send(self, handover: _Handover, num_bytes: int, delay_ns: int, pace: float) -> None:
        handover.open_chunks += 1

        def start() -> None:
            if handover.is_under_way:
                handover.waiting.append((num_bytes, pace, int(self.env.now)))
                self._start_next(handover)

        call_after(self.env, delay_ns, start)

    def _start_next(self, handover: _Handover) -> None:
        """Send all that waits as one flow, unless one is under way: a request's chunks follow each
        other on one connection."""
        if handover.flow is not None or not handover.waiting:
            return
        waiting, now_ns = handover.waiting, int(self.env.now)
        handover.waiting = []
        num_bytes = sum(part for part, _, _ in waiting)
        # Of a chunk that is still being computed, no more is there than its pace says.
        _, pace, since_ns = waiting[-1]
        if len(waiting) > 1 or since_ns < now_ns:
            ends_ns = (since + part / pace * NS_PER_S for part, pace, since in waiting)
            left_ns = max(ends_ns) - now_ns
            pace = num_bytes / left_ns * NS_PER_S if left_ns > 0 else math.inf
        path = [f"out {handover.source.replica}", f"in {handover.target.replica}"]
        if self.config.core_bytes_per_s is not None:
            path.insert(1, "core")

        def sent() -> None:
            if handover.is_under_way:
                handover.flow = None
                self.moved_bytes += num_bytes
                self._start_next(handover)
            call_after(self.env, self.config.latency_ns, arrived)

        def arrived() -> None:
            if handover.is_under_way:
                handover.open_chunks -= len(waiting)
                self._join_if_complete(handover)

        handover.flow = self.network.start(tuple(path), num_bytes, sent, pace_bytes_per_s=pace)

    def _join_if_complete(self, handover: _Handover) -> None:
        here = handover.here
        if here is None or handover.open_chunks or not handover.has_blocks:
            return
        index = here.index
        del self.under_way[index]
        handover.is_under_way = False
        self.log.received_ns[index] = int(self.env.now)
        self._sending[handover.source.replica].let_go(here)
        handover.twin.num_computed_tokens = here.num_computed_tokens
        handover.twin.num_sampled_tokens = here.num_sampled_tokens
        self._arriving[handover.target.replica].join(handover.twin)
