"""Read a recorded workload, and say everything that is known about it as one JSON-able dict."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.models.catalog import load_model
from scenarios.inspection import trace_series
from scenarios.inspection.trace_series import Series
from sim import __version__
from sim.clock import NS_PER_S, to_s
from sim.errors import ScenarioError, TraceError
from sim.request_table import RequestTable
from workloads import transform
from workloads.chains import regroup
from workloads.readers.columns import parse_columns
from workloads.readers.detect import detect_format, read_recording
from workloads.readers.recording import Recording
from workloads.readers.servegen_files import read_client_rates
from workloads.replay import draw_sessions
from workloads.reuse import HitCurve
from workloads.servegen import draw_requests
from workloads.statistics.arrival_stats import arrival_statistics
from workloads.statistics.describe import correlation, length_statistics, session_statistics
from workloads.statistics.reuse_stats import Reuse, reuse_statistics

_DAY_S = 86_400


def trace_warnings(facts: dict[str, Any]) -> list[str]:
    """Return warnings as sentences, the gravest first."""
    texts = []
    skipped = facts["skipped_rows"]
    if skipped:
        texts.append(f"{skipped:,} rows could not be read and were skipped.")
    if facts["clock"] == "none":
        texts.append("The format has no times: replay it at a rate of your own.")
    if facts["clock"] == "session":
        texts.append(
            "Each session has a clock of its own, and how sessions overlap decides what a cache "
            "must hold: place them in time (--sessions-per-hour) to see what a limited cache finds."
        )
    arrivals = facts["arrivals"]
    if arrivals is not None and arrivals["span_s"] < _DAY_S:
        # Hour-of-day extremes of the ServeGen and RAGPulse traces, over days.
        texts.append(
            "It covers less than a day. Rates of real services moved by 1.4 to 4.9 times (a campus "
            "by 24) between the hours of a day."
        )
    if facts["lru"] is not None and arrivals is not None and not facts["warmup_s"]:
        texts.append(
            "Hits are counted from an empty cache, so a short trace shows too few (--warmup leaves "
            "out its beginning)."
        )
    return texts


SCHEMA = "fleetcast.trace/1"
SHARES_OF_POSSIBLE = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

_MOST_ACCESSES = 12_000_000
"""Most accesses to prefix blocks; above this, larger blocks are used so that seconds are enough."""
_MOST_ROWS = 10
_NEARLY_ALL = 0.995
"""Share of possible hits at which the table of capacities ends."""
_SPREAD = "shared a clock tick"
"""Words of readers' notes that they spread arrivals inside the ticks of a coarse clock."""

_DRAWN_S = 3600.0
"""Seconds of client rates to draw without a window; some services have over 1,000 requests/s."""

Facts = dict[str, Any]


def read_trace(
    path: Path,
    *,
    trace_format: str | None = None,
    columns: str | None = None,
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
    named = None if columns is None else parse_columns(columns)
    name = trace_format or ("columns" if named else detect_format(path))
    if name == "servegen":
        return _drawn(path, subset, window_s, seed, skip_bad_rows=skip_bad_rows)
    if subset is not None:
        raise ScenarioError(f"--subset: a {name} trace has no parts to choose")
    recording = read_recording(
        path,
        format=trace_format,
        columns=named,
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
    if recording.clock != "session":
        has = "no times" if recording.clock == "none" else "one clock for all requests"
        raise ScenarioError(
            f"--sessions-per-hour is for sessions with clocks of their own; this trace has {has}"
        )
    table = draw_sessions(
        recording.table, sessions_per_h, duration_s=duration_s or 3 * 3600, seed=seed
    )
    return replace(recording, table=table, clock="trace")


def kv_cache_facts(model: str) -> Facts:
    """Return the name, cache format and cache bytes a token of a model. Raises `ScenarioError`."""
    spec = load_model(model)
    return {
        "model": spec.name,
        "dtype": spec.kv_cache_dtype,
        "bytes_per_token": spec.kv_bytes_per_token,
    }


def trace_facts(
    recording: Recording, *, file: str, kv_cache: Facts | None = None, warmup_s: float = 0.0
) -> Facts:
    """Return statistics, an LRU's hits by capacity, and data of figures; None where there is no
    data.

    ``kv_cache`` holds a model's ``bytes_per_token``; requests of the first ``warmup_s`` seconds
    fill the cache, and their hits are not counted. Raises `TraceError` if there is no request, or a
    prefix chain names a block twice, `ScenarioError` if the warm-up leaves nothing.
    """
    table = recording.table
    if not len(table):
        skipped = (f"{table.skipped_rows} rows skipped",) if table.skipped_rows else ()
        said = "; ".join((*skipped, *table.notes)) or "the file is empty"
        raise TraceError(f"{file}: no request to describe ({said})")
    sessions = session_statistics(table, has_times=recording.times, has_thinks=recording.thinks)
    if recording.clock == "trace" and recording.times:
        table = replace(table, after=None, think_ns=None)  # every request has its own time
    table = with_fewer_blocks(table)
    own_ns = table.arrival_ns if table.after is None else table.arrival_ns[table.after < 0]
    has_clock = recording.clock == "trace" and bool(np.ptp(own_ns))
    since = _first_counted(table, warmup_s, has_clock, file)
    if since:
        note = f"cache hits counted after the first {warmup_s:g} s"
        table = replace(table, notes=(*table.notes, note))
    series: dict[str, Series | None] = {
        "arrivals": trace_series.arrival_series(own_ns) if has_clock else None,
        "gaps": trace_series.gap_series(own_ns) if has_clock else None,
        "prompt_tokens": trace_series.length_series(table.prompt_tokens),
        "output_tokens": trace_series.length_series(table.output_tokens),
        "joint": trace_series.joint_series(table.prompt_tokens, table.output_tokens),
    }
    is_spread = any(_SPREAD in note for note in table.notes)
    if is_spread:
        series["gaps"] = None  # the gaps would show only the spreading
    reuse, lru = None, None
    if table.chains is not None and len(table.chains.ids):
        accesses = Reuse(table, table.chains)
        curve = accesses.curve(since=since)
        reuse = reuse_statistics(accesses, curve)
        # sessions without a common clock interleave in no known order
        if recording.clock != "session":
            longest = int(np.diff(table.chains.offsets).max())
            lru = _lru(curve, longest, kv_cache)
            series["lru"] = trace_series.curve_series(curve, longest)
        if accesses.has_times:
            series |= trace_series.reuse_series(accesses)
    facts: Facts = _jsonable(
        {
            "schema": SCHEMA,
            "fleetcast_version": __version__,
            "file": file,
            "source": table.source,
            "notes": list(table.notes),
            "skipped_rows": table.skipped_rows,
            "clock": recording.clock,
            "ticks_spread": is_spread,
            "num_requests": len(table),
            "arrivals_of": "requests" if table.is_open_loop else "session starts",
            "arrivals": arrival_statistics(own_ns) if has_clock else None,
            "prompt_tokens": length_statistics(table.prompt_tokens),
            "output_tokens": length_statistics(table.output_tokens),
            "correlation": correlation(table.prompt_tokens, table.output_tokens),
            "reuse": reuse,
            "warmup_s": warmup_s,
            "lru": lru,
            "kv_cache": kv_cache,
            "sessions": sessions or None,
            "series": series,
        }
    )
    return facts | {"warnings": trace_warnings(facts)}


def _first_counted(table: RequestTable, warmup_s: float, has_clock: bool, file: str) -> int:
    """Return the first row after the warm-up."""
    if not warmup_s:
        return 0
    if not has_clock or not table.is_open_loop:
        raise ScenarioError(f"{file}: --warmup needs requests with times of one clock")
    span_s = to_s(int(np.ptp(table.arrival_ns)))
    if not 0 <= warmup_s <= span_s:
        raise ScenarioError(f"--warmup {warmup_s:g}: expected 0 up to {span_s:.6g} s, the trace's")
    return int(np.searchsorted(table.arrival_ns, table.arrival_ns[0] + round(warmup_s * NS_PER_S)))


def with_fewer_blocks(table: RequestTable) -> RequestTable:
    """Return the table with larger prefix blocks, if their accesses would be too many to count."""
    chains = table.chains
    if chains is None or len(chains.ids) <= _MOST_ACCESSES:
        return table
    doublings = math.ceil(math.log2(len(chains.ids) / _MOST_ACCESSES))
    block_tokens = chains.block_tokens * 2**doublings
    note = (
        f"prefix blocks of {chains.block_tokens} tokens taken as blocks of {block_tokens}, because "
        f"there are {len(chains.ids):,}"
    )
    return replace(table, chains=regroup(chains, block_tokens), notes=(*table.notes, note))


def _lru(curve: HitCurve, least_blocks: int, kv_cache: Facts | None) -> Facts:
    """Return hits at round capacities, and capacities for round shares of the possible hits."""
    possible = curve.possible_tokens

    def room(capacity_tokens: int) -> Facts:
        row: Facts = {"capacity_tokens": capacity_tokens}
        if kv_cache is not None:
            row["capacity_bytes"] = capacity_tokens * kv_cache["bytes_per_token"]
        return row

    def at(capacity_tokens: int) -> Facts:
        hits = int(curve.hits_at(capacity_tokens // curve.block_tokens))
        return room(capacity_tokens) | {
            "hit_fraction": hits / curve.prompt_tokens,
            "share_of_possible": hits / possible,
        }

    def enough_for(share: float) -> Facts:
        capacity_tokens = curve.capacity_for(share) * curve.block_tokens
        return room(capacity_tokens) | {"share_of_possible": share}

    shares = SHARES_OF_POSSIBLE if possible else ()
    return {
        "longest_request_tokens": least_blocks * curve.block_tokens,
        "by_capacity": [at(tokens) for tokens in _round_capacities(curve, least_blocks)],
        "for_share": [enough_for(share) for share in shares],
    }


def _round_capacities(curve: HitCurve, least_blocks: int) -> list[int]:
    """Return token counts, 1, 2 and 5 times powers of ten, from the longest request to the last
    hits."""
    if not curve.possible_tokens:
        return []
    least = least_blocks * curve.block_tokens
    enough = max(curve.capacity_for(_NEARLY_ALL) * curve.block_tokens, least)
    steps = [step * 10**power for power in range(len(str(enough)) + 1) for step in (1, 2, 5)]
    last = next(i for i, tokens in enumerate(steps) if tokens >= enough)
    rows = [tokens for tokens in steps[: last + 1] if tokens >= least]
    return rows[-_MOST_ROWS:]


def _jsonable(value: Any) -> Any:
    """Replace NaN by None, because JSON has no number for what is not known."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
