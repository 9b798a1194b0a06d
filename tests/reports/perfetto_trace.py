"""A demanding run, and its Perfetto trace as it is read back."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]

# Two engines with so few KV blocks that they preempt, and prompts too long for them.
TIGHT = [
    "workload.num_requests=150",
    "workload.rate_per_s=40",
    "pool.replicas=2",
    "engine.max_model_len=3000",
    "kv.num_gpu_blocks=500",
    "bands=false",
]


def read(path: Path) -> dict[str, Any]:
    """A trace with its times exact."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    trace: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return trace


def ns(microseconds: Decimal) -> int:
    whole = microseconds * 1000
    assert whole == int(whole)
    return int(whole)


def of(trace: dict[str, Any], ph: str, name: str | None = None) -> list[Event]:
    return [e for e in trace["traceEvents"] if e["ph"] == ph and name in (None, e["name"])]


def by_track(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    tracks = defaultdict(list)
    for event in events:
        tracks[event["pid"], event["tid"]].append(event)
    return tracks


def track_names(trace: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in of(trace, "M", "thread_name")}


def step_slices(trace: dict[str, Any], track: str = "steps") -> Iterator[tuple[int, list[Event]]]:
    names = track_names(trace)
    for (pid, tid), events in by_track(of(trace, "X")).items():
        if names[pid, tid] == track:
            yield pid - 2, events


def async_slices(trace: dict[str, Any]) -> dict[int, list[tuple[str, int, int]]]:
    """Slices by id, each as (name, begin, end) in order of begin; asserts that they nest."""
    found: dict[int, list[list[Any]]] = defaultdict(list)
    open_slices: dict[int, list[list[Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "b":
            opened = [event["name"], ns(event["ts"]), None]
            found[int(event["id"], 16)].append(opened)
            open_slices[int(event["id"], 16)].append(opened)
        elif event["ph"] == "e":
            opened = open_slices[int(event["id"], 16)].pop()
            assert opened[0] == event["name"]
            opened[2] = ns(event["ts"])
    assert not any(open_slices.values())
    return {key: [(n, b, e) for n, b, e in slices] for key, slices in found.items()}
