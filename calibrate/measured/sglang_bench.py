"""Results of SGLang's ``bench_serving``: JSON lines, one a run.

Statistics are in milliseconds; the lists of ``--output-details`` are in seconds. Latencies count
from when the client sends; TPOT is (e2e - ttft)/(tokens - 1). E2E is not in the lists: it is the
first token and all gaps.
"""

from __future__ import annotations

from pathlib import Path

from calibrate.measured.bench_fields import bench_run
from calibrate.measured.run import MeasuredRun
from calibrate.measured.values import Fields, parse_documents, printable

_SUFFIXES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}
_SHOWN = {
    "request_rate": "rate",
    "max_concurrency": "concurrency",
    "backend": "backend",
    "dataset_name": "dataset",
}


def looks_like_sglang_bench(first: Fields) -> bool:
    """Whether an object has the fields of this tool."""
    return "mean_e2e_latency_ms" in first or "total_output_tokens_retokenized" in first


def read_sglang_bench(text: str, path: Path) -> list[MeasuredRun]:
    """The runs of a result file. Raises TraceError."""
    runs = []
    for bench in parse_documents(text, path):
        run = bench_run(
            bench,
            tool="sglang bench_serving",
            name=bench.text("tag"),
            suffixes=_SUFFIXES,
            shown=_SHOWN,
        )
        run.conditions.update(_server(bench))
        runs.append(run)
    return runs


def _server(bench: Fields) -> dict[str, str | float]:
    """The model, from what the server said of itself, where it did."""
    info = bench.values.get("server_info")
    name = info.get("model_path") if isinstance(info, dict) else None
    return {"model": printable(name)} if isinstance(name, str) else {}
