"""Result files of load tools as they write them, made from one set of requests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.books.metrics import statistics

Float = NDArray[np.float64]
PERCENTILES = (50, 90, 95, 99)
MODEL = "meta-llama/Llama-3.1-8B"
EPOCH_S = 1_790_000_000.0
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Sample:
    """Requests as a tool saw them; seconds and tokens."""

    arrival_s: Float
    prompt_tokens: list[int]
    ttft_s: Float
    gaps_s: list[list[float]]

    def __len__(self) -> int:
        return len(self.ttft_s)

    @property
    def output_tokens(self) -> list[int]:
        return [len(gaps) + 1 for gaps in self.gaps_s]

    @property
    def e2e_s(self) -> Float:
        e2e_s: Float = self.ttft_s + np.array([sum(gaps) for gaps in self.gaps_s])
        return e2e_s

    @property
    def tpot_s(self) -> Float:
        return np.array([np.mean(gaps) if gaps else np.nan for gaps in self.gaps_s])

    @property
    def all_gaps_s(self) -> Float:
        return np.concatenate([np.array(gaps, np.float64) for gaps in self.gaps_s])

    @property
    def duration_s(self) -> float:
        return float((self.arrival_s + self.e2e_s).max() - self.arrival_s.min())

    def latencies_s(self) -> dict[str, Float]:
        tpot_s = self.tpot_s
        return {
            "ttft": self.ttft_s,
            "tpot": tpot_s[~np.isnan(tpot_s)],
            "itl": self.all_gaps_s,
            "e2e": self.e2e_s,
        }


SMALL = Sample(
    arrival_s=np.array([0.0, 1.0, 2.0, 3.0]),
    prompt_tokens=[100, 200, 300, 400],
    ttft_s=np.array([0.1, 0.2, 0.3, 0.4]),
    gaps_s=[[0.01, 0.03], [0.02, 0.02, 0.02], [], [0.05]],
)
"""TTFT mean 0.25; TPOT 0.02, 0.02, none, 0.05; E2E 0.14, 0.26, 0.3, 0.45; 9 tokens in 3.45 s."""


def vllm_bench(sample: Sample, *, detailed: bool, **changes: Any) -> dict[str, Any]:
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
    bench = {
        "date": "20260801-101500",
        "backend": "vllm",
        "label": None,
        "model_id": MODEL,
        "tokenizer_id": MODEL,
        "num_prompts": len(sample),
        "request_rate": 8.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        **_bench_totals(sample),
        "failed": 0,
        "request_goodput": None,
        **_bench_statistics(sample, names),
    }
    if detailed:
        bench |= _bench_lists(sample) | {
            "start_times": (1234.5 + sample.arrival_s).tolist(),
            "latencies": sample.e2e_s.tolist(),
        }
    return bench | changes


def sglang_bench(sample: Sample, *, details: bool, **changes: Any) -> dict[str, Any]:
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}
    bench = {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": 8.0,
        "max_concurrency": None,
        "server_info": {"model_path": MODEL},
        **_bench_totals(sample),
        "total_output_tokens_retokenized": sum(sample.output_tokens),
        **_bench_statistics(sample, names),
    }
    return bench | (_bench_lists(sample) if details else {}) | changes


def guidellm(sample: Sample, *, is_old: bool = False, requests: bool = True) -> dict[str, Any]:
    """Version 2, or a file of before with ``args`` and flat requests."""
    tokens = np.array(sample.output_tokens)
    tpot_s = np.nan_to_num(sample.tpot_s)
    metrics = {
        "request_latency": _guide(sample.e2e_s, 1.0),
        "time_to_first_token_ms": _guide(sample.ttft_s, 1e3),
        "time_per_output_token_ms": _guide(sample.e2e_s / tokens, 1e3, tokens),
        "inter_token_latency_ms": _guide(tpot_s, 1e3, tokens - 1),
        "prompt_token_count": _guide(np.array(sample.prompt_tokens, np.float64), 1.0),
        "output_token_count": _guide(tokens.astype(np.float64), 1.0),
        "requests_per_second": {"successful": {"mean": len(sample) / sample.duration_s}},
        "output_tokens_per_second": {"successful": {"mean": tokens.sum() / sample.duration_s}},
    }
    strategy = {"type_": "poisson", "rate": 8.0}
    row = _old_guide_row if is_old else _new_guide_row
    rows = [row(sample, i) for i in range(len(sample))] if requests else []
    start_s = EPOCH_S + float(sample.arrival_s.min())
    benchmark = {
        ("args" if is_old else "config"): {"strategy": strategy, "backend": {"model": MODEL}},
        "metrics": metrics,
        "requests": {"successful": rows, "incomplete": [], "errored": []},
        "start_time": start_s,
        "end_time": start_s + sample.duration_s,
    }
    if is_old:
        return {"args": {"model": MODEL}, "benchmarks": [benchmark]}
    metadata = {"version": 2, "guidellm_version": "0.7.0"}
    return {"metadata": metadata, "config": {}, "benchmarks": [benchmark]}


def aiperf_records(sample: Sample) -> list[dict[str, Any]]:
    records = []
    for i in range(len(sample)):
        start_ns = round((EPOCH_S + float(sample.arrival_s[i])) * 1e9)
        metrics = {
            "time_to_first_token": _unit(sample.ttft_s[i] * 1e3, "ms"),
            "request_latency": _unit(sample.e2e_s[i] * 1e3, "ms"),
            "input_sequence_length": _unit(sample.prompt_tokens[i], "tokens"),
            "output_sequence_length": _unit(sample.output_tokens[i], "tokens"),
        }
        if sample.gaps_s[i]:
            metrics["inter_token_latency"] = _unit(sample.tpot_s[i] * 1e3, "ms")
            metrics["inter_chunk_latency"] = _unit([g * 1e3 for g in sample.gaps_s[i]], "ms")
        metadata = {
            "x_request_id": f"r{i}",
            "request_start_ns": start_ns,
            "request_end_ns": start_ns + round(float(sample.e2e_s[i]) * 1e9),
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        }
        records.append({"metadata": metadata, "metrics": metrics, "error": None})
    return records


def aiperf_summary(sample: Sample) -> dict[str, Any]:
    def stats(values: Any, unit: str, scale: float) -> dict[str, Any]:
        found = {f"p{p}": float(np.percentile(values, p)) * scale for p in PERCENTILES}
        return {"unit": unit, "avg": float(np.mean(values)) * scale, **found}

    latencies = sample.latencies_s()
    return {
        "time_to_first_token": stats(latencies["ttft"], "ms", 1e3),
        "inter_token_latency": stats(latencies["tpot"], "us", 1e6),
        "inter_chunk_latency": stats(latencies["itl"], "ms", 1e3),
        "request_latency": stats(latencies["e2e"], "sec", 1.0),
        "input_sequence_length": stats(sample.prompt_tokens, "tokens", 1.0),
        "output_sequence_length": stats(sample.output_tokens, "tokens", 1.0),
        "request_throughput": {"unit": "requests/sec", "avg": len(sample) / sample.duration_s},
        "output_token_throughput": {
            "unit": "tokens/sec",
            "avg": sum(sample.output_tokens) / sample.duration_s,
        },
        "request_count": {"unit": "requests", "avg": len(sample)},
        "benchmark_duration": {"unit": "sec", "avg": sample.duration_s},
        "input_config": {
            "endpoint": {"model_names": [MODEL]},
            "loadgen": {"request_rate": 8.0, "concurrency": None},
        },
    }


def prometheus(sample: Sample) -> str:
    labels = f'engine="0",model_name="{MODEL}"'
    lines = ["# HELP python_info Python platform information.", 'python_info{version="3.12"} 1.0']
    names = {
        "time_to_first_token_seconds": sample.ttft_s,
        "inter_token_latency_seconds": sample.all_gaps_s,
        "request_time_per_output_token_seconds": sample.latencies_s()["tpot"],
        "e2e_request_latency_seconds": sample.e2e_s,
        "request_prompt_tokens": np.array(sample.prompt_tokens, np.float64),
        "request_generation_tokens": np.array(sample.output_tokens, np.float64),
    }
    for name, values in names.items():
        lines.append(f"# TYPE vllm:{name} histogram")
        for bound in (*BOUNDS, np.inf):
            le = "+Inf" if bound == np.inf else f"{bound}"
            lines.append(f'vllm:{name}_bucket{{{labels},le="{le}"}} {(values <= bound).sum()}.0')
        lines.append(f"vllm:{name}_count{{{labels}}} {len(values)}.0")
        lines.append(f"vllm:{name}_sum{{{labels}}} {float(values.sum())!r}")
    lines.append(f'vllm:request_success_total{{{labels},finished_reason="length"}} {len(sample)}')
    lines.append(f'vllm:request_success_total{{{labels},finished_reason="abort"}} 0.0')
    lines.append(f"vllm:num_preemptions_total{{{labels}}} 3.0")
    lines.append(f"vllm:kv_cache_usage_perc{{{labels}}} NaN")
    return "\n".join(lines) + "\n"


def request_csv(sample: Sample) -> str:
    rows = ["arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_s"]
    for i in range(len(sample)):
        numbers = (sample.arrival_s[i], sample.prompt_tokens[i], sample.output_tokens[i])
        latencies = (sample.ttft_s[i] * 1e3, sample.e2e_s[i])
        rows.append(",".join(repr(float(value)) for value in (*numbers, *latencies)))
    return "\n".join(rows) + "\n"


def times_csv(sample: Sample) -> str:
    """Times instead of latencies."""
    rows = ["send_s,output_tokens,first_s,finish_s"]
    for i, start_s in enumerate(sample.arrival_s):
        ends = (start_s + sample.ttft_s[i], start_s + sample.e2e_s[i])
        rows.append(",".join(repr(float(v)) for v in (start_s, sample.output_tokens[i], *ends)))
    return "\n".join(rows) + "\n"


def files(sample: Sample) -> dict[str, str]:
    """A file of every kind, by a name for it."""
    return {
        "vllm": json.dumps(vllm_bench(sample, detailed=False)),
        "vllm detailed": json.dumps(vllm_bench(sample, detailed=True), indent=1),
        "sglang": json.dumps(sglang_bench(sample, details=False)),
        "sglang details": json.dumps(sglang_bench(sample, details=True)),
        "guidellm": json.dumps(guidellm(sample)),
        "guidellm summary": json.dumps(guidellm(sample, requests=False)),
        "guidellm old": json.dumps(guidellm(sample, is_old=True)),
        "aiperf records": "\n".join(json.dumps(record) for record in aiperf_records(sample)),
        "aiperf summary": json.dumps(aiperf_summary(sample)),
        "prometheus": prometheus(sample),
        "csv": request_csv(sample),
        "csv of times": times_csv(sample),
    }


def _bench_totals(sample: Sample) -> dict[str, Any]:
    return {
        "duration": sample.duration_s,
        "completed": len(sample),
        "total_input_tokens": sum(sample.prompt_tokens),
        "total_output_tokens": sum(sample.output_tokens),
        "request_throughput": len(sample) / sample.duration_s,
        "output_throughput": sum(sample.output_tokens) / sample.duration_s,
    }


def _bench_statistics(sample: Sample, names: dict[str, str]) -> dict[str, float]:
    found = {}
    for metric, values in sample.latencies_s().items():
        found[f"mean_{names[metric]}_ms"] = float(np.mean(values)) * 1e3
        found[f"median_{names[metric]}_ms"] = float(np.median(values)) * 1e3
        for p in PERCENTILES[1:]:
            found[f"p{p}_{names[metric]}_ms"] = float(np.percentile(values, p)) * 1e3
    return found


def _bench_lists(sample: Sample) -> dict[str, Any]:
    return {
        "input_lens": sample.prompt_tokens,
        "output_lens": sample.output_tokens,
        "ttfts": sample.ttft_s.tolist(),
        "itls": sample.gaps_s,
        "generated_texts": ["text"] * len(sample),
        "errors": [""] * len(sample),
    }


def _guide(values: Float, scale: float, weights: Any = None) -> dict[str, Any]:
    weights = np.ones(len(values), np.int64) if weights is None else weights
    kept = weights > 0
    found = statistics(values[kept], weights[kept])
    scaled = {name: None if v is None else v * scale for name, v in found.items()}
    percentiles = {f"p{p}": scaled[f"p{p}"] for p in PERCENTILES}
    count = int(weights.sum())
    return {"successful": {"mean": scaled["mean"], "count": count, "percentiles": percentiles}}


def _new_guide_row(sample: Sample, i: int) -> dict[str, Any]:
    start_s = EPOCH_S + float(sample.arrival_s[i])
    timings = {
        "request_start": start_s,
        "first_token_iteration": start_s + float(sample.ttft_s[i]),
        "last_token_iteration": start_s + float(sample.e2e_s[i]),
        "request_end": start_s + float(sample.e2e_s[i]),
    }
    return {
        "request_id": f"r{i}",
        "info": {"status": "completed", "timings": timings},
        "input_metrics": {"text_tokens": sample.prompt_tokens[i]},
        "output_metrics": {"text_tokens": sample.output_tokens[i]},
    }


def _old_guide_row(sample: Sample, i: int) -> dict[str, Any]:
    start_s = EPOCH_S + float(sample.arrival_s[i])
    return {
        "request_id": f"r{i}",
        "prompt_tokens": sample.prompt_tokens[i],
        "output_tokens": sample.output_tokens[i],
        "start_time": start_s,
        "first_token_time": start_s + float(sample.ttft_s[i]),
        "last_token_time": start_s + float(sample.e2e_s[i]),
        "end_time": start_s + float(sample.e2e_s[i]),
    }


def _unit(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}
