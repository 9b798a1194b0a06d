"""Warnings fire when they should, and only then."""

from __future__ import annotations

import math

import pytest

from scenarios.files.load import parse_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from tests.properties.scenarios import codes, small


def demo(rate_per_s: float, num_requests: int) -> RunResult:
    workload = {"preset": "azure-conv", "rate_per_s": rate_per_s, "num_requests": num_requests}
    return simulate(parse_scenario({"model": "meta-llama/Llama-3.1-8B", "workload": workload}))


@pytest.mark.parametrize(
    ("num_requests", "which"),
    [(999, "p90 and above rest"), (1000, "p95 and above rest"), (9999, "p99 rests"), (10_000, "")],
)
def test_few_samples(num_requests: int, which: str) -> None:
    result = simulate(parse_scenario(small(num_requests=num_requests, rate_per_s=50)))
    texts = [warning["text"] for warning in result.summary["warnings"]]
    # A stable run with samples enough warns of nothing at all.
    assert [text.startswith(which) for text in texts] == ([True] if which else [])


@pytest.mark.parametrize(
    ("rate_per_s", "num_requests", "expected"),
    [
        (8.0, 1000, ["few_samples"]),
        (18.0, 1000, ["few_samples"]),
        (22.0, 2000, ["near_saturation", "few_samples"]),
        (30.0, 1000, ["unstable", "near_saturation", "few_samples"]),
        (90.0, 1000, ["unstable", "near_saturation", "few_samples"]),
        (90.0, 49, ["near_saturation", "few_samples"]),
    ],
)
def test_load_warnings(rate_per_s: float, num_requests: int, expected: list[str]) -> None:
    result = demo(rate_per_s, num_requests)
    assert codes(result) == expected
    texts = {warning["code"]: warning["text"] for warning in result.summary["warnings"]}
    if rate_per_s > 25:
        assert "times the estimated saturation rate" in texts["near_saturation"]
    elif rate_per_s > 20:
        assert "% of the estimated saturation rate" in texts["near_saturation"]
    if "unstable" in expected:
        assert texts["unstable"].startswith("the queue grows over the window: ")


def test_a_closed_loop_is_never_unstable() -> None:
    workload = {
        "preset": "azure-conv",
        "rate_per_s": 90,
        "num_requests": 300,
        "max_concurrency": 64,
    }
    result = simulate(parse_scenario({"model": "Llama-3.1-8B", "workload": workload}))
    assert codes(result) == ["few_samples"]


def test_rejected() -> None:
    result = simulate(parse_scenario(small() | {"engine": {"max_model_len": 104}}))
    assert codes(result) == ["nothing_finished", "rejected"]
    rejected = result.summary["warnings"][1]["text"]
    assert rejected.startswith("10 requests were rejected: 10 longer than max_model_len")
    assert "rejected" not in codes(
        simulate(parse_scenario(small() | {"engine": {"max_model_len": 105}}))
    )


def test_unfinished() -> None:
    lengths = {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 400}}
    everything = simulate(parse_scenario(small(generator=lengths)))
    horizon_s = everything.requests["arrival_s"].max() + 0.01
    cut = simulate(parse_scenario(small(generator=lengths) | {"horizon_s": horizon_s}))
    assert "unfinished" not in codes(everything)
    assert "unfinished" in codes(cut)
    count = int(cut.requests["status"].eq("unfinished").sum())
    text = next(w["text"] for w in cut.summary["warnings"] if w["code"] == "unfinished")
    assert text.startswith(
        f"{count} request{'s were' if count > 1 else ' was'} still in the system"
    )


def test_nothing_finished() -> None:
    first_s = simulate(parse_scenario(small())).requests["arrival_s"].min()
    result = simulate(parse_scenario(small() | {"horizon_s": first_s + 1e-4}))
    assert codes(result) == ["nothing_finished", "unfinished"]
    assert math.isnan(result.requests["ttft_s"].min())
