"""Read results of AIPerf, and of GenAI-Perf before it: ``profile_export.jsonl``, one request per
line, or a summary, such as ``profile_export_aiperf.json`` or ``profile_export_genai_perf.csv``.

Its inter_token_latency is one value per request, (latency - ttft)/(tokens - 1), which is called
TPOT here. Its inter_chunk_latency has every gap between responses, which is called ITL here. Every
value has its unit.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter

from calibrate.results.run import LINEAR, STATISTICS, MeasuredRun, tpot_of
from calibrate.results.values import (
    displayed,
    parse_documents,
    printable,
    printable_text,
    read_count,
    read_number,
    read_numbers,
    text_number,
)
from costmodels.fields import Fields, MustBe
from sim.errors import TraceError

_SECONDS = {
    **dict.fromkeys(("s", "sec", "seconds"), 1.0),
    **dict.fromkeys(("ms", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-9),
}
_PER_S = dict.fromkeys(
    ("requests/sec", "requests/s", "tokens/sec", "tokens/s", "1/s", "per sec"), 1.0
)
_TOKENS = dict.fromkeys(("tokens", "token"), 1.0)
_METRICS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2e": "request_latency",
}
_RATES = {
    "request_throughput": "request_throughput",
    "output_throughput": "output_token_throughput",
}
_EPOCH_NS: TypeAdapter[int] = TypeAdapter(
    Annotated[int, Field(strict=True, ge=0, le=10**19), MustBe("whole nanoseconds since 1970")]
)
_LENGTHS = {"prompt_tokens": "input_sequence_length", "output_tokens": "output_sequence_length"}


def looks_like_aiperf(first: Fields) -> bool:
    """Return whether an object is a request or a summary of this tool."""
    metadata = first.values.get("metadata")
    if isinstance(metadata, dict) and "request_start_ns" in metadata:
        return True
    experiments = first.values.get("experiments")
    if isinstance(experiments, list) and experiments and isinstance(experiments[0], dict):
        return "requests" in experiments[0]
    summaries = [first.values.get(name) for name in (*_METRICS.values(), *_RATES.values())]
    return any(isinstance(summary, dict) and "unit" in summary for summary in summaries)


def read_aiperf(text: str, path: Path) -> list[MeasuredRun]:
    """Read the single run of a file. Raises `TraceError` if the file is damaged."""
    documents = parse_documents(text, path)
    name = printable(path.name.partition(".")[0])
    if "experiments" in documents[0]:
        return [
            _of_experiment(experiment, f"{name}, {number}" if number > 1 else name)
            for number, experiment in enumerate(documents[0].children("experiments"), 1)
        ]
    if "metadata" in documents[0]:
        return [_of_requests(documents, name, str(path))]
    if len(documents) > 1:
        raise TraceError(
            f"{documents[1].where}: a second object; expected one summary, or requests"
        )
    return [_of_summary(documents[0], name)]


_TITLE = re.compile(r"(.+?)\s*\(([^()]*)\)")


_HEADINGS = ("metric", "statistic")
_EDGES = re.compile(r"[\u2502\u2503|]")


def looks_like_aiperf_table(text: str) -> bool:
    """Return whether a text is a summary of these tools as CSV, or as the table they print."""
    return any(_is_heading(cells) for cells in _rows(text[:20_000]))


def read_aiperf_table(text: str, path: Path) -> list[MeasuredRun]:
    """Read a summary as CSV or as printed: tables with a metric and its unit in each row.

    Raises `TraceError`.
    """
    metrics: dict[str, Any] = {}
    titles: list[str] = []
    names: list[str] = []
    values: list[dict[str, str]] = []
    for cells in _rows(text):
        if _is_heading(cells):
            names = [name.lower().replace("value", "avg") for name in cells[1:]]
        elif names and any(cells[1:]):
            titles.append(cells[0])
            values.append(dict(zip(names, cells[1:], strict=False)))
        elif titles and cells[0]:  # a printed title goes on in the next line
            titles[-1] += f" {cells[0]}"
    for written, of_row in zip(titles, values, strict=True):
        title = _TITLE.fullmatch(written)
        name, unit = (title[1], title[2]) if title is not None else (written, "tokens")
        numbers = {key: text_number(cell.replace(",", "")) for key, cell in of_row.items()}
        known = {key: value for key, value in numbers.items() if value is not None}
        metrics["_".join(name.lower().split())] = {"unit": unit, **known}
    name = printable(path.name.partition(".")[0])
    return [_of_summary(Fields(metrics, str(path), raises=TraceError), name)]


def _rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each line of CSV, or of a printed table's inside."""
    for line in text.splitlines():
        if _EDGES.search(line):
            yield [cell.strip() for cell in _EDGES.split(line)[1:-1]] or [""]
        elif "," in line:
            yield [cell.strip() for cell in next(csv.reader([line]), [""])] or [""]


def _is_heading(cells: list[str]) -> bool:
    head = [cell.lower() for cell in cells]
    return head[0] in _HEADINGS and bool({"avg", "value"} & set(head))


def _of_experiment(experiment: Fields, name: str) -> MeasuredRun:
    """Build a run of GenAI-Perf's raw file, ``profile_export.json``: times of requests and of each
    response, in nanoseconds, without token counts."""
    start, first, last = list[float](), list[float](), list[float]()
    gaps: list[float] = []
    origin_ns = None
    for request in experiment.children("requests"):
        sent_ns = request.need(_EPOCH_NS, "timestamp", what="a time in nanoseconds since 1970")
        origin_ns = sent_ns if origin_ns is None else origin_ns
        times_ns = read_numbers(request, "response_timestamps")
        if times_ns is None or not len(times_ns):
            continue
        came_s = (times_ns - origin_ns) / 1e9
        start.append((sent_ns - origin_ns) / 1e9)
        first.append(float(came_s[0]))
        last.append(float(came_s[-1]))
        gaps += np.maximum(np.diff(came_s), 0.0).tolist()
    sent_s, first_s, last_s = (np.array(values, np.float64) for values in (start, first, last))
    shown = displayed(experiment.child("experiment"), "mode", "value")
    return MeasuredRun(
        name=name,
        tool="GenAI-Perf, requests",
        conditions={str(shown["mode"]): shown["value"]} if len(shown) == 2 else {},
        latency_from="send",
        arrival_s=sent_s,
        ttft_s=np.maximum(first_s - sent_s, 0.0),
        e2e_s=np.maximum(last_s - sent_s, 0.0),
        gaps_s=np.array(gaps, np.float64) if gaps else None,
        duration_s=float(last_s.max() - sent_s.min()) if start else None,
        completed=len(start),
        failed=len(experiment.children("requests")) - len(start),
        notes=("the file counts no tokens: gaps are those between responses",),
    )


def _of_requests(documents: list[Fields], name: str, where: str) -> MeasuredRun:
    """Build the run from its requests. Warm-up requests are left out; cancelled and failed ones
    count as failed."""
    columns: dict[str, list[float]] = {key: [] for key in ("start", "end", *_METRICS, *_LENGTHS)}
    gaps: list[float] = []
    failed, origin_ns = 0, None
    for document in documents:
        metadata = document.part("metadata")
        if printable_text(metadata, "benchmark_phase") in ("warmup", "warm-up"):
            continue
        if "error" in document or metadata.values.get("was_cancelled") is True:
            failed += 1
            continue
        metrics = document.part("metrics")
        times_ns = [_ns(metadata, f"request_{time}_ns") for time in ("start", "end")]
        origin_ns = times_ns[0] if origin_ns is None else origin_ns
        for key, time_ns in zip(("start", "end"), times_ns, strict=True):
            columns[key].append((time_ns - origin_ns) / 1e9)
        for key, field in _METRICS.items():
            if key == "itl":
                gaps += _gaps_s(metrics.child(field))
            else:
                columns[key].append(_value(metrics.child(field), _SECONDS))
        for key, field in _LENGTHS.items():
            columns[key].append(_value(metrics.child(field), _TOKENS))
    arrays = {key: np.array(values, np.float64) for key, values in columns.items()}
    completed = len(arrays["start"])
    if not completed and not failed:
        raise TraceError(f"{where}: warm-up requests only; expected measured ones")
    start, end = arrays["start"], arrays["end"]
    tpot_s = tpot_of(arrays["ttft"], arrays["e2e"], arrays["output_tokens"])
    return MeasuredRun(
        name=name,
        tool="AIPerf, requests",
        latency_from="send",
        arrival_s=start,
        prompt_tokens=arrays["prompt_tokens"],
        output_tokens=arrays["output_tokens"],
        ttft_s=arrays["ttft"],
        tpot_s=np.where(np.isnan(arrays["tpot"]), tpot_s, arrays["tpot"]),
        e2e_s=arrays["e2e"],
        gaps_s=np.array(gaps, np.float64) if gaps else None,
        duration_s=max(float(end.max() - start.min()), 0.0) if completed else None,
        completed=completed,
        failed=failed,
    )


def _of_summary(document: Fields, name: str) -> MeasuredRun:
    summary: dict[tuple[str, str], float] = {}
    for metric, field in _METRICS.items():
        stats = document.child(field)
        for statistic in STATISTICS:
            value = _value(stats, _SECONDS, "avg" if statistic == "mean" else statistic)
            if not np.isnan(value):
                summary[metric, statistic] = value
    for scalars, scale, statistic in ((_RATES, _PER_S, "value"), (_LENGTHS, _TOKENS, "mean")):
        for metric, field in scalars.items():
            value = _value(document.child(field), scale, "avg")
            if not np.isnan(value):
                summary[metric, statistic] = value
    requests, errors = (
        _scalar(document, field) for field in ("request_count", "error_request_count")
    )
    duration_s = _value(document.child("benchmark_duration"), _SECONDS, "avg")
    return MeasuredRun(
        name=name,
        tool="GenAI-Perf, summary" if requests is None else "AIPerf, summary",
        conditions=_conditions(document),
        latency_from="send",
        percentiles=LINEAR,
        summary=summary,
        duration_s=None if np.isnan(duration_s) else duration_s,
        completed=None if requests is None else int(requests),  # GenAI-Perf leaves it out
        failed=_failed(document) if errors is None else int(errors),
    )


def _failed(document: Fields) -> int:
    """Count failed requests by kind of error, for when the metric that counts them is null."""
    return sum(read_count(kind, "count") or 0 for kind in document.children("error_summary"))


def _value(metric: Fields, scales: dict[str, float], name: str = "value") -> float:
    """Return a value in seconds, per second or tokens, converted from its unit; NaN if it is
    missing."""
    value = read_number(metric, name)
    return float("nan") if value is None else value * _scale(metric, scales)


def _ns(metadata: Fields, name: str) -> int:
    """Read whole nanoseconds as an integer: as a float, times since 1970 lose a quarter of a
    microsecond."""
    return metadata.need(_EPOCH_NS, name, what="a time in nanoseconds since 1970")


def _gaps_s(metric: Fields) -> list[float]:
    values = read_numbers(metric, "value")
    return [] if values is None else (values * _scale(metric, _SECONDS)).tolist()


def _scale(metric: Fields, scales: dict[str, float]) -> float:
    unit = metric.values.get("unit")
    if not isinstance(unit, str) or unit.lower() not in scales:
        metric.fail("unit", f"one of {', '.join(scales)}")
    return scales[unit.lower()]


def _scalar(document: Fields, field: str) -> float | None:
    return read_number(document.child(field), "avg")


def _conditions(document: Fields) -> dict[str, str | float]:
    """Return model, rate and concurrency from ``input_config``, if they are in their known
    places."""
    config = document.first("input_config")
    load = Fields(_object(config, "loadgen"), document.where)
    models = _object(config, "endpoint").get("model_names")
    if models is None and isinstance(config, dict):  # GenAI-Perf's place
        models = config.get("model_names", config.get("model"))
    found = {
        "rate" if name == "request_rate" else name: value
        for name, value in displayed(load, "request_rate", "concurrency").items()
    }
    if isinstance(models, list) and models and isinstance(models[0], str):
        found["model"] = printable(models[0])
    return found


def _object(holder: object, name: str) -> dict[str, Any]:
    """Return an object within another one; empty if either is something else."""
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}
