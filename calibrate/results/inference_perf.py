"""Read results of inference-perf: its summary or a stage (``*_lifecycle_metrics.json``), or its
requests (``per_request_lifecycle_metrics.json``). Times are in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic_core import from_json

from calibrate.results.run import LINEAR, STATISTICS, MeasuredRun, tpot_of
from calibrate.results.values import (
    displayed,
    parse_documents,
    printable,
    read_count,
    read_number,
    read_numbers,
)
from costmodels.fields import Fields
from sim.errors import TraceError

_LATENCIES = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
    "e2e": "request_latency",
}
_RATES = {"request_throughput": "requests_per_sec", "output_throughput": "output_tokens_per_sec"}
_LENGTHS = {"prompt_tokens": "prompt_len", "output_tokens": "output_len"}


def looks_like_inference_perf(first: Fields) -> bool:
    """Return whether an object is a summary of this tool."""
    successes = first.values.get("successes")
    return isinstance(successes, dict) and "latency" in successes


def looks_like_its_requests(text: str) -> bool:
    """Return whether a JSON list starts with a request of this tool."""
    start = text.lstrip()[:20_000]
    return start.startswith("[") and '"start_time"' in start and '"end_time"' in start


def read_inference_perf(text: str, path: Path) -> list[MeasuredRun]:
    """Read the single run of a summary, or of its requests. Raises `TraceError`."""
    name = printable(path.name.partition(".")[0])
    if text.lstrip().startswith("["):
        return [_of_requests(text, path, name)]
    document = parse_documents(text, path)[0]
    successes = document.part("successes")
    latency, rates = successes.child("latency"), successes.child("throughput")
    summary: dict[tuple[str, str], float] = {}
    for metric, field in _LATENCIES.items():
        stats = latency.child(field)
        for statistic in STATISTICS:
            names = ("median", "p50") if statistic == "p50" else (statistic,)
            found = [value for one in names if (value := read_number(stats, one)) is not None]
            if found:
                summary[metric, statistic] = found[0]
    for metric, field in _RATES.items():
        rate = read_number(rates, field)
        if rate is not None:
            summary[metric, "value"] = rate
    for kind, field in _LENGTHS.items():
        mean = read_number(successes.child(field), "mean")
        if mean is not None:
            summary[kind, "mean"] = mean
    load = displayed(document.child("load_summary"), "requested_rate", "concurrency")
    return [
        MeasuredRun(
            name=name,
            tool="inference-perf, summary",
            conditions={{"requested_rate": "rate"}.get(key, key): v for key, v in load.items()},
            latency_from="send",
            percentiles=LINEAR,
            summary=summary,
            duration_s=read_number(document, "benchmark_time_seconds"),
            completed=read_count(successes, "count"),
            failed=read_count(document.child("failures"), "count") or 0,
        )
    ]


def _of_requests(text: str, path: Path, name: str) -> MeasuredRun:
    try:
        rows = from_json(text)
    except ValueError as error:
        raise TraceError(f"{path}: not JSON ({error}); is the file cut short?") from None
    columns: list[list[float]] = []
    gaps: list[float] = []
    failed = 0
    for number, row in enumerate(rows, 1):
        values = row if isinstance(row, dict) else {}
        request = Fields(values, f"{path}, request {number}", raises=TraceError)
        if request.values.get("error"):
            failed += 1
            continue
        info = request.child("info")
        start, end = read_number(request, "start_time"), read_number(request, "end_time")
        if start is None or end is None:
            request.fail("start_time", "a time in seconds, and end_time beside it")
        times = read_numbers(info, "output_token_times")
        first = np.nan if times is None or not len(times) else float(times[0])
        if times is not None:
            gaps += np.maximum(np.diff(times), 0.0).tolist()
        lengths = [read_number(info, kind) for kind in ("input_tokens", "output_tokens")]
        columns.append([start, first, end, *(np.nan if n is None else n for n in lengths)])
    if not columns and not failed:
        raise TraceError(f"{path}: no requests; expected a list of them")
    start_s, first_s, end_s, prompts, outputs = np.array(columns, np.float64).reshape(-1, 5).T
    return MeasuredRun(
        name=name,
        tool="inference-perf, requests",
        latency_from="send",
        arrival_s=start_s,
        prompt_tokens=prompts,
        output_tokens=outputs,
        ttft_s=np.maximum(first_s - start_s, 0.0),
        tpot_s=tpot_of(first_s, end_s, outputs),
        e2e_s=np.maximum(end_s - start_s, 0.0),
        gaps_s=np.array(gaps, np.float64) if gaps else None,
        duration_s=float(end_s.max() - start_s.min()) if columns else None,
        completed=len(columns),
        failed=failed,
    )
