"""Write a result folder as a trace that ui.perfetto.dev and chrome://tracing open.

Every engine is a process. Its tracks are the steps, the events, and optionally the single steps. A
run of equal steps is one slice, from when it could begin to the GPU end of its last step;
``gpu_us`` is the GPU time within it. Events are arrivals, rejections and preemptions. Single steps
are placed by when their outputs became visible. Counters show running, waiting, KV blocks, tokens/s
and GPU busy. Requests show waiting, prefill, decode and preempted. Arrows lead from a request's
arrival to the step of its first token and the step of its last.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from reports.facts import Summary, section
from reports.folder import (
    read_preemptions,
    read_requests,
    read_step_times,
    read_steps,
    read_summary,
)
from reports.perfetto import events as trace
from reports.perfetto.requests import chosen_requests, request_events
from reports.perfetto.steps import (
    EngineSteps,
    counter_events,
    engine_steps,
    preemption_events,
    step_events,
    token_events,
)
from reports.run.engines import usable_blocks
from sim.arrays import Int64
from sim.errors import ScenarioError

_LINES = 5000  # lines per write


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Selection of what a trace contains."""

    max_requests: int = 20_000
    """Most requests in the trace; more are thinned evenly."""
    start_s: float = 0.0
    end_s: float = math.inf
    """End of the span of simulated time; steps and requests that overlap the span are included
    whole."""
    every_step: bool = False
    """Whether to add a slice per single step to the slices per run of equal steps."""


@dataclass(frozen=True, slots=True)
class TraceWritten:
    """Summary of what a trace contains."""

    path: Path
    num_events: int
    num_requests: int
    num_requests_in_span: int


def write_perfetto(
    folder: Path | str, path: Path | str, options: TraceOptions | None = None
) -> TraceWritten:
    """Write a result folder as a trace, gzipped if the path ends in ``.gz``.

    Raises `ScenarioError` if the folder cannot be read, the span is empty, or the file cannot be
    written.
    """
    options = options or TraceOptions()
    if not 0 <= options.start_s < options.end_s or options.max_requests < 0:
        raise ScenarioError(
            f"no time between {options.start_s:g} s and {options.end_s:g} s, or fewer than 0 "
            "requests: give a span --from below --to, from 0 on"
        )
    summary, requests = read_summary(folder), read_requests(folder)
    engines = engine_steps(read_steps(folder), read_step_times(folder))
    span = round(options.start_s * 1e9), round(min(options.end_s, 9e9) * 1e9)
    chosen, num_in_span = chosen_requests(requests, *span, options.max_requests)
    metadata = _metadata(summary, options, len(chosen), num_in_span)
    rows = {name: _overlapping(engine, *span) for name, engine in engines.items()}
    run_end_ns = max((int(engine.end_ns[-1]) for engine in engines.values()), default=0)

    def events() -> Iterator[str]:
        of_run = {trace.STEPS: "conditions", trace.EVENTS: "without an engine"}
        yield from trace.named(trace.RUN_PID, "run", of_run)
        yield trace.conditions_slice(run_end_ns, metadata)
        blocks = usable_blocks(summary)
        unfinished = set(requests.loc[requests["status"] == "unfinished", "replica"])
        for name, engine in engines.items():
            yield from _engine_events(
                engine, rows[name], blocks, options, ends_idle=name not in unfinished
            )
        shown = {name: set(of_engine.tolist()) for name, of_engine in rows.items()}
        yield from request_events(chosen, read_preemptions(folder), engines, shown, run_end_ns)

    try:
        with _opened(Path(path)) as file:
            count = _write(file, events(), metadata)
    except OSError as error:
        raise ScenarioError(f"cannot write the trace {path}: {error.strerror}") from None
    return TraceWritten(Path(path), count, len(chosen), num_in_span)


def _engine_events(
    engine: EngineSteps,
    rows: Int64,
    blocks: float | None,
    options: TraceOptions,
    *,
    ends_idle: bool,
) -> Iterator[str]:
    tracks = {trace.STEPS: "steps", trace.EVENTS: "arrivals, rejections, preemptions"}
    if options.every_step:
        tracks[trace.TOKENS] = "tokens out, every step"
    yield from trace.named(trace.engine_pid(engine.replica), f"replica {engine.replica}", tracks)
    yield from step_events(engine, rows)
    if options.every_step:
        yield from token_events(engine, rows)
    usable = blocks or float(engine.rows["free_blocks"].max())
    yield from counter_events(engine, rows, usable, ends_idle=ends_idle)
    yield from preemption_events(engine, rows)


def _overlapping(engine: EngineSteps, start_ns: int, end_ns: int) -> Int64:
    return np.flatnonzero((engine.end_ns > start_ns) & (engine.start_ns < end_ns))


def _metadata(
    summary: Summary, options: TraceOptions, num_chosen: int, num_in_span: int
) -> dict[str, Any]:
    """Return the metadata: what the trace shows, and what was left out."""
    shown = f"all {num_in_span:,} requests"
    if num_chosen < num_in_span:
        shown = f"{num_chosen:,} of {num_in_span:,} requests, evenly sampled; steps are of all"
    end = "the end" if math.isinf(options.end_s) else f"{options.end_s:g} s"
    return {
        "fleetcast_version": summary.get("fleetcast_version") or "",
        "shown": f"{shown}, from {options.start_s:g} s to {end}",
        "evidence": section(summary, "evidence"),
        "conditions": section(summary, "conditions"),
    }


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    # No file name and no time in the gzip header, so that the same run gives the same bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 3, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        yield file


def _write(file: IO[str], events: Iterator[str], metadata: dict[str, Any]) -> int:
    # Perfetto stops at an unknown key, so the events come before the metadata.
    file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    count, lines = 0, []
    for event in events:
        lines.append(event)
        if len(lines) == _LINES:
            file.write((",\n" if count else "") + ",\n".join(lines))
            count, lines = count + len(lines), []
    file.write((",\n" if count and lines else "") + ",\n".join(lines))
    file.write(f'\n],"metadata":{json.dumps(metadata)}}}\n')
    return count + len(lines)
