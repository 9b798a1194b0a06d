"""Read the results of a load test in any known format, recognized by the content of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from calibrate.results.aiperf import (
    looks_like_aiperf,
    looks_like_aiperf_table,
    read_aiperf,
    read_aiperf_table,
)
from calibrate.results.bench_serving import (
    looks_like_sglang_bench,
    looks_like_vllm_bench,
    read_sglang_bench,
    read_vllm_bench,
)
from calibrate.results.guidellm import looks_like_guidellm, read_guidellm
from calibrate.results.inference_perf import (
    looks_like_inference_perf,
    looks_like_its_requests,
    read_inference_perf,
)
from calibrate.results.locust import looks_like_locust, read_locust
from calibrate.results.printed import (
    looks_like_engine_log,
    looks_like_table,
    read_engine_log,
    read_table,
)
from calibrate.results.prometheus import looks_like_prometheus, read_prometheus
from calibrate.results.request_csv import looks_like_request_csv, read_request_csv
from calibrate.results.run import MeasuredRun, with_unique_names
from calibrate.results.values import parse_documents, read_text
from costmodels.fields import Fields
from sim.errors import TraceError, shown


class Format(NamedTuple):
    """A known format: how its files are recognized and read."""

    description: str
    read: Callable[[str, Path], list[MeasuredRun]]
    matches: Callable[[Fields], bool] | None = None
    """Returns whether a file whose first JSON object is this one is of the format."""
    matches_text: Callable[[str], bool] | None = None
    """Returns whether a file with this text, which is no JSON object, is of the format."""


FORMATS = {
    "vllm-bench": Format(
        "JSON of vllm bench serve, detailed or not, one object or one a line",
        read_vllm_bench,
        looks_like_vllm_bench,
    ),
    "guidellm": Format(
        "JSON of GuideLLM, with a list of benchmarks", read_guidellm, looks_like_guidellm
    ),
    "aiperf": Format(
        "profile_export.jsonl or profile_export_aiperf.json of AIPerf; GenAI-Perf's summary",
        read_aiperf,
        looks_like_aiperf,
    ),
    "aiperf-table": Format(
        "the summary of AIPerf or GenAI-Perf as CSV, or as printed",
        read_aiperf_table,
        matches_text=looks_like_aiperf_table,
    ),
    "inference-perf": Format(
        "summary, stage or per-request JSON of inference-perf",
        read_inference_perf,
        looks_like_inference_perf,
        looks_like_its_requests,
    ),
    "locust": Format(
        "Locust's *_stats.csv",
        read_locust,
        matches_text=lambda text: looks_like_locust(_first_line(text)),
    ),
    "sglang-bench": Format(
        "JSON lines of SGLang's bench_serving, with details or not",
        read_sglang_bench,
        looks_like_sglang_bench,
    ),
    "prometheus": Format(
        "metrics of a vLLM or SGLang server in Prometheus text, names like vllm:...",
        read_prometheus,
        matches_text=looks_like_prometheus,
    ),
    "printed": Format(
        "the table that vllm bench serve or SGLang's bench_serving prints",
        read_table,
        matches_text=looks_like_table,
    ),
    "engine-log": Format(
        "a server's log with the throughput that vLLM or SGLang writes into it",
        read_engine_log,
        matches_text=lambda text: looks_like_engine_log(text) and not looks_like_table(text),
    ),
    "csv": Format(
        "a request a row; columns such as arrival_s, output_tokens, ttft_s, e2e_ms",
        read_request_csv,
        matches_text=lambda text: looks_like_request_csv(_first_line(text)),
    ),
}


def read_measured(path: str | Path, *, format: str | None = None) -> list[MeasuredRun]:  # noqa: A002
    """Read the runs of a file, gzipped or not, and give each a unique name.

    ``format`` is a key of FORMATS, or None to detect it. Raises `TraceError` if the file cannot be
    read in its format.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise TraceError(f"unknown format {shown(format)}; known formats:\n{_known()}")
    text = _one_a_line(read_text(path))
    return with_unique_names(FORMATS[format or _detected(text, path)].read(text, path))


def _detected(text: str, path: Path) -> str:
    """Return the key of FORMATS that fits the content of a file. Raises `TraceError` unless
    exactly one does."""
    start = text.lstrip()
    if start.startswith("{"):
        first = parse_documents(text, path)[0]
        found = [name for name, known in FORMATS.items() if known.matches and known.matches(first)]
    else:
        found = [
            n for n, known in FORMATS.items() if known.matches_text and known.matches_text(text)
        ]
    if len(found) == 1:
        return found[0]
    why = f"fits several formats ({', '.join(found)})" if found else "format not recognised"
    raise TraceError(f"{path}: {why}; known formats:\n{_known()}")


def _one_a_line(text: str) -> str:
    """Return the text with the objects of a JSON list one a line, if a known tool made the
    first."""
    if not text.lstrip().startswith("["):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    rows = [row for row in found if isinstance(row, dict)]
    first = Fields(rows[0] if rows else {}, "list", raises=TraceError)
    if not any(known.matches and known.matches(first) for known in FORMATS.values()):
        return text
    return "\n".join(map(json.dumps, rows))


def _first_line(text: str) -> str:
    return text.lstrip().split("\n", 1)[0]


def _known() -> str:
    return "\n".join(f"  {name}: {known.description}" for name, known in FORMATS.items())
