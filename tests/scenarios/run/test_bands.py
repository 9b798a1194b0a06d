"""Error bands: derived from three errors, and wider if a queue multiplies them."""

from __future__ import annotations

from typing import Any

import pytest

from costmodels.hardware.uncertainty import (
    NORMAL_90,
    host_time_error,
    repeat_error,
    step_time_error,
)
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate

CHAT = {"arrivals": "poisson", "input_tokens": {"fixed": 1000}, "output_tokens": {"fixed": 100}}
LONG = {"arrivals": "poisson", "input_tokens": {"fixed": 4000}, "output_tokens": {"fixed": 4}}


def bands(
    rate_per_s: float, generator: dict[str, Any] = CHAT, **more: Any
) -> dict[tuple[str, str], float | None]:
    scenario = {
        "model": "llama-3.1-8b",
        "workload": {"generator": generator, "rate_per_s": rate_per_s, "num_requests": 600},
        **more,
    }
    figures = simulate(parse_scenario(scenario)).summary["figures"]
    return {(f["name"], f["statistic"]): f.get("band") for f in figures}


def test_a_latency_carries_step_and_repeat_errors() -> None:
    found = bands(2.0)
    tpot = found["tpot", "p50"]
    assert tpot is not None
    # At light load a decode is the GPU's time, and a common error of it is one of TPOT.
    alone = NORMAL_90 * (step_time_error("fitted") ** 2 + repeat_error("tpot", "p50") ** 2) ** 0.5
    assert tpot == pytest.approx(alone, rel=0.1)
    throughput = found["request_throughput", "value"]
    assert throughput is not None
    assert throughput < 0.01
    assert found["preemptions", "value"] is None  # there were none: nothing to be relative to


def test_bands_widen_towards_saturation() -> None:
    light, full = bands(1.0, LONG), bands(10.0, LONG)
    for statistic in ("mean", "p50"):
        few, many = light["ttft", statistic], full["ttft", statistic]
        assert few is not None
        assert many is not None
        assert many > 2 * few


def test_weaker_evidence_widens_them() -> None:
    fitted = bands(2.0)["tpot", "p50"]
    datasheet = bands(2.0, hardware={"gpu": "A100"})["tpot", "p50"]
    assert fitted is not None
    assert datasheet is not None
    assert datasheet > 3 * fitted
    labels = ["measured", "fitted", "extrapolated", "datasheet", "reported", "assumed"]
    for error in (step_time_error, host_time_error):
        values = [error(label) for label in labels]
        assert values == sorted(values)


def test_they_can_be_left_out() -> None:
    assert set(bands(2.0, bands=False).values()) == {None}
