"""Error bands: those of forecasts with the same evidence, metric and regime that were measured."""

from __future__ import annotations

from typing import Any

import pytest

from costmodels.hardware.uncertainty import (
    NORMAL_90,
    host_time_error,
    outcome_band,
    step_time_error,
)
from reports.numbers import band_text
from scenarios.files.load import parse_scenario
from scenarios.run.bands import regime_of
from scenarios.run.simulate import simulate

CHAT = {"arrivals": "poisson", "input_tokens": {"fixed": 1000}, "output_tokens": {"fixed": 100}}


def summary(rate_per_s: float, **more: Any) -> dict[str, Any]:
    workload = {"generator": CHAT, "rate_per_s": rate_per_s, "num_requests": 600}
    return simulate(parse_scenario({"model": "llama-3.1-8b", "workload": workload, **more})).summary


def bands(found: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(f["name"], f["statistic"]): f.get("band") for f in found["figures"]}


def test_a_figure_carries_the_band_of_its_metric_and_regime() -> None:
    found = bands(summary(2.0))
    for metric in ("ttft", "tpot", "request_throughput"):
        expected = outcome_band("fitted", metric, "light")
        assert expected is not None
        statistic = "value" if metric == "request_throughput" else "p50"
        assert found[metric, statistic] == list(expected)
        assert expected.low <= 0 <= expected.high
    assert found["preemptions", "value"] is None


def test_regimes_follow_the_distance_to_saturation() -> None:
    assert regime_of(0.3, is_closed=False) == "light"
    assert regime_of(0.7, is_closed=False) == "busy"
    assert regime_of(1.4, is_closed=False) == regime_of(None, is_closed=False) == "saturated"
    assert regime_of(0.3, is_closed=True) == "closed"


def test_weaker_evidence_widens_them_and_says_what_to_measure() -> None:
    fitted, weaker = summary(2.0), summary(2.0, hardware={"gpu": "A100"})
    few, many = (bands(found)["tpot", "p50"] for found in (fitted, weaker))
    assert many[1] - many[0] > few[1] - few[0]
    notes = " ".join(weaker["conditions"]["notes"])
    assert "fleetcast calibrate" in notes
    assert "fleetcast calibrate" not in " ".join(fitted["conditions"]["notes"])


def test_errors_of_inputs_grow_with_weaker_evidence() -> None:
    weaker = ["extrapolated", "datasheet", "reported", "assumed"]
    for error in (step_time_error, host_time_error):
        assert error("measured") < error("fitted") < min(error(label) for label in weaker)


def test_the_error_of_a_capacity_is_at_least_that_of_measured_tpot() -> None:
    band = outcome_band("fitted", "tpot", "light")
    assert band is not None
    assert step_time_error("fitted") == pytest.approx(band.half_width / NORMAL_90)


def test_metrics_without_outcomes_have_those_of_what_they_follow() -> None:
    assert outcome_band("fitted", "itl", "light") == outcome_band("fitted", "tpot", "light")
    assert outcome_band("fitted", "goodput", "busy") == outcome_band(
        "fitted", "request_throughput", "busy"
    )
    assert outcome_band("fitted", "preemptions", "light") is None


@pytest.mark.parametrize(
    ("band", "text"),
    [([-0.05, 0.05], "±5%"), ([-0.05, 0.12], "\N{MINUS SIGN}5% +12%"), (None, ""), ([0.1], "")],
)
def test_bands_are_written_with_both_ends(band: object, text: str) -> None:
    assert band_text(band) == text


def test_they_can_be_left_out() -> None:
    assert set(bands(summary(2.0, bands=False)).values()) == {None}
