"""Result files of load tools: the values read from each, computed by hand."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrate.results.detect import FORMATS, read_measured
from calibrate.results.run import (
    IN_BUCKETS,
    ITL_MEANS,
    LATENCIES,
    RATES,
    TPOT_EXCLUDES,
    TPOT_INCLUDES,
    MeasuredRun,
)
from sim.errors import TraceError
from tests.calibrate.results.measured_samples import (
    SMALL,
    aiperf_records,
    aiperf_summary,
    files,
    guidellm,
    prometheus,
    sglang_bench,
    vllm_bench,
)

FILES = files(SMALL)


def read(folder: Path, content: object, **options: Any) -> list[MeasuredRun]:
    path = folder / "results"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_measured(path, **options)


def fault(folder: Path, content: object, **options: Any) -> str:
    with pytest.raises(TraceError) as caught:
        read(folder, content, **options)
    return str(caught.value)


def mean(run: MeasuredRun, metric: str) -> float:
    return run.measured(metric)["mean"].value


@pytest.mark.parametrize("name", FILES)
def test_means_of_every_format(tmp_path: Path, name: str) -> None:
    (run,) = read(tmp_path, FILES[name])
    assert (run.completed, run.failed) == (4, 0)
    assert mean(run, "ttft") == pytest.approx(0.25)
    assert mean(run, "e2e") == pytest.approx((0.14 + 0.26 + 0.3 + 0.45) / 4)
    if run.tpot_convention == TPOT_EXCLUDES:
        assert mean(run, "tpot") == pytest.approx(0.03)
    else:
        assert mean(run, "tpot") == pytest.approx(1.15 / 10)  # all seconds over all ten tokens
    if "csv" not in name:
        assert mean(run, "itl") == pytest.approx(0.15 / 6)
    if name != "prometheus":
        assert run.measured("request_throughput")["value"].value == pytest.approx(4 / 3.45)
        assert run.measured("output_throughput")["value"].value == pytest.approx(10 / 3.45)
    assert run.mean_tokens("output_tokens") == 2.5


def test_conventions(tmp_path: Path) -> None:
    runs = {name: read(tmp_path, text)[0] for name, text in FILES.items()}
    includes = {name for name, run in runs.items() if run.tpot_convention == TPOT_INCLUDES}
    assert includes == {"guidellm summary"}
    means = {name for name, run in runs.items() if run.itl_convention == ITL_MEANS}
    assert means == {"guidellm", "guidellm summary", "guidellm old"}
    arrivals = {name for name, run in runs.items() if run.latency_from == "arrival"}
    assert arrivals == {"prometheus", "csv"}


def test_percentiles_of_buckets_are_interpolated(tmp_path: Path) -> None:
    (run,) = read(tmp_path, prometheus(SMALL))
    assert run.percentiles == IN_BUCKETS
    # Two of four lie up to 0.25 s (the second bucket from 0.1); p90 is 1.6 of the two up to 0.5.
    assert run.measured("ttft")["p50"].value == pytest.approx(0.25)
    assert run.measured("ttft")["p90"].value == pytest.approx(0.25 + 0.25 * 0.8)
    assert run.conditions["num_preemptions"] == 3


def test_a_percentile_beyond_the_last_bucket_is_not_known(tmp_path: Path) -> None:
    lines = [
        'vllm:time_to_first_token_seconds_bucket{le="1.0"} 5',
        'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 10',
        "vllm:time_to_first_token_seconds_sum 30",
        "vllm:time_to_first_token_seconds_count 10",
        'vllm:request_success_total{finished_reason="stop"} 10',
    ]
    (run,) = read(tmp_path, "\n".join(lines))
    assert {s: m.value for s, m in run.measured("ttft").items()} == {"mean": 3.0, "p50": 1.0}


def test_failed_requests_are_counted_and_left_out(tmp_path: Path) -> None:
    errors = ["", "connection reset", "", ""]
    slow = {"ttfts": [0.1, 99.0, 0.3, 0.4], "errors": errors}
    for bench in (vllm_bench(SMALL, detailed=True), sglang_bench(SMALL, details=True)):
        (run,) = read(tmp_path, bench | slow)
        assert (run.completed, run.failed) == (3, 1)
        assert mean(run, "ttft") == pytest.approx(0.8 / 3)
    records = aiperf_records(SMALL)
    records[1]["metadata"]["was_cancelled"] = True
    records[2]["error"] = {"code": 500}
    records[3]["metadata"]["benchmark_phase"] = "warmup"
    (run,) = read(tmp_path, "\n".join(map(json.dumps, records)))
    assert (run.completed, run.failed) == (1, 2)
    assert mean(run, "ttft") == pytest.approx(0.1)
    (run,) = read(tmp_path, "send_s,ttft_s,success,error\n0,1,true,\n1,9,false,\n2,9,true,reset\n")
    assert (run.completed, run.failed) == (1, 2)
    assert mean(run, "ttft") == 1


def test_units_are_read(tmp_path: Path) -> None:
    summary = aiperf_summary(SMALL)
    summary["time_to_first_token"] = {"unit": "us", "avg": 2e6}
    assert mean(read(tmp_path, summary)[0], "ttft") == pytest.approx(2.0)
    summary["time_to_first_token"]["unit"] = "fortnights"
    assert "time_to_first_token.unit is 'fortnights'; expected one of s," in fault(
        tmp_path, summary
    )


def test_several_runs_have_names_of_their_own(tmp_path: Path) -> None:
    benches = [vllm_bench(SMALL, detailed=False, request_rate=r) for r in (4, 8, 8, "inf")]
    runs = read(tmp_path, "\n" + "\n".join(map(json.dumps, benches)))
    assert [run.name for run in runs] == ["rate 4", "rate 8#1", "rate 8#2", "rate inf"]
    report = guidellm(SMALL)
    report["benchmarks"] *= 2
    assert [run.name for run in read(tmp_path, report)] == ["poisson 8#1", "poisson 8#2"]
    metrics = prometheus(SMALL)
    other = metrics.replace("Llama-3.1-8B", "other")
    names = [run.name for run in read(tmp_path, metrics + other)]
    assert names == ["meta-llama/Llama-3.1-8B", "meta-llama/other"]


def test_a_sample_of_the_requests_is_not_taken_for_all(tmp_path: Path) -> None:
    report = guidellm(SMALL)
    del report["benchmarks"][0]["requests"]["successful"][2:]
    (run,) = read(tmp_path, report)
    assert run.tpot_convention == TPOT_INCLUDES
    assert run.measured("ttft")["mean"].is_from_tool


@pytest.mark.parametrize("name", ["vllm detailed", "prometheus", "csv"])
def test_gzipped_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / "results.gz"
    path.write_bytes(gzip.compress(FILES[name].encode()))
    assert mean(read_measured(path)[0], "ttft") == pytest.approx(0.25)


def test_unknown_files_list_the_formats(tmp_path: Path) -> None:
    for content in ("{}", "a,b\n1,2\n", "hello", "[1]", '{"schema": "fleetcast.result/1"}'):
        message = fault(tmp_path, content)
        assert "format not recognised" in message
        assert all(f"\n  {name}: " in message for name in FORMATS)
    assert "unknown format 'xml'" in fault(tmp_path, "{}", format="xml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (json.dumps(vllm_bench(SMALL, detailed=True))[:-30], "line 1: not JSON"),
        (
            f"{json.dumps(vllm_bench(SMALL, detailed=False))}\n{{'",
            "results, line 2: not JSON",
        ),
        (vllm_bench(SMALL, detailed=True, ttfts=[0.1]), "ttfts has 1 entries; expected 4"),
        (vllm_bench(SMALL, detailed=True, errors=[]), "errors has 0 entries; expected 4"),
        (vllm_bench(SMALL, detailed=True, itls=[1, 2, 3, 4]), "itls[0] must be a list, not 1"),
        (
            vllm_bench(SMALL, detailed=True, ttfts=[0, 0, 0, None]),
            "ttfts[3] must be a number, 0 or",
        ),
        (
            vllm_bench(SMALL, detailed=False, mean_ttft_ms=float("nan")),
            "field mean_ttft_ms must be a number, 0 or more, not nan",
        ),
        (vllm_bench(SMALL, detailed=False, completed=None), "completed is missing; expected"),
        (guidellm(SMALL) | {"benchmarks": []}, "benchmarks is []; expected a list with"),
        (guidellm(SMALL) | {"metadata": {"version": 3}}, "metadata.version is 3; expected at"),
        ("ttft_s,ttft_ms\n1,1\n", "line 1: 'ttft_ms' is there twice"),
        ("arrival_s,ttft_s\n0,1\n1,x\n", "results, line 3: ttft_s is 'x'; expected a number"),
        ("ttft_s,output_tokens\n1,1.5\n", "line 2: output_tokens is '1.5'; expected a whole"),
        ("ttft_s,e2e_s\n1\n", "line 2: 1 fields; expected 2"),
        ("ttft_s\n", "no rows after the header"),
        ("vllm:time_to_first_token_seconds_sum x\n", "line 1: time_to_first_token_seconds_sum is"),
        ("vllm:time_to_first_token_seconds_sum\n", "line 1: 'vllm:time_to_first_token_seconds_s"),
    ],
)
def test_faults_are_named(tmp_path: Path, content: object, message: str) -> None:
    assert message in fault(tmp_path, content)


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1e308, float("nan"), float("inf"), "", "x\ud800", [], {}, [[]], 10**400]
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += _paths(inner, (*path, key))
    return found


def assert_runs_or_trace_error(path: Path, name: str) -> None:
    for format_ in (None, *FORMATS):
        message, runs = str(path), []
        try:
            runs = read_measured(path, format=format_)
        except TraceError as error:
            message = str(error)
        assert str(path) in message, name
        for run in runs:
            found = [m for metric in (*LATENCIES, *RATES) for m in run.measured(metric).values()]
            assert all(np.isfinite(measured.value) and measured.value >= 0 for measured in found)
            json.dumps([run.name, run.conditions, run.notes]).encode()


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_odd_values_give_runs_or_an_error_that_names_the_file(
    tmp_path: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([name for name, text in FILES.items() if text[0] == "{"]))
    documents = (
        [json.loads(line) for line in FILES[name].split("\n")]
        if name == "aiperf records"
        else [json.loads(FILES[name])]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(_paths(documents)))
        holder: Any = documents
        for key in parents:
            holder = holder[key]
        holder[last] = copy.deepcopy(data.draw(ODD))
        if not all(isinstance(document, dict) for document in documents):
            break
    path = tmp_path / "odd"
    path.write_text("\n".join(json.dumps(document) for document in documents))
    assert_runs_or_trace_error(path, name)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_text_gives_runs_or_an_error_that_names_the_file(
    tmp_path: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(list(FILES)))
    good = FILES[name].encode()
    at = data.draw(st.integers(0, len(good)))
    keep = data.draw(st.integers(0, 30)) if data.draw(st.booleans()) else len(good)
    damage = data.draw(st.binary(max_size=4) | st.sampled_from([b"\n", b",", b'"', b"NaN", b"-"]))
    path = tmp_path / "damaged"
    path.write_bytes(good[:at] + damage + good[at + data.draw(st.integers(0, 5)) :][:keep])
    assert_runs_or_trace_error(path, name)


def test_failures_that_only_show_otherwise(tmp_path: Path) -> None:
    """No text in ``errors``; a null count beside a summary; totals among the metrics."""
    bench = vllm_bench(SMALL, detailed=True, errors=[""] * 4)
    for name, value in (("output_lens", 0), ("ttfts", 0.0), ("itls", []), ("latencies", 0.0)):
        bench[name] = [*bench[name][:3], value]
    (run,) = read(tmp_path, bench)
    assert (run.completed, run.failed) == (3, 1)

    summary = aiperf_summary(SMALL) | {
        "error_request_count": None,
        "error_summary": [{"error_details": {"code": 499}, "count": 81}, {"count": 3}],
    }
    assert read(tmp_path, summary)[0].failed == 84

    report = guidellm(SMALL)
    report["benchmarks"][0]["metrics"]["request_totals"] = {"successful": 4, "errored": 7}
    assert read(tmp_path, report)[0].failed == 7
