"""Read results of GuideLLM: JSON with a list of benchmarks, of version 2 or older.

Its time_per_output_token_ms includes the first token, and its inter_token_latency_ms is each
request's mean gap; both weigh a request by its tokens. If every request's times are present, TPOT
and E2E are computed from them. ITL, and everything in a file without requests, keeps that
convention.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrate.results.bench_serving import short_text
from calibrate.results.run import (
    ITL_MEANS,
    STATISTICS,
    TPOT_EXCLUDES,
    TPOT_INCLUDES,
    MeasuredRun,
    tpot_of,
)
from calibrate.results.values import (
    displayed,
    parse_documents,
    printable_text,
    read_count,
    read_number,
)
from costmodels.fields import Fields

_METRICS = {
    "ttft": ("time_to_first_token_ms", 1e-3),
    "tpot": ("time_per_output_token_ms", 1e-3),
    "itl": ("inter_token_latency_ms", 1e-3),
    "e2e": ("request_latency", 1.0),
}
_RATES = {
    "request_throughput": "requests_per_second",
    "output_throughput": "output_tokens_per_second",
}
_LENGTHS = {"prompt_tokens": "prompt_token_count", "output_tokens": "output_token_count"}
_TIMES = {
    "start": ("request_start", "start_time"),
    "first": ("first_token_iteration", "first_token_time"),
    "last": ("last_token_iteration", "last_token_time"),
    "end": ("request_end", "end_time"),
}
"""Seconds since 1970: the name in ``info.timings``, and the name in a request of an older file."""
_NEWEST = 2


def looks_like_guidellm(first: Fields) -> bool:
    """Return whether an object has the fields of this tool."""
    return isinstance(first.values.get("benchmarks"), list)


def read_guidellm(text: str, path: Path) -> list[MeasuredRun]:
    """Read the benchmarks of a file, one run each. Raises `TraceError`."""
    document = parse_documents(text, path)[0]
    metadata = document.child("metadata")
    if (read_number(metadata, "version") or 0) > _NEWEST:
        metadata.fail("version", f"at most {_NEWEST}, the newest layout that is known")
    tool = f"GuideLLM {printable_text(metadata, 'guidellm_version') or ''}".strip()
    if not document.children("benchmarks"):
        document.fail("benchmarks", "a list with a benchmark or more")
    model = displayed(document.child("args"), "model")
    return [_run(benchmark, tool, model) for benchmark in document.children("benchmarks")]


def _run(benchmark: Fields, tool: str, model: dict[str, str | float]) -> MeasuredRun:
    metrics = benchmark.part("metrics")
    strategy = _strategy(benchmark)
    completed, failed, cut_off = (
        _number_of(benchmark, metrics, status) for status in ("successful", "errored", "incomplete")
    )
    note = f"{cut_off} requests were cut off when the benchmark ended, and are left out"
    run = MeasuredRun(
        name=" ".join(short_text(value) for value in strategy.values()) or "benchmark",
        tool=f"{tool}, summary",
        conditions={
            **model,
            **displayed(benchmark.child("config").child("backend"), "model"),
            **strategy,
        },
        latency_from="send",
        tpot_convention=TPOT_INCLUDES,
        itl_convention=ITL_MEANS,
        summary=_summary(metrics),
        duration_s=_duration_s(benchmark),
        completed=completed,
        failed=failed,
        notes=(note,) if cut_off else (),
    )
    requests = benchmark.child("requests").children("successful")
    # A file may keep a sample of the requests, or none. Its statistics cover all of them.
    if not requests or len(requests) < completed:
        return run
    return replace(_with_requests(run, requests), tool=f"{tool}, requests")


def _with_requests(run: MeasuredRun, requests: list[Fields]) -> MeasuredRun:
    rows = np.array([_row(request) for request in requests], np.float64)
    start, first, last, end, prompt_tokens, output_tokens = rows.T
    tpot_s = tpot_of(first, last, output_tokens)
    has_tpot = not np.isnan(tpot_s).all()
    return replace(
        run,
        tpot_convention=TPOT_EXCLUDES if has_tpot else TPOT_INCLUDES,
        arrival_s=start,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ttft_s=np.maximum(first - start, 0.0),
        tpot_s=tpot_s if has_tpot else None,
        e2e_s=np.maximum(end - start, 0.0),
    )


def _row(request: Fields) -> list[float]:
    info = request.child("info")
    timings = info.child("timings") if "timings" in info else None
    row = []
    for new, old in _TIMES.values():
        value = read_number(request, old) if timings is None else read_number(timings, new)
        row.append(np.nan if value is None else value)
    for kind, metrics in (("prompt_tokens", "input_metrics"), ("output_tokens", "output_metrics")):
        value = read_number(request, kind)
        for counted in ("total_tokens", "text_tokens"):
            value = read_number(request.child(metrics), counted) if value is None else value
        row.append(np.nan if value is None else value)
    return row


def _number_of(benchmark: Fields, metrics: Fields, status: str) -> int:
    """Return how many requests ended with ``status``: from the totals, else from the count of
    the latencies, else from the rows."""
    for holder in (metrics, benchmark):  # the second name in older files
        totals = holder.child("request_totals")
        if status in totals:
            return read_count(totals, status) or 0
    count = read_count(metrics.child("request_latency").child(status), "count")
    return len(benchmark.child("requests").children(status)) if count is None else count


def _summary(metrics: Fields) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}

    def add(metric: str, written: str, scale: float, statistics: tuple[str, ...]) -> None:
        ok = metrics.child(written).child("successful")
        percentiles = ok.child("percentiles")
        for statistic in statistics:
            is_mean = statistic in ("mean", "value")
            value = read_number(ok, "mean") if is_mean else read_number(percentiles, statistic)
            if value is not None:
                found[metric, statistic] = value * scale

    for metric, (written, scale) in _METRICS.items():
        add(metric, written, scale, STATISTICS)
    for metric, written in _RATES.items():
        add(metric, written, 1.0, ("value",))
    for metric, written in _LENGTHS.items():
        add(metric, written, 1.0, ("mean",))
    return found


def _duration_s(benchmark: Fields) -> float | None:
    start_s, end_s = read_number(benchmark, "start_time"), read_number(benchmark, "end_time")
    return None if start_s is None or end_s is None else max(end_s - start_s, 0.0)


def _strategy(benchmark: Fields) -> dict[str, str | float]:
    """Describe how load was generated; rate in requests/s."""
    for parent in ("config", "args"):
        config = benchmark.child(parent)
        if "strategy" in config:
            strategy = config.child("strategy")
            found = displayed(strategy, "type_", "rate", "streams", "max_concurrency")
            names = {
                "type_": "strategy",
                "streams": "concurrency",
                "max_concurrency": "concurrency",
            }
            return {names.get(name, name): value for name, value in found.items()}
    return {}
