"""Presets reproduce the statistics they claim, and say where each number comes from."""

import pytest

from sim.errors import ScenarioError
from workloads.generate import generate
from workloads.presets import preset, preset_names, preset_spec
from workloads.stats import describe

LABELS = {"measured", "fitted", "extrapolated", "datasheet", "reported", "assumed"}


@pytest.mark.parametrize("name", preset_names())
def test_preset_reproduces_what_it_claims(name: str) -> None:
    chosen = preset(name)
    statistics = describe(generate(preset_spec(name, num_requests=100_000), 0))
    assert {"prompt_tokens_mean", "output_tokens_mean"} <= set(chosen.published)
    for key, value in chosen.published.items():
        assert statistics[key] == pytest.approx(value, rel=chosen.tolerance[key]), key
    assert statistics["requests_per_s"] == pytest.approx(chosen.arrivals.requests_per_s, rel=0.02)
    assert statistics["interarrival_cv"] == pytest.approx(chosen.arrivals.cv, rel=0.02)


@pytest.mark.parametrize("name", preset_names())
def test_every_number_has_a_label_and_a_source(name: str) -> None:
    chosen = preset(name)
    assert set(chosen.evidence.values()) <= LABELS
    assert set(chosen.evidence) == set(chosen.sources)
    assert {"arrivals.process", "arrivals.requests_per_s", "prompt_tokens", "output_tokens"} <= set(
        chosen.evidence
    )
    assert all(chosen.sources.values())
    assert all(0 < tolerance <= 0.3 for tolerance in chosen.tolerance.values())


def test_a_preset_takes_size_rate_and_concurrency() -> None:
    spec = preset_spec("azure-conv", duration_s=50, requests_per_s=40, max_concurrency=8)
    table = generate(spec, 0)
    assert len(table) == pytest.approx(2000, rel=0.1)
    assert spec.arrivals.cv == 1.05
    assert table.max_concurrency == 8
    assert table.source == "preset azure-conv (seed 0)"


def test_unknown_preset_suggests_and_lists() -> None:
    with pytest.raises(ScenarioError, match=r"did you mean azure-conv\? known: azure-conv, moon"):
        preset("azure_conv")
