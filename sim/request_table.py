"""The workload as columns: who asks what, when. Built by `workloads`, consumed by `sim`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.beams import BeamSearch
from sim.draws import uniform
from sim.errors import TraceError, printable

UNLIMITED = 1 << 62
"""A number of requests that are never in flight at once."""

_ROW_COLUMNS = (
    "prompt_tokens",
    "output_tokens",
    "priority",
    "after",
    "think_ns",
    "session",
    "class_index",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixChains:
    """Prefix-chained block ids, one chain per request, flattened.

    Id ``j`` of a chain names the content of tokens ``[0, (j + 1) * block_tokens)``, so equal ids
    mean equal prefixes. The last block of a chain may be partial.
    """

    ids: Int64
    """``[sum of chain lengths]`` ids of all requests, one chain after another."""
    offsets: Int64
    """``[n + 1]``: chain ``i`` is ``ids[offsets[i]:offsets[i + 1]]``."""
    tokens: Int64
    """``[n]`` tokens each chain covers: the prompt, or prompt and output where both are known."""
    block_tokens: int
    """Tokens per id (512 in Mooncake traces, 16 in Qwen-Bailian's)."""
    covers_output: bool = False
    """Whether the chains continue over the output, so that a later turn can hit it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTable:
    """Requests as columns, in order of arrival. All arrays are int64 of shape ``[n]``."""

    arrival_ns: Int64
    """Nanoseconds from the start of the run, non-decreasing, >= 0. For a row sent after another
    (see ``after``) it is the earliest possible time, 0 if there is none, and in no order."""
    prompt_tokens: Int64
    """Prompt length, at least 1."""
    output_tokens: Int64
    """Answer length, at least 0; 0 is a prefill-only request (scoring, embedding)."""
    priority: Int64
    """Lower is served first by the priority scheduler (vLLM's convention); 0 by default."""
    chains: PrefixChains | None = None
    """Prefix structure, if the source has it."""
    max_concurrency: int = UNLIMITED
    """Closed loop as load tools do it: in table order, a request is sent at its arrival time or
    when fewer than this many are in flight, whichever is later."""
    after: Int64 | None = None
    """Closed loop by session: the earlier row whose request must leave (finish or be rejected)
    before this one is sent; -1: none. None: no row waits for another."""
    think_ns: Int64 | None = None
    """Think time between that departure and sending the request, >= 0; at least one nanosecond
    passes. Ignored where ``after`` is -1. Latencies count from when the request is sent."""
    session: Int64 | None = None
    """Session (conversation, agent run) of each request; None: there are no sessions."""
    class_index: Int64 | None = None
    """Index of each request's class in ``class_names``; None: all requests are of one class."""
    class_names: tuple[str, ...] = ()
    samples: SampleLengths | None = None
    """Output tokens of further answers; ``output_tokens`` is the first answer's. None: one answer
    each."""
    beams: BeamSearch | None = None
    """Which requests are answered by beam search, with one answer each. None: no request is."""
    extras: Mapping[str, Int64] = field(default_factory=dict)
    """Further columns by name, ``[n]`` each, which optional features read."""
    source: str = "in memory"
    """Where the requests come from, for the result's conditions."""
    skipped_rows: int = 0
    """Malformed rows that the reader was told to skip (``skip_bad_rows``)."""
    notes: tuple[str, ...] = ()
    """What was done to the source (ticks spread, time scaled, window cut), in plain words."""

    def __post_init__(self) -> None:
        n = len(self.arrival_ns)
        for name in _ROW_COLUMNS:
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise TraceError(f"{self.source}: column {name} is not as long as arrival_ns")
        for name, column in self.extras.items():
            if len(column) != n:
                raise TraceError(f"{self.source}: column {name} is not as long as arrival_ns")
        own_arrivals_ns = self.arrival_ns[~self.is_later_turn]
        if (self.arrival_ns < 0).any() or (np.diff(own_arrivals_ns) < 0).any():
            raise TraceError(f"{self.source}: arrival times must be >= 0 and in order")
        if (self.prompt_tokens < 1).any():
            raise TraceError(f"{self.source}: every request needs at least one prompt token")
        if (self.output_tokens < 0).any():
            raise TraceError(f"{self.source}: output_tokens must not be negative")
        if self.max_concurrency < 1:
            raise TraceError(f"{self.source}: max_concurrency must be at least 1")
        if self.samples is not None and len(self.samples.offsets) != n + 1:
            raise TraceError(f"{self.source}: samples are not of as many requests")
        if self.beams is not None:
            self._check_beams(self.beams)
        self._check_sessions()
        self._check_classes()

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def tenant(self) -> Int64:
        """Return the tenant of each request, ``[n]``: its class; without classes there is one."""
        return np.zeros(len(self), np.int64) if self.class_index is None else self.class_index

    @property
    def num_answers(self) -> Int64:
        """Return the number of answers of each request, ``[n]``."""
        further = 0 if self.samples is None else np.diff(self.samples.offsets)
        return np.ones(len(self), np.int64) + further

    @property
    def all_output_tokens(self) -> Int64:
        """Return the output tokens of all answers of each request, ``[n]``."""
        further = 0 if self.samples is None else self.samples.totals()
        return self.output_tokens + further

    @property
    def beam_widths(self) -> Int64:
        """Return the hypotheses of each request, ``[n]``; 1 without beam search."""
        return np.ones(len(self), np.int64) if self.beams is None else self.beams.widths

    @property
    def beam_own_tokens(self) -> NDArray[np.float64]:
        """Return the tokens that each request's hypotheses hold alone, ``[n]``."""
        if self.beams is None:
            return np.zeros(len(self))
        return self.beams.own_tokens(self.output_tokens)

    @property
    def is_later_turn(self) -> NDArray[np.bool_]:
        """Return which requests are sent after another one has left, ``[n]``."""
        return np.zeros(len(self), np.bool_) if self.after is None else self.after >= 0

    @property
    def is_open_loop(self) -> bool:
        """Whether every arrival time is known before the run: no request waits for an answer."""
        return self.max_concurrency == UNLIMITED and not self.is_later_turn.any()

    def _check_beams(self, beams: BeamSearch) -> None:
        if self.samples is not None:
            raise TraceError(f"{self.source}: requests have several answers or beams, not both")
        if len(beams.widths) != len(self) or (beams.widths < 1).any():
            raise TraceError(f"{self.source}: beam widths are >= 1, one for each request")

    def _check_sessions(self) -> None:
        if self.after is None and self.think_ns is None:
            return
        if self.after is None or self.think_ns is None:
            raise TraceError(f"{self.source}: after and think_ns come together or not at all")
        if self.max_concurrency < UNLIMITED:
            raise TraceError(f"{self.source}: either max_concurrency or after closes the loop")
        if (self.after < -1).any() or (self.after >= np.arange(len(self))).any():
            raise TraceError(f"{self.source}: after must name an earlier row, or be -1")
        if (self.think_ns < 0).any():
            raise TraceError(f"{self.source}: think_ns must not be negative")

    def _check_classes(self) -> None:
        if (
            self.class_index is not None
            and not ((self.class_index >= 0) & (self.class_index < len(self.class_names))).all()
        ):
            raise TraceError(f"{self.source}: class_index must be a position in class_names")
        for name in self.class_names:
            if printable(name) != name or "\n" in name:
                raise TraceError(f"{self.source}: class {name!r} has control characters")


def request_table(
    arrival_s: NDArray[np.float64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    *,
    priority: NDArray[np.int64] | None = None,
    chains: PrefixChains | None = None,
    max_concurrency: int = UNLIMITED,
    after: NDArray[np.int64] | None = None,
    think_ns: NDArray[np.int64] | None = None,
    session: NDArray[np.int64] | None = None,
    source: str = "in memory",
    skipped_rows: int = 0,
    notes: tuple[str, ...] = (),
) -> RequestTable:
    """Build a table from plain columns; arrivals are in seconds and already in order."""
    n = len(arrival_s)

    def ints(column: NDArray[np.int64] | None) -> Int64 | None:
        return None if column is None else np.asarray(column, np.int64)

    return RequestTable(
        arrival_ns=np.rint(np.asarray(arrival_s, np.float64) * 1e9).astype(np.int64),
        prompt_tokens=np.asarray(prompt_tokens, np.int64),
        output_tokens=np.asarray(output_tokens, np.int64),
        priority=np.zeros(n, np.int64) if priority is None else np.asarray(priority, np.int64),
        chains=chains,
        max_concurrency=max_concurrency,
        after=ints(after),
        think_ns=ints(think_ns),
        session=ints(session),
        source=source,
        skipped_rows=skipped_rows,
        notes=notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleLengths:
    """Output tokens of the answers beyond the first, flattened."""

    tokens: Int64
    """Output tokens of all further answers, one request after another; each at least 1."""
    offsets: Int64
    """``[n + 1]``: those of request ``i`` are ``tokens[offsets[i]:offsets[i + 1]]``."""

    def further(self, request: int) -> tuple[int, ...]:
        """Return the output tokens of a request's answers beyond the first."""
        start, stop = int(self.offsets[request]), int(self.offsets[request + 1])
        return tuple(self.tokens[start:stop].tolist())

    def totals(self) -> Int64:
        """Return the sum of each request's further answers, int64 ``[n]``."""
        summed = np.concatenate([[0], self.tokens.cumsum()])
        totals: Int64 = summed[self.offsets[1:]] - summed[self.offsets[:-1]]
        return totals


def draw_lengths(output_tokens: Int64, n: int, shortest: float, seed: int) -> SampleLengths:
    """Draw ``n`` answers per request; the first has ``output_tokens`` and is the longest.

    The others are uniform between ``shortest`` (0 to 1) times that length and that length. A draw
    belongs to its request. A request without output has one answer.
    """
    if n < 1 or not 0 < shortest <= 1:
        raise TraceError(f"n is {n} and n_shortest {shortest}; they must be >= 1 and in (0, 1]")
    counts = np.where(output_tokens > 0, n - 1, 0)
    tokens = [
        max(1, round(length * (1 - (1 - shortest) * uniform(seed, request, sample))))
        for request, (length, count) in enumerate(
            zip(output_tokens.tolist(), counts.tolist(), strict=True)
        )
        for sample in range(count)
    ]
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
    return SampleLengths(tokens=np.array(tokens, np.int64), offsets=offsets)
