"""Results of ``vllm bench serve``: one JSON object, or one a line where results are appended.

Statistics are in milliseconds; the lists of ``--save-detailed`` are in seconds. TTFT, ITL and E2E
count from when the client sends; TPOT is (e2e - ttft)/(tokens - 1).
"""

from __future__ import annotations

from pathlib import Path

from calibrate.measured.bench_fields import bench_run
from calibrate.measured.run import MeasuredRun
from calibrate.measured.values import Fields, parse_documents

_SUFFIXES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
_SHOWN = {
    "model_id": "model",
    "request_rate": "rate",
    "burstiness": "burstiness",
    "max_concurrency": "concurrency",
    "endpoint_type": "backend",
    "backend": "backend",
    "date": "date",
}


def looks_like_vllm_bench(first: Fields) -> bool:
    """Whether an object has the fields of this tool."""
    latencies = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "ttfts")
    is_serving = "model_id" in first and any(name in first for name in latencies)
    return is_serving and "mean_e2e_latency_ms" not in first


def read_vllm_bench(text: str, path: Path) -> list[MeasuredRun]:
    """The runs of a result file. Raises TraceError."""
    return [
        bench_run(
            bench,
            tool="vllm bench serve",
            name=bench.text("label"),
            suffixes=_SUFFIXES,
            shown=_SHOWN,
        )
        for bench in parse_documents(text, path)
    ]
