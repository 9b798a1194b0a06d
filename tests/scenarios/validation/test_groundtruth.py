"""The accuracy of fleetcast on the measured runs, as `fleetcast validate` finds it."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.validation.validate import validate
from tests.properties.checkout import SHARED

GROUNDTRUTH = SHARED / "data" / "groundtruth"


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    if not GROUNDTRUTH.exists():
        pytest.skip("the measured runs (shared/data/groundtruth) are not here")
    return validate(GROUNDTRUTH, skip=["conformance"]).content


def test_all_of_it_is_scored(content: dict[str, Any]) -> None:
    assert content["warnings"] == []
    assert list(content["conditions"]) == ["m1", "m1sync", "m2"]
    kinds = {(s["key"], s["kind"]): s["count"] for s in content["steps"] if s["half"] == "all"}
    for key in content["conditions"]:
        counts = [kinds[key, kind] for kind in ("decode", "prefill", "extend", "mixed", "all")]
        assert counts == [32, 7 + 2, 9, 24, 78]
        halves = [s for s in content["steps"] if s["key"] == key and s["kind"] == "all"]
        assert halves[0]["count"] == sum(half["count"] for half in halves[1:])


def test_a_prompt_in_two_chunks_is_measured_as_the_readme_says(content: dict[str, Any]) -> None:
    chunks = {
        (p["key"], p["parameters"]["chunk"]): p["measured_ms"]
        for p in content["step_points"]
        if "chunk" in p["parameters"]
    }
    told = {("m1", 1): 208.2, ("m1", 2): 269.4, ("m1sync", 2): 270.1, ("m2", 2): 231.9}
    for name, value_ms in told.items():
        assert chunks[name] == pytest.approx(value_ms, abs=0.1)


def test_only_the_run_with_compile_stalls_is_scored_late(content: dict[str, Any]) -> None:
    from_s = {
        f"{key}:{run}": conditions["scored_from_s"]
        for key, of_key in content["conditions"].items()
        for run, conditions in of_key["runs"].items()
    }
    assert from_s.pop("m2:p10") == pytest.approx(8, abs=0.1)
    assert set(from_s.values()) == {0.0}


def test_measured_figures_are_those_of_the_readme(content: dict[str, Any]) -> None:
    measured = {(f["run"], f["metric"], f["statistic"]): f["measured"] for f in content["figures"]}
    assert measured["m1:p34", "ttft", "p50"] == pytest.approx(0.421, abs=5e-4)
    assert measured["m1:p34", "tpot", "p99"] == pytest.approx(0.181, abs=5e-4)
    assert measured["m1:p34", "request_throughput", "mean"] == pytest.approx(25.14, abs=0.01)
    assert measured["m1:p34", "running", "max"] == 862
    assert measured["m1:p34", "preemptions", "total"] == 1
    assert measured["m2:p10", "ttft", "p50"] == pytest.approx(0.107, abs=1e-3)
    assert measured["m2:mt40", "output_throughput", "mean"] == pytest.approx(1246, abs=1)


# Largest median errors that are let through. The constants were fitted to these logs, so this
# guards the fit; what a held-out half says is in the README. m2 extend: the cached prefixes were
# noise, whose tokens reach fewer experts than text does.
LARGEST_MEDIAN = {
    ("m1", "decode"): 0.015,
    ("m1", "prefill"): 0.06,
    ("m1", "extend"): 0.06,
    ("m1", "multiprefill"): 0.04,
    ("m1", "mixed"): 0.03,
    ("m1sync", "decode"): 0.04,
    ("m2", "decode"): 0.02,
    ("m2", "prefill"): 0.06,
    ("m2", "extend"): 0.35,
    ("m2", "multiprefill"): 0.04,
    ("m2", "mixed"): 0.12,
}


def test_steps_and_memory_are_near(content: dict[str, Any]) -> None:
    scores = {(s["key"], s["kind"]): s for s in content["steps"] if s["half"] == "all"}
    for kind, largest in LARGEST_MEDIAN.items():
        assert scores[kind]["median_abs"] < largest, scores[kind]
    blocks = [f["error"] for f in content["figures"] if f["metric"] == "num_gpu_blocks"]
    assert len(blocks) == 3
    assert max(map(abs, blocks)) < 0.01


# TTFT, TPOT and E2E at p50, p90 and p99. m2's launches took 1.53 ms a layer in p10 and 1.25 ms in
# p26, on the same machine: one host constant serves both.
LARGEST_ERRORS = {"m1:p10": 0.08, "m1:mt40": 0.12, "m2:p10": 0.25, "m2:p26": 0.25, "m2:mt40": 0.2}


@pytest.mark.parametrize("run", LARGEST_ERRORS)
def test_free_runs_are_near(content: dict[str, Any], run: str) -> None:
    errors = {
        (f["metric"], f["statistic"]): f["error"]
        for f in content["figures"]
        if f["run"] == run and f["metric"] in ("ttft", "tpot", "e2e")
    }
    assert len(errors) == 12
    assert max(map(abs, errors.values())) < LARGEST_ERRORS[run], errors


def test_overload_is_near(content: dict[str, Any]) -> None:
    errors = {
        (f["metric"], f["statistic"]): abs(f["error"])
        for f in content["figures"]
        if f["run"] == "m1:p34"
    }
    assert errors["request_throughput", "mean"] < 0.015
    assert errors["running", "mean"] < 0.04
    assert max(errors["tpot", s] for s in ("p50", "p90", "p99")) < 0.07
    assert max(errors["e2e", s] for s in ("p50", "p90", "p99")) < 0.05
    # Past saturation a step error of 1% is one of 10% in TTFT.
    assert max(errors["ttft", s] for s in ("p50", "p90", "p99")) < 0.25


def test_regimes_follow_the_load(content: dict[str, Any]) -> None:
    regimes = {f["run"]: f["regime"] for f in content["figures"] if f["metric"] == "ttft"}
    assert regimes["m1:p10"] == regimes["m1:mt40"] == "light"
    assert regimes["m2:p26"] == "busy"
    assert regimes["m1:p34"] == "saturated"
