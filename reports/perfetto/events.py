"""Trace events as text: one JSON object each, in the Trace Event Format that Perfetto reads.

Format: "Trace Event Format" (Chromium project). Times are microseconds; the nanoseconds of the
simulation become their decimals.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from sim.arrays import Int64

RUN_PID = 1
"""Process that holds events of no engine; process 0 has a special meaning in viewers."""
STEPS, EVENTS, TOKENS = 1, 2, 3
"""Tracks (threads) of a process."""


def track_tid(pid: int, track: int) -> int:
    """Return the thread id of a track, distinct from every other thread and process."""
    return 1_000_000 + 10 * pid + track


def engine_pid(replica: int) -> int:
    """Return the process id of an engine; requests without an engine (-1) belong to the run's
    process."""
    return RUN_PID + 1 + replica


def whole_ns(seconds: Any) -> Int64:
    """Convert seconds from a table back to the integer nanoseconds they were computed from."""
    rounded: Int64 = np.rint(np.asarray(seconds, np.float64) * 1e9).astype(np.int64)
    return rounded


def us(ns: int) -> str:
    """Convert non-negative nanoseconds to the format's microseconds, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def named(pid: int, name: str, tracks: dict[int, str]) -> list[str]:
    """Yield the events that name a process and its tracks."""
    events = [
        _meta("process_name", pid, pid, {"name": name}),
        _meta("process_sort_index", pid, pid, {"sort_index": pid}),
    ]
    for track, title in tracks.items():
        tid = track_tid(pid, track)
        events.append(_meta("thread_name", pid, tid, {"name": title}))
        events.append(_meta("thread_sort_index", pid, tid, {"sort_index": track}))
    return events


def complete(pid: int, track: int, name: str, start_ns: int, end_ns: int, args: str) -> str:
    """Return a slice event; ``args`` is JSON."""
    return (
        f'{{"ph":"X","cat":"step","name":"{name}","pid":{pid},"tid":{track_tid(pid, track)},'
        f'"ts":{us(start_ns)},"dur":{us(end_ns - start_ns)},"args":{args}}}'
    )


def instant(pid: int, name: str, at_ns: int, args: str) -> str:
    """Return an instant event on the track of events; ``args`` is JSON."""
    return (
        f'{{"ph":"i","s":"t","cat":"request","name":"{name}","pid":{pid},'
        f'"tid":{track_tid(pid, EVENTS)},"ts":{us(at_ns)},"args":{args}}}'
    )


def counter(pid: int, name: str, unit: str, at_ns: int, value: float) -> str:
    """Return a counter event, which sets the value from ``at_ns`` on."""
    args = f'{{"{unit}":{value:.10g}}}'
    return f'{{"ph":"C","name":"{name}","pid":{pid},"ts":{us(at_ns)},"args":{args}}}'


def asynchronous(phase: str, pid: int, name: str, request: int, at_ns: int, args: str) -> str:
    """Return the begin (``b``) or end (``e``) event of a request's slice; slices nest by request
    number."""
    return (
        f'{{"ph":"{phase}","cat":"request","name":"{name}","id":"{request:#x}","pid":{pid},'
        f'"ts":{us(at_ns)},"args":{args}}}'
    )


def flow(phase: str, pid: int, track: int, request: int, at_ns: int) -> str:
    """Return one point of an arrow: its start (``s``), a step (``t``) or its end (``f``)."""
    bind = ',"bp":"e"' if phase == "f" else ""
    return (
        f'{{"ph":"{phase}","cat":"flow","name":"request","id":"{request:#x}","pid":{pid},'
        f'"tid":{track_tid(pid, track)},"ts":{us(at_ns)}{bind}}}'
    )


def conditions_slice(end_ns: int, conditions: dict[str, Any]) -> str:
    """Return one slice over the whole run that shows its conditions in the viewer."""
    return complete(RUN_PID, STEPS, "run", 0, end_ns, json.dumps(conditions))


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})
