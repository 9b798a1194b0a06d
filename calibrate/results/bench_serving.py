"""Read results of the load generators of vLLM (``vllm bench serve``) and SGLang
(``bench_serving``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.results.run import LINEAR, STATISTICS, MeasuredRun, tpot_of
from calibrate.results.values import (
    check_length,
    displayed,
    parse_documents,
    printable,
    printable_text,
    read_count,
    read_number,
    read_number_lists,
    read_numbers,
)
from costmodels.fields import LIST, Fields
from sim.arrays import Float64

_TOTALS = {"prompt_tokens": "total_input_tokens", "output_tokens": "total_output_tokens"}


def bench_run(
    bench: Fields,
    *,
    tool: str,
    name: str | None,
    suffixes: Mapping[str, str],
    shown: Mapping[str, str],
    is_printed: bool = False,
) -> MeasuredRun:
    """Read a run from such a file. Raises `TraceError`.

    ``suffixes`` maps each metric to the file's name for it, ``shown`` maps a field to the condition
    it is shown as. Of what is printed, only a part may have been kept.
    """
    conditions = {shown[field]: value for field, value in displayed(bench, *shown).items()}
    parts = [
        f"{key} {short_text(conditions[key])}"
        for key in ("rate", "concurrency")
        if key in conditions
    ]
    run = MeasuredRun(
        name=name or ", ".join(parts) or tool,
        tool=tool,
        conditions=conditions,
        latency_from="send",
        percentiles=LINEAR,
        summary=_summary(bench, suffixes),
        duration_s=read_number(bench, "duration"),
        completed=read_count(bench, "completed"),
        failed=read_count(bench, "failed") or 0,
    )
    output_tokens = read_numbers(bench, "output_lens")
    if output_tokens is not None and "ttfts" in bench:
        return _with_requests(run, bench, output_tokens)
    if run.completed is None and not is_printed:
        bench.fail("completed", "how many requests succeeded")
    if run.completed is None or run.failed:
        return run  # the file does not say which latencies belong to failed requests
    return replace(run, e2e_s=read_numbers(bench, "latencies", run.completed))


def _with_requests(run: MeasuredRun, bench: Fields, output_tokens: Float64) -> MeasuredRun:
    """Add the per-request lists of a detailed file to a run, in seconds.

    Without ``latencies``, the time of the last token is the first's plus all gaps.
    """
    n = len(output_tokens)
    ttft_s = read_numbers(bench, "ttfts", n)
    gaps = read_number_lists(bench, "itls", n)
    e2e_s = read_numbers(bench, "latencies", n)
    if ttft_s is None or not n:
        bench.fail("output_lens", "an entry a request")
    if e2e_s is None and gaps is not None:
        e2e_s = ttft_s + np.array([float(of_request.sum()) for of_request in gaps])
    # A failure may leave no text. Then there are no tokens and no times either.
    ok = ~_failed(bench, n) & ((output_tokens > 0) | (ttft_s > 0))
    gaps_of_ok = [of_request for of_request, is_ok in zip(gaps or [], ok, strict=False) if is_ok]
    starts, prompts = read_numbers(bench, "start_times", n), read_numbers(bench, "input_lens", n)
    return replace(
        run,
        tool=f"{run.tool}, detailed",
        arrival_s=None if starts is None else starts[ok],
        prompt_tokens=None if prompts is None else prompts[ok],
        output_tokens=output_tokens[ok],
        ttft_s=ttft_s[ok],
        tpot_s=None if e2e_s is None else tpot_of(ttft_s, e2e_s, output_tokens)[ok],
        e2e_s=None if e2e_s is None else e2e_s[ok],
        gaps_s=np.concatenate(gaps_of_ok) if gaps_of_ok else None,
        completed=int(ok.sum()),
        failed=int((~ok).sum()),
    )


def _summary(bench: Fields, suffixes: Mapping[str, str]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for metric, suffix in suffixes.items():
        for statistic in STATISTICS:
            # A file always has the median, and p50 too if percentiles were requested.
            names = ["median", "p50"] if statistic == "p50" else [statistic]
            for written in names:
                value_ms = read_number(bench, f"{written}_{suffix}_ms")
                if value_ms is not None:
                    found[metric, statistic] = value_ms / 1e3
    for rate in ("request_throughput", "output_throughput"):
        per_s = read_number(bench, rate)
        if per_s is not None:
            found[rate, "value"] = per_s
    completed = read_number(bench, "completed")
    for kind, total in _TOTALS.items():
        tokens = read_number(bench, total)
        if tokens is not None and completed:
            found[kind, "mean"] = tokens / completed
    return found


def _failed(bench: Fields, n: int) -> NDArray[np.bool_]:
    """Return which requests have a text in ``errors``."""
    errors = bench.read(LIST, "errors")
    if errors is None:
        return np.zeros(n, np.bool_)
    check_length(bench, "errors", errors, n)
    return np.array([bool(error) for error in errors], np.bool_)


def short_text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


_VLLM_SUFFIXES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
_VLLM_SHOWN = {
    "model_id": "model",
    "request_rate": "rate",
    "burstiness": "burstiness",
    "max_concurrency": "concurrency",
    "endpoint_type": "backend",
    "backend": "backend",
    "date": "date",
}


def looks_like_vllm_bench(first: Fields) -> bool:
    """Return whether an object has the fields of this tool."""
    latencies = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "ttfts")
    is_serving = "model_id" in first and any(name in first for name in latencies)
    return is_serving and "mean_e2e_latency_ms" not in first


def read_vllm_bench(text: str, path: Path) -> list[MeasuredRun]:
    """Read the runs of a result file. Raises `TraceError`."""
    return [
        bench_run(
            bench,
            tool="vllm bench serve",
            name=printable_text(bench, "label"),
            suffixes=_VLLM_SUFFIXES,
            shown=_VLLM_SHOWN,
        )
        for bench in parse_documents(text, path)
    ]


_SGLANG_SUFFIXES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}
_SGLANG_SHOWN = {
    "request_rate": "rate",
    "max_concurrency": "concurrency",
    "backend": "backend",
    "dataset_name": "dataset",
}


def looks_like_sglang_bench(first: Fields) -> bool:
    """Return whether an object has the fields of this tool."""
    return "mean_e2e_latency_ms" in first or "total_output_tokens_retokenized" in first


def read_sglang_bench(text: str, path: Path) -> list[MeasuredRun]:
    """Read the runs of a result file. Raises `TraceError`."""
    runs = []
    for bench in parse_documents(text, path):
        run = bench_run(
            bench,
            tool="sglang bench_serving",
            name=printable_text(bench, "tag"),
            suffixes=_SGLANG_SUFFIXES,
            shown=_SGLANG_SHOWN,
        )
        run.conditions.update(_server(bench))
        runs.append(run)
    return runs


def _server(bench: Fields) -> dict[str, str | float]:
    """Return the model from the server's description of itself, if there is one."""
    info = bench.values.get("server_info")
    name = info.get("model_path") if isinstance(info, dict) else None
    return {"model": printable(name)} if isinstance(name, str) else {}
