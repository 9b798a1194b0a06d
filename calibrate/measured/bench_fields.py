"""What the result files of vLLM's and SGLang's load generators have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrate.measured.run import LINEAR, STATISTICS, Float, MeasuredRun, tpot_of
from calibrate.measured.values import Fields
from sim.errors import TraceError

_TOTALS = {"prompt_tokens": "total_input_tokens", "output_tokens": "total_output_tokens"}


def bench_run(
    bench: Fields,
    *,
    tool: str,
    name: str | None,
    suffixes: Mapping[str, str],
    shown: Mapping[str, str],
) -> MeasuredRun:
    """A run of such a file. Raises TraceError.

    ``suffixes`` has the file's name of each metric, ``shown`` the condition that a field is.
    """
    conditions = {shown[field]: value for field, value in bench.display(*shown).items()}
    parts = [
        f"{key} {_short(conditions[key])}" for key in ("rate", "concurrency") if key in conditions
    ]
    run = MeasuredRun(
        name=name or ", ".join(parts) or tool,
        tool=tool,
        conditions=conditions,
        latency_from="send",
        percentiles=LINEAR,
        summary=_summary(bench, suffixes),
        duration_s=bench.number("duration"),
        completed=bench.count("completed") or 0,
        failed=bench.count("failed") or 0,
    )
    output_tokens = bench.numbers("output_lens")
    if output_tokens is not None and "ttfts" in bench:
        return _with_requests(run, bench, output_tokens)
    if "completed" not in bench:
        bench.fail("completed", "how many requests succeeded")
    if run.failed:
        return run  # which of the latencies are of failed requests is not said
    return replace(run, e2e_s=bench.numbers("latencies", run.completed))


def _with_requests(run: MeasuredRun, bench: Fields, output_tokens: Float) -> MeasuredRun:
    """With the lists of a detailed file, in seconds.

    Where there are no ``latencies``, the last token comes all gaps after the first.
    """
    n = len(output_tokens)
    ttft_s = bench.numbers("ttfts", n)
    gaps = bench.number_lists("itls", n)
    e2e_s = bench.numbers("latencies", n)
    if ttft_s is None or not n:
        bench.fail("output_lens", "an entry a request")
    if e2e_s is None and gaps is not None:
        e2e_s = ttft_s + np.array([float(of_request.sum()) for of_request in gaps])
    # A failure may leave no text: then there is no token, and no time either.
    ok = ~_failed(bench, n) & ((output_tokens > 0) | (ttft_s > 0))
    gaps_of_ok = [of_request for of_request, is_ok in zip(gaps or [], ok, strict=False) if is_ok]
    starts, prompts = bench.numbers("start_times", n), bench.numbers("input_lens", n)
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
            # A file has the median always, and p50 too if percentiles were asked for.
            names = ["median", "p50"] if statistic == "p50" else [statistic]
            for written in names:
                value_ms = bench.number(f"{written}_{suffix}_ms")
                if value_ms is not None:
                    found[metric, statistic] = value_ms / 1e3
    for rate in ("request_throughput", "output_throughput"):
        per_s = bench.number(rate)
        if per_s is not None:
            found[rate, "value"] = per_s
    completed = bench.number("completed")
    for kind, total in _TOTALS.items():
        tokens = bench.number(total)
        if tokens is not None and completed:
            found[kind, "mean"] = tokens / completed
    return found


def _failed(bench: Fields, n: int) -> NDArray[np.bool_]:
    """Which requests have a text in ``errors``."""
    errors = bench.items("errors")
    if errors is None:
        return np.zeros(n, np.bool_)
    if len(errors) != n:
        raise TraceError(
            f"{bench.where}: errors has {len(errors)} entries; expected {n}, one a request"
        )
    return np.array([bool(error) for error in errors], np.bool_)


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
