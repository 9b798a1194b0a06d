"""The work of ``fleetcast trace inspect``, once its options are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from scenarios.inspection.trace_facts import Facts, trace_facts
from sim.errors import ScenarioError
from workloads.readers.recording import Recording

_DRAWN_S = 3600.0
"""Seconds of client rates to draw without a window; some services have over 1,000 requests/s."""


def run_inspect(
    path: Path,
    *,
    trace_format: str | None,
    subset: str | None,
    block_tokens: int | None,
    skip_bad_rows: bool,
    spread_ticks: bool,
    sessions_per_h: float | None,
    duration_s: float | None,
    seed: int,
    window_s: tuple[float, float] | None,
    warmup_s: float,
    model: str | None,
    out: Path | None,
    page_wanted: bool,
    as_json: bool,
) -> Path | None:
    """Describe a trace and print what was found; return the page's path if one is written.

    Raises `TraceError` for a file that cannot be read or holds no request, `ScenarioError` for
    options that do not fit it.
    """
    recording = read(
        path,
        trace_format=trace_format,
        subset=subset,
        block_tokens=block_tokens,
        skip_bad_rows=skip_bad_rows,
        spread_ticks=spread_ticks,
        sessions_per_h=sessions_per_h,
        duration_s=duration_s,
        seed=seed,
        window_s=window_s,
    )
    kv_cache = None if model is None else _kv_cache(model)
    facts = trace_facts(recording, file=path.name, kv_cache=kv_cache, warmup_s=warmup_s)
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None or page_wanted:
        from reports.trace.report import write_trace_page

        page = write_trace_page(facts, out or Path(f"{path.name.partition('.')[0]}.html"))
    if as_json:
        print(json.dumps(facts, indent=1, allow_nan=False))
    else:
        from reports.terminal import print_report
        from reports.trace.report import trace_report

        print_report(trace_report(facts))
        if page is not None:
            print(f"page in {page}")
    return page


def read(
    path: Path,
    *,
    trace_format: str | None = None,
    subset: str | None = None,
    block_tokens: int | None = None,
    skip_bad_rows: bool = False,
    spread_ticks: bool = True,
    sessions_per_h: float | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    window_s: tuple[float, float] | None = None,
) -> Recording:
    """Read a recording as a scenario's ``workload.trace`` would; see its options there."""
    from workloads import transform
    from workloads.readers.detect import detect_format, read_recording

    name = trace_format or detect_format(path)
    if name == "servegen":
        return _drawn(path, subset, window_s, seed, skip_bad_rows=skip_bad_rows)
    if subset is not None:
        raise ScenarioError(f"--subset: a {name} trace has no parts to choose")
    recording = read_recording(
        path,
        format=trace_format,
        block_tokens=block_tokens,
        skip_bad_rows=skip_bad_rows,
        spread_ticks=spread_ticks,
    )
    _check_block_tokens(recording, block_tokens)
    if sessions_per_h is not None:
        recording = _placed(recording, sessions_per_h, duration_s, seed)
    elif duration_s is not None:
        raise ScenarioError("--duration goes with --sessions-per-hour; cut a trace with --window")
    if window_s is not None:
        if recording.clock == "none":
            raise ScenarioError("--window cuts by time, and this trace has no times")
        if recording.clock == "session":
            raise ScenarioError(
                "--window cuts by a common clock: place the sessions with --sessions-per-hour"
            )
        table = transform.window(recording.table, *window_s)
        recording = replace(recording, table=table)
    return recording


def _drawn(
    path: Path,
    subset: str | None,
    window_s: tuple[float, float] | None,
    seed: int,
    *,
    skip_bad_rows: bool,
) -> Recording:
    """Draw requests from recorded client rates: those of the first hour, unless a window is
    given."""
    from workloads.readers.servegen_files import read_client_rates
    from workloads.servegen import draw_requests

    rates = read_client_rates(path, subset, skip_bad_rows=skip_bad_rows)
    window_s = window_s or (0.0, min(rates.duration_s, _DRAWN_S))
    return Recording(table=draw_requests(rates, window_s=window_s, seed=seed))


def _check_block_tokens(recording: Recording, asked: int | None) -> None:
    chains = recording.table.chains
    if asked is None or (chains is not None and chains.block_tokens == asked):
        return
    has = "has no prefix ids" if chains is None else f"says itself: {chains.block_tokens}"
    raise ScenarioError(f"--block-tokens {asked}: this trace {has}")


def _placed(
    recording: Recording, sessions_per_h: float, duration_s: float | None, seed: int
) -> Recording:
    """Start sessions that have their own clocks as a Poisson process."""
    from workloads.replay import draw_sessions

    if recording.clock != "session":
        has = "no times" if recording.clock == "none" else "one clock for all requests"
        raise ScenarioError(
            f"--sessions-per-hour is for sessions with clocks of their own; this trace has {has}"
        )
    table = draw_sessions(
        recording.table, sessions_per_h, duration_s=duration_s or 3 * 3600, seed=seed
    )
    return replace(recording, table=table, clock="trace")


def _kv_cache(model: str) -> Facts:
    from costmodels.models.catalog import load_model

    spec = load_model(model)
    return {
        "model": spec.name,
        "dtype": spec.kv_cache_dtype,
        "bytes_per_token": spec.kv_bytes_per_token,
    }
