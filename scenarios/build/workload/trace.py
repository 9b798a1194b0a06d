"""A trace of the scenario as a request table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.build.memo import content_key, memoized
from scenarios.files.identity import path_content
from scenarios.schema.workload import Source, Trace
from sim.errors import ScenarioError
from sim.request_table import RequestTable
from workloads import transform
from workloads.readers.detect import FORMATS, detect_format, read_recording
from workloads.readers.recording import Recording
from workloads.readers.servegen_files import read_client_rates
from workloads.replay import draw_sessions, poisson_arrivals, replayed
from workloads.servegen import draw_requests

_WITH_BLOCK_TOKENS = [name for name, known in FORMATS.items() if "block_tokens" in known.options]


def trace_table(source: Source, seed: int) -> RequestTable:
    """Read the trace and change it as the workload says.

    ``seed`` draws what the file does not hold: session starts, arrivals, ServeGen's requests.
    Raises `TraceError` if the file cannot be read, `ScenarioError` for settings that do not fit.
    """
    trace = source.trace
    assert trace is not None
    named = "columns" if trace.columns else None
    format_name = trace.format or named or detect_format(trace.path)
    _check_fits(trace, format_name)
    if format_name == "servegen":
        return _drawn_from_clients(source, trace, seed)
    options: dict[str, Any] = {
        "format": format_name,
        "skip_bad_rows": trace.skip_bad_rows,
        "spread_ticks": trace.spread_ticks,
        "block_tokens": trace.block_tokens,
        "columns": trace.columns,
    }
    key = content_key(trace.path, path_content(Path(trace.path)), options)
    recording = memoized("trace", key, lambda: read_recording(trace.path, **options))
    table = _on_one_clock(recording, source, seed)
    if source.window_s is not None:
        table = transform.window(table, *source.window_s)
    if source.repeat > 1:
        table = transform.repeat(table, source.repeat)
    if source.num_requests is not None:
        table = transform.limit(table, source.num_requests)
    table = _replayed(table, recording, trace)
    if source.rate_per_s is not None and len(table):  # an empty table has no rate to scale
        if recording.clock == "none":
            table = poisson_arrivals(table, source.rate_per_s, seed)
        else:
            table = transform.scale_rate(table, source.rate_per_s)
    if source.max_concurrency is not None:
        if table.after is not None:
            raise ScenarioError(
                "workload.max_concurrency (--concurrency): the trace is replayed closed, its "
                "sessions wait for their answers; set workload.trace.replay=open to limit all "
                "requests instead"
            )
        table = transform.with_concurrency(table, source.max_concurrency)
    return table


def _check_fits(trace: Trace, format_name: str) -> None:
    if trace.columns and format_name != "columns":
        raise ScenarioError(
            f"workload.trace.columns: the format {format_name} has columns of its own"
        )
    if trace.subset is not None and format_name != "servegen":
        raise ScenarioError(f"workload.trace.subset: a {format_name} trace has no parts to choose")
    if trace.block_tokens is not None and format_name not in _WITH_BLOCK_TOKENS:
        raise ScenarioError(
            f"workload.trace.block_tokens: the format {format_name} says itself what a hash id "
            f"stands for; only {', '.join(_WITH_BLOCK_TOKENS)} may differ"
        )


def _drawn_from_clients(source: Source, trace: Trace, seed: int) -> RequestTable:
    if trace.replay is not None or source.sessions_per_h is not None:
        raise ScenarioError(f"{trace.path}: client rates have no sessions to replay")
    rates = read_client_rates(Path(trace.path), trace.subset, skip_bad_rows=trace.skip_bad_rows)
    table = draw_requests(
        rates,
        window_s=source.window_s,
        num_requests=source.num_requests,
        requests_per_s=source.rate_per_s,
        seed=seed,
    )
    if source.repeat > 1:
        table = transform.repeat(table, source.repeat)
        if source.num_requests is not None:
            table = transform.limit(table, source.num_requests)
    if source.max_concurrency is not None:
        table = transform.with_concurrency(table, source.max_concurrency)
    return table


def _on_one_clock(recording: Recording, source: Source, seed: int) -> RequestTable:
    table = recording.table
    if recording.clock == "session":
        if source.sessions_per_h is None:
            raise ScenarioError(
                f"{table.source}: its sessions have no common clock; say how many start with "
                "workload.sessions_per_h, and how long or how many with workload.duration_s or "
                "workload.num_sessions (--set workload.sessions_per_h=60 "
                "--set workload.num_sessions=100)"
            )
        if source.rate_per_s is not None:
            raise ScenarioError(
                "workload.rate_per_s (--rate): the sessions' own times set the rate; choose "
                "workload.sessions_per_h"
            )
        if source.repeat > 1:
            raise ScenarioError(
                "workload.repeat: sessions are drawn again and again anyway; choose "
                "workload.duration_s or workload.num_sessions"
            )
        return draw_sessions(
            table,
            source.sessions_per_h,
            duration_s=source.duration_s,
            num_sessions=source.num_sessions,
            seed=seed,
        )
    if source.sessions_per_h is not None:
        clock = "no times" if recording.clock == "none" else "one clock for all requests"
        raise ScenarioError(
            f"workload.sessions_per_h: {table.source} has {clock}; choose workload.rate_per_s"
        )
    if recording.clock == "none":
        if source.window_s is not None:
            raise ScenarioError(f"workload.window_s: {table.source} has no times to cut")
        if source.rate_per_s is None and source.max_concurrency is None:
            raise ScenarioError(
                f"{table.source} has no times: give workload.rate_per_s (--rate) for Poisson "
                "arrivals, or workload.max_concurrency (--concurrency) for a closed loop"
            )
    return table


def _replayed(table: RequestTable, recording: Recording, trace: Trace) -> RequestTable:
    if recording.table.after is None:
        if trace.replay is not None:
            raise ScenarioError(
                f"workload.trace.replay: {table.source} has no sessions of several requests"
            )
        return table
    if trace.replay == "open" and not recording.times:
        raise ScenarioError(
            f"workload.trace.replay: {table.source} has no times of later turns, only what comes "
            "between; replay it closed"
        )
    how = trace.replay or ("closed" if recording.thinks else "open")
    if how == "closed" and not recording.thinks and table.after is not None:
        note = "think times are the gaps between arrivals: when answers came was not recorded"
        table = transform.noted(table, note)
    return replayed(table, how)
