"""Read what servers and load tools print: the table of ``vllm bench serve`` or of SGLang's
``bench_serving``, and the lines in which an engine logs its throughput."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from calibrate.results.bench_serving import bench_run
from calibrate.results.run import MeasuredRun
from calibrate.results.values import printable, text_number
from costmodels.fields import Fields
from sim.errors import TraceError

_TITLE = re.compile(r"={3,}[^=\n]*Benchmark Result[^=\n]*={3,}")
_ROW = re.compile(r"^\W*([A-Z][^:\n]*?)\s*:[\s|]+([^\s|]+)", re.MULTILINE)
_LATENCY = re.compile(r"(mean|median|p\d+) (ttft|tpot|itl|e2el?|e2e latency) \(ms\)")
_TOTALS = {
    "successful requests": "completed",
    "failed requests": "failed",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "traffic request rate": "request_rate",
    "request rate configured (rps)": "request_rate",
    "max request concurrency": "max_concurrency",
    "maximum request concurrency": "max_concurrency",
    "backend": "backend",
}
_OFFLINE = re.compile(
    r"Throughput: ([\d.]+) requests/s,.*?(?:, ([\d.]+) output tokens/s)?$", re.MULTILINE
)
_ONE_BATCH = re.compile(r"(?:(Avg)|(\d+)% percentile) latency: ([\d.]+) seconds")
"""What ``vllm bench throughput`` and ``vllm bench latency`` print."""
_SHOWN = {"request_rate": "rate", "max_concurrency": "concurrency", "backend": "backend"}
_SUFFIXES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


def looks_like_table(text: str) -> bool:
    """Return whether a text holds the printed table of a benchmark, whole or in part."""
    parts = (_TITLE, _OFFLINE, _ONE_BATCH)
    return "Mean TTFT (ms):" in text or any(part.search(text) for part in parts)


def read_table(text: str, path: Path) -> list[MeasuredRun]:
    """Read every table of a text as a run. Raises `TraceError` for one without latencies."""
    starts = [match.start() for match in _TITLE.finditer(text)] or [0]
    runs = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(text)], strict=True), 1):
        where = f"{path}, table {number}" if len(starts) > 1 else str(path)
        values = _values(text[start:end])
        if not any(name.endswith(("_ms", "_throughput")) for name in values):
            raise TraceError(f"{where}: no latencies; expected lines such as `Mean TTFT (ms): 150`")
        is_sglang = "backend" in values and "sglang" in str(values["backend"])
        runs.append(
            bench_run(
                Fields(values, where, raises=TraceError),
                tool=f"{'SGLang bench_serving' if is_sglang else 'vllm bench'}, printed",
                name=printable(path.name.partition(".")[0]),
                suffixes=_SUFFIXES,
                shown=_SHOWN,
                is_printed=True,
            )
        )
    return runs


def _values(table: str) -> dict[str, object]:
    """Return the rows of a table under the names that the tool's JSON has."""
    found: dict[str, object] = {}
    for label, text in _ROW.findall(table):
        name = label.lower()
        latency = _LATENCY.fullmatch(name)
        number = text_number(text.replace(",", ""))
        if latency is not None:
            metric = "e2el" if latency[2].startswith("e2e") else latency[2]
            key = f"{latency[1]}_{metric}_ms"
        elif name in _TOTALS:
            key = _TOTALS[name]
        else:
            continue
        value: object = text if number is None else number
        if number is not None and key in ("completed", "failed"):
            value = int(number)
        if number is not None or key in _SHOWN:
            found.setdefault(key, value)
    for requests, tokens in _OFFLINE.findall(table):
        found |= {"request_throughput": float(requests)}
        found |= {"output_throughput": float(tokens)} if tokens else {}
    for average, percent, seconds in _ONE_BATCH.findall(table):
        found[f"{'mean' if average else f'p{percent}'}_e2el_ms"] = float(seconds) * 1e3
    return found


_VLLM = re.compile(
    r"(?:Engine (\d+): )?Avg prompt throughput: ([\d.]+) tokens/s, "
    r"Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs?,.*?(?:Waiting|Pending): "
    r"(\d+) reqs?(?:.*?KV cache usage: ([\d.]+)%)?(?:.*?Prefix cache hit rate: ([\d.]+)%)?"
)
_SGLANG = re.compile(
    r"Decode batch.*?#running-req: (\d+),.*?token usage: ([\d.]+),.*?gen throughput \(token/s\): "
    r"([\d.]+),.*?#queue-req: (\d+)"
)


def looks_like_engine_log(text: str) -> bool:
    """Return whether a text holds lines of an engine's own statistics."""
    return _VLLM.search(text) is not None or _SGLANG.search(text) is not None


def read_engine_log(text: str, path: Path) -> list[MeasuredRun]:
    """Read the throughput that an engine logs, as a mean over its lines, added up over engines.

    Latencies and numbers of requests are not in it. Raises `TraceError` if no line has any.
    """
    lines: dict[str, list[dict[str, float]]] = defaultdict(list)
    for match in _VLLM.finditer(text):
        names = ("prompt_tok_per_s", "output_tok_per_s", "running", "waiting", "kv_usage", "hits")
        percent = {"kv_usage": 0.01, "hits": 0.01}
        found = zip(names, match.groups()[1:], strict=True)
        lines[match[1] or ""].append(
            {name: float(value) * percent.get(name, 1.0) for name, value in found if value}
        )
    for match in _SGLANG.finditer(text):
        of_sglang = ("running", "kv_usage", "output_tok_per_s", "waiting")
        lines[""].append(dict(zip(of_sglang, map(float, match.groups()), strict=True)))
    busy = {
        engine: [line for line in of_engine if line["output_tok_per_s"] > 0]
        for engine, of_engine in lines.items()
    }
    if not any(busy.values()):
        raise TraceError(f"{path}: no line of the log has a generation throughput above 0")
    means = {
        name: sum(_mean(of_engine, name) for of_engine in busy.values())
        for name in ("output_tok_per_s", "prompt_tok_per_s", "running", "waiting")
    }
    shares = {
        name: float(np.mean([_mean(of_engine, name) for of_engine in busy.values() if of_engine]))
        for name in ("kv_usage", "hits")
    }
    count = sum(map(len, busy.values()))
    return [
        MeasuredRun(
            name=printable(path.name.partition(".")[0]),
            tool="an engine's log",
            conditions={name: round(value, 4) for name, value in (means | shares).items() if value},
            latency_from="arrival",
            summary={("output_throughput", "value"): means["output_tok_per_s"]},
            completed=None,
            notes=(
                f"throughput is the mean of {count} lines of the log in which the engine was busy; "
                "it has no latencies",
            ),
        )
    ]


def _mean(lines: list[dict[str, float]], name: str) -> float:
    values = [line[name] for line in lines if name in line]
    return float(np.mean(values)) if values else 0.0
