"""Requests as trace events: their phases on the engine, and arrows through their steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reports.perfetto import events as trace
from reports.perfetto.events import whole_ns
from reports.perfetto.steps import EngineSteps
from sim.arrays import Int64

if TYPE_CHECKING:
    import pandas as pd

Span = tuple[int, int]

_FACTS = (
    "request",
    "replica",
    "status",
    "reject_reason",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "good",
)


class Phase(NamedTuple):
    """One phase of a request's time in the system, in ns."""

    name: str
    start_ns: int
    end_ns: int


class _Times(NamedTuple):
    """Times of the chosen requests in ns, each ``[requests]``; -1 for an event that did not
    happen."""

    arrival: Int64
    admitted: Int64
    first_token: Int64
    finished: Int64


def chosen_requests(
    requests: pd.DataFrame, start_ns: int, end_ns: int, most: int
) -> tuple[pd.DataFrame, int]:
    """Return the requests in the system during the span, thinned evenly to ``most``, and their
    number before thinning."""
    arrival_s, e2e_s = (requests[name].to_numpy(float) for name in ("arrival_s", "e2e_s"))
    never_ends = np.where(requests["status"] == "rejected", 0.0, np.inf)
    left_s = arrival_s + np.where(np.isnan(e2e_s), never_ends, e2e_s)
    is_there = (arrival_s * 1e9 <= end_ns) & (left_s * 1e9 >= start_ns)
    there = np.flatnonzero(is_there)
    if len(there) > most:
        kept = np.linspace(0, len(there) - 1, most).round().astype(int)
        return requests.iloc[there[kept]], len(there)
    return requests.iloc[there], len(there)


def request_events(
    requests: pd.DataFrame,
    preemptions: pd.DataFrame | None,
    engines: dict[int, EngineSteps],
    shown: dict[int, set[int]],
    run_end_ns: int,
) -> Iterator[str]:
    """Yield the events of every chosen request: its arrival, its phases, and arrows if its steps
    are shown.

    ``preemptions`` is the table of preemptions.parquet, or None if the run has none. ``shown``
    holds, per engine, the rows of its steps that are in the trace.
    """
    times = _times(requests)
    redone = _redone(preemptions)
    first_row = _rows(engines, requests, times.first_token)
    last_row = _rows(engines, requests, times.finished)
    cells = zip(*(requests[name].tolist() for name in _FACTS), strict=True)
    moments = zip(*(column.tolist() for column in times), strict=True)
    rows = zip(first_row.tolist(), last_row.tolist(), strict=True)
    for values, (arrival, admitted, first, finished), (at_first, at_last) in zip(
        cells, moments, rows, strict=True
    ):
        request, replica, status, reason, *facts = values
        pid = trace.engine_pid(replica)
        if status == "rejected":
            args = json.dumps({"request": request, "reason": str(reason)})
            yield trace.instant(pid, "rejected", arrival, args)
            continue
        yield trace.instant(pid, "arrival", arrival, f'{{"request":{request}}}')
        end = finished if finished >= 0 else max(run_end_ns, arrival, admitted, first)
        yield trace.asynchronous(
            "b", pid, "request", request, arrival, _facts(request, status, *facts)
        )
        for name, start, stop in phases(arrival, admitted, first, end, redone.get(request, [])):
            yield trace.asynchronous("b", pid, name, request, start, "{}")
            yield trace.asynchronous("e", pid, name, request, stop, "{}")
        yield trace.asynchronous("e", pid, "request", request, end, "{}")
        steps = [row for row in dict.fromkeys((at_first, at_last)) if row >= 0]
        if steps and set(steps) <= shown.get(replica, set()):
            yield from _arrow(engines[replica], request, arrival, steps)


def phases(
    arrival: int, admitted: int, first_token: int, end: int, redone: list[Span]
) -> list[Phase]:
    """Return waiting, prefill and decode, interrupted by the spans in which a preempted request was
    recomputed.

    Times are in ns; -1 means that the event did not happen. Phases are contiguous, and none is
    empty.
    """
    moments = [arrival, *(time if time >= 0 else end for time in (admitted, first_token)), end]
    names = ("waiting", "prefill", "decode")
    plain = [Phase(*parts) for parts in zip(names, moments[:-1], moments[1:], strict=True)]
    found = [plain[0]]
    for name, start, stop in plain[1:]:
        for away, back in redone:
            away, back = max(away, start), min(back, stop)
            if away < back:
                found += [Phase(name, start, away), Phase("preempted", away, back)]
                start = back
        found.append(Phase(name, start, stop))
    return [phase for phase in found if phase.start_ns < phase.end_ns]


def _times(requests: pd.DataFrame) -> _Times:
    arrival = whole_ns(requests["arrival_s"])

    def after(name: str) -> Int64:
        seconds = requests[name].to_numpy(float)
        known = np.isfinite(seconds)
        return np.where(known, arrival + whole_ns(np.where(known, seconds, 0.0)), -1)

    return _Times(arrival, after("queue_s"), after("ttft_s"), after("e2e_s"))


def _rows(engines: dict[int, EngineSteps], requests: pd.DataFrame, at_ns: Int64) -> Int64:
    """Return the row of the steps that made a token visible at each time; -1 if there is none."""
    found = np.full(len(at_ns), -1, np.int64)
    replica = requests["replica"].to_numpy()
    for name, engine in engines.items():
        chosen = (replica == name) & (at_ns >= 0)
        if len(engine.visible_ns):
            found[chosen] = engine.row_of(at_ns[chosen])
    return found


def _redone(preemptions: pd.DataFrame | None) -> dict[int, list[Span]]:
    spans: dict[int, list[Span]] = {}
    if preemptions is not None and len(preemptions):
        ordered = preemptions.sort_values(["request", "start_s"], kind="stable")
        starts, ends = whole_ns(ordered["start_s"]), whole_ns(ordered["end_s"])
        names = ordered["request"].tolist()
        for request, *span in zip(names, starts.tolist(), ends.tolist(), strict=True):
            spans.setdefault(request, []).append((span[0], span[1]))
    return spans


def _facts(request: int, status: str, prompt: int, output: int, *rest: int) -> str:
    cached, preemptions, good = rest
    return (
        f'{{"request":{request},"status":"{status}","prompt_tokens":{prompt},'
        f'"output_tokens":{output},"cached_tokens":{cached},"preemptions":{preemptions},'
        f'"good":{"true" if good else "false"}}}'
    )


def _arrow(engine: EngineSteps, request: int, arrival_ns: int, rows: list[int]) -> Iterator[str]:
    """Yield an arrow from the arrival through the first token's step to the last token's step."""
    pid = trace.engine_pid(engine.replica)
    yield trace.flow("s", pid, trace.EVENTS, request, arrival_ns)
    for row in rows:
        # The last nanosecond inside the slice, because the next slice begins at its end.
        at_ns = max(int(engine.end_ns[row]) - 1, int(engine.start_ns[row]))
        phase = "f" if row == rows[-1] else "t"
        yield trace.flow(phase, pid, trace.STEPS, request, at_ns)
