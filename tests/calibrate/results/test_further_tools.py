"""Results that are printed or logged, and those of GenAI-Perf, inference-perf and Locust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.results.detect import FORMATS, read_measured
from calibrate.results.run import MeasuredRun
from sim.errors import TraceError

VLLM_TABLE = """\
INFO 08-25 11:02:14 [__init__.py:216] Automatically detected platform cuda.
============ Serving Benchmark Result ============
Successful requests:                     200
Failed requests:                         3
Maximum request concurrency:             25
Request rate configured (RPS):           1.50
Benchmark duration (s):                  50.10
Total input tokens:                      200000
Total generated tokens:                  25600
Request throughput (req/s):              3.99
Output token throughput (tok/s):         511.00
Peak output token throughput (tok/s):    700.00
---------------Time to First Token----------------
Mean TTFT (ms):                          1,150.00
Median TTFT (ms):                        120.00
P99 TTFT (ms):                           510.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          10.00
P90 TPOT (ms):                           12.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          1500.00
==================================================
"""
SGLANG_TABLE = """\
============ Serving Benchmark Result ============
Backend:                                 sglang-oai
Traffic request rate:                    inf
Max request concurrency:                 not set
Successful requests:                     1920
Benchmark duration (s):                  213.71
Total input tokens:                      1843657
Total generated tokens:                  157031
Output token throughput (tok/s):         734.77
Concurrency:                             1418.05
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   157842.85
Median E2E Latency (ms):                 157290.17
---------------Time to First Token----------------
Mean TTFT (ms):                          112043.40
---------------Inter-Token Latency----------------
Mean ITL (ms):                           43.12
P95 ITL (ms):                            60.00
==================================================
"""
VLLM_LOG = """\
(APIServer pid=7) INFO 11-29 09:00:00 [loggers.py:257] Engine 000: Avg prompt throughput: 900.0 \
tokens/s, Avg generation throughput: 100.0 tokens/s, Running: 5 reqs, Waiting: 1 reqs, \
GPU KV cache usage: 3.0%, Prefix cache hit rate: 50.0%
INFO:     10.0.0.1:1234 - "POST /v1/completions HTTP/1.1" 200 OK
(APIServer pid=7) INFO 11-29 09:00:10 [loggers.py:257] Engine 000: Avg prompt throughput: 0.0 \
tokens/s, Avg generation throughput: 300.0 tokens/s, Running: 7 reqs, Waiting: 0 reqs, \
Deferred: 2 reqs, GPU KV cache usage: 5.0%, Prefix cache hit rate: 50.0%
(APIServer pid=7) INFO 11-29 09:00:10 [loggers.py:257] Engine 001: Avg prompt throughput: 0.0 \
tokens/s, Avg generation throughput: 50.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, \
GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%
(APIServer pid=7) INFO 11-29 09:00:20 [loggers.py:257] Engine 000: Avg prompt throughput: 0.0 \
tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, \
GPU KV cache usage: 0.0%, Prefix cache hit rate: 50.0%
"""
SGLANG_LOG = """\
[2025-07-18 15:32:54 TP0] Prefill batch. #new-seq: 1, #new-token: 2192, #cached-token: 35
[2025-07-18 15:32:54 TP0] Decode batch. #running-req: 1, #token: 2306, token usage: 0.02, cuda \
graph: True, gen throughput (token/s): 75.25, #queue-req: 0, timestamp: 2025-07-18T15:32:54.69
"""
GENAI_PERF_CSV = """\
Metric,avg,min,max,p99,p95,p90,p75,p50,p25
Time To First Token (ms),"1,152.00",50.48,713.28,576.29,365.50,292.34,292.34,120.98,120.98
Inter Token Latency (ms),10.07,8.01,11.99,11.98,11.82,11.58,11.58,10.11,10.11
Request Latency (ms),1441.49,1079.81,2228.63,1978.89,1703.05,1636.15,1636.15,1440.99,1440.99
Output Sequence Length (tokens),128.00,128.00,128.00,128.00,128.00,128.00,128.00,128.00,128.00

Metric,Value
Output Token Throughput (tokens/sec),511.00
Request Throughput (requests/sec),3.99
"""
GENAI_PERF_TABLE = """\
                        NVIDIA GenAI-Perf | LLM Metrics
\u250f\u2501\u2501\u2501\u2501\u2533\u2501\u2501\u2513
\u2503               Statistic \u2503      avg \u2503    min \u2503      p99 \u2503    p50 \u2503
\u2502    Time To First Token \u2502 1,152.00 \u2502  50.48 \u2502   576.29 \u2502 120.98 \u2502
\u2502                   (ms) \u2502          \u2502        \u2502          \u2502        \u2502
\u2502 Request Latency (ms) \u2502 1,441.49 \u2502 1079.8 \u2502 1,978.89 \u2502 1440.9 \u2502
\u2502 Output Token Throughput (per sec) \u2502 511.00 \u2502 N/A \u2502 N/A \u2502 N/A \u2502
"""
START_NS = 1_790_000_000_000_000_000
GENAI_PERF_REQUESTS = {
    "service_kind": "openai",
    "experiments": [
        {
            "experiment": {"mode": "concurrency", "value": 4},
            "requests": [
                {
                    "timestamp": START_NS,
                    "response_timestamps": [START_NS + ms * 1_000_000 for ms in (200, 300, 500)],
                },
                {"timestamp": START_NS + 9, "response_timestamps": []},
            ],
        }
    ],
}
LOCUST = """\
Type,Name,Request Count,Failure Count,Median Response Time,Average Response Time,\
Min Response Time,Max Response Time,Average Content Size,Requests/s,Failures/s,50%,90%,95%,99%,100%
POST,/v1/chat/completions,200,2,1400,1500.5,900,2200,800,3.99,0.04,1400,1700,1900,2100,2200
custom,ttft,198,0,120,150,50,700,0,3.9,0,120,290,360,510,700
,Aggregated,398,2,700,850,50,2200,400,7.9,0.04,700,1600,1800,2000,2200
"""
INFERENCE_PERF = {
    "load_summary": {"count": 31, "requested_rate": 1.0},
    "benchmark_time_seconds": 30.0,
    "successes": {
        "count": 28,
        "latency": {
            "time_to_first_token": {"mean": 0.12, "median": 0.11, "p90": 0.2, "p99": 0.3},
            "time_per_output_token": {"mean": 0.02},
            "inter_token_latency": {"mean": 0.019},
            "request_latency": {"mean": 1.5, "median": 1.4, "p99": 2.2},
        },
        "throughput": {"requests_per_sec": 0.93, "output_tokens_per_sec": 70.1},
        "prompt_len": {"mean": 580.0},
        "output_len": {"mean": 75.0},
    },
    "failures": {"count": 3},
}
ITS_REQUESTS = [
    {"start_time": 10.0, "end_time": 12.0, "error": None}
    | {"info": {"input_tokens": 100, "output_tokens": 3, "output_token_times": [11.0, 11.5, 12.0]}},
    {"start_time": 11.0, "end_time": 11.1, "error": {"error_type": "Timeout"}, "info": {}},
]
SGLANG_METRICS = """\
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{is_streaming="true",le="0.1",model_name="m"} 2.0
sglang:time_to_first_token_seconds_bucket{is_streaming="true",le="+Inf",model_name="m"} 4.0
sglang:time_to_first_token_seconds_count{is_streaming="true",model_name="m"} 4.0
sglang:time_to_first_token_seconds_sum{is_streaming="true",model_name="m"} 1.0
sglang:num_requests_total{is_streaming="true",model_name="m"} 4.0
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 4000.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 400.0
sglang:token_usage{model_name="m"} 0.28
"""
FILES: dict[str, tuple[str, str, int | None, dict[tuple[str, str], float]]] = {
    "vLLM's table": (
        VLLM_TABLE,
        "vllm bench, printed",
        200,
        {
            ("ttft", "mean"): 1.15,
            ("ttft", "p50"): 0.12,
            ("tpot", "p90"): 0.012,
            ("e2e", "mean"): 1.5,
            ("request_throughput", "value"): 3.99,
        },
    ),
    "a part of a table": (
        "Mean TTFT (ms):     150.00\nP99 TTFT (ms):     510.00\n",
        "vllm bench, printed",
        None,
        {("ttft", "mean"): 0.15, ("ttft", "p99"): 0.51},
    ),
    "vllm bench throughput": (
        "Throughput: 9.24 requests/s, 2111.49 total tokens/s, 1200.32 output tokens/s\n",
        "vllm bench, printed",
        None,
        {("request_throughput", "value"): 9.24, ("output_throughput", "value"): 1200.32},
    ),
    "vllm bench latency": (
        "Avg latency: 1.5 seconds\n50% percentile latency: 1.4 seconds\n",
        "vllm bench, printed",
        None,
        {("e2e", "mean"): 1.5, ("e2e", "p50"): 1.4},
    ),
    "SGLang's table": (
        SGLANG_TABLE,
        "SGLang bench_serving, printed",
        1920,
        {("e2e", "p50"): 157.29017, ("itl", "p95"): 0.06, ("output_throughput", "value"): 734.77},
    ),
    "vLLM's log": (VLLM_LOG, "an engine's log", None, {("output_throughput", "value"): 250.0}),
    "SGLang's log": (SGLANG_LOG, "an engine's log", None, {("output_throughput", "value"): 75.25}),
    "GenAI-Perf's CSV": (
        GENAI_PERF_CSV,
        "GenAI-Perf, summary",
        None,
        {("ttft", "mean"): 1.152, ("tpot", "p99"): 0.01198, ("request_throughput", "value"): 3.99},
    ),
    "GenAI-Perf's table": (
        GENAI_PERF_TABLE,
        "GenAI-Perf, summary",
        None,
        {("ttft", "mean"): 1.152, ("e2e", "p99"): 1.97889, ("output_throughput", "value"): 511.0},
    ),
    "GenAI-Perf's requests": (
        json.dumps(GENAI_PERF_REQUESTS),
        "GenAI-Perf, requests",
        1,
        {("ttft", "mean"): 0.2, ("e2e", "mean"): 0.5, ("itl", "mean"): 0.15},
    ),
    "Locust": (
        LOCUST,
        "Locust",
        198,
        {("e2e", "mean"): 1.5005, ("ttft", "p95"): 0.36, ("request_throughput", "value"): 3.99},
    ),
    "inference-perf": (
        json.dumps(INFERENCE_PERF),
        "inference-perf, summary",
        28,
        {("ttft", "p50"): 0.11, ("tpot", "mean"): 0.02, ("output_throughput", "value"): 70.1},
    ),
    "inference-perf's requests": (
        json.dumps(ITS_REQUESTS),
        "inference-perf, requests",
        1,
        {("ttft", "mean"): 1.0, ("tpot", "mean"): 0.5, ("itl", "p99"): 0.5, ("e2e", "mean"): 2.0},
    ),
    "SGLang's metrics": (SGLANG_METRICS, "SGLang metrics", 4, {("ttft", "mean"): 0.25}),
    "anybody's CSV": (
        "timestamp,prompt_tokens,completion_tokens,ttft (ms),Latency,status\n"
        "2026-11-29T09:00:00Z,900,11,200,1.2,200\n2026-11-29T09:00:02Z,900,11,400,1.4,200\n",
        "CSV of requests",
        2,
        {("ttft", "mean"): 0.3, ("tpot", "mean"): 0.1, ("e2e", "mean"): 1.3},
    ),
}


def read(folder: Path, text: str, **options: Any) -> list[MeasuredRun]:
    path = folder / "results.txt"
    path.write_text(text)
    return read_measured(path, **options)


@pytest.mark.parametrize("name", FILES)
def test_values_of_each(tmp_path: Path, name: str) -> None:
    text, tool, completed, values = FILES[name]
    (run,) = read(tmp_path, text)
    assert (run.tool, run.completed) == (tool, completed)
    for (metric, statistic), value in values.items():
        assert run.measured(metric)[statistic].value == pytest.approx(value), (metric, statistic)


def test_lengths_conditions_and_failures(tmp_path: Path) -> None:
    (table,) = read(tmp_path, VLLM_TABLE)
    assert table.conditions == {"rate": 1.5, "concurrency": 25.0}
    assert (table.failed, table.mean_tokens("prompt_tokens")) == (3, 1000.0)
    (log,) = read(tmp_path, VLLM_LOG)
    assert (log.conditions["running"], log.conditions["waiting"]) == (7.0, 0.5)
    (metrics,) = read(tmp_path, SGLANG_METRICS)
    assert metrics.mean_tokens("prompt_tokens") == 1000.0
    (summary,) = read(tmp_path, json.dumps(INFERENCE_PERF))
    assert (summary.failed, summary.duration_s) == (3, 30.0)


def test_several_tables_are_several_runs(tmp_path: Path) -> None:
    runs = read(tmp_path, VLLM_TABLE + SGLANG_TABLE)
    assert [run.name for run in runs] == ["results#1", "results#2"]
    assert [run.completed for run in runs] == [200, 1920]


def test_a_list_of_runs(tmp_path: Path) -> None:
    one = {"model_id": "m", "completed": 3, "mean_ttft_ms": 120.0, "duration": 1.0}
    runs = read(tmp_path, json.dumps([one | {"request_rate": 1}, one | {"request_rate": 2}]))
    assert [run.conditions["rate"] for run in runs] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("==== Serving Benchmark Result ====\nSuccessful requests: 3\n", "no latencies; expected"),
        (VLLM_LOG.splitlines()[-1], "no line of the log has a generation throughput above 0"),
        ("[]", "format not recognised"),
        ('[{"start_time": 1, "end_time": "x"}]', "end_time must be a number"),
        ("Type,Name,Request Count,Average Response Time,Requests/s\n", "no row has requests"),
        ("when,ttft_ms,output_tokens\nx,1,b\n", "output_tokens is 'b'; expected a whole number"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


@given(st.sampled_from(sorted(FILES)), st.integers(0, 600), st.text(max_size=8))
def test_damage_gives_errors_alone(
    tmp_path_factory: pytest.TempPathFactory, name: str, at: int, what: str
) -> None:
    text = FILES[name][0]
    damaged = text[:at] + what + text[at + 3 :]
    folder = tmp_path_factory.mktemp("damaged")
    for format_ in (None, *FORMATS):
        try:
            for run in read(folder, damaged, format=format_):
                for metric in ("ttft", "tpot", "itl", "e2e", "request_throughput"):
                    run.measured(metric)
        except TraceError:
            pass
