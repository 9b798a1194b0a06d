"""Bands cover families that were left out, and widen until they do."""

from __future__ import annotations

import numpy as np
import yaml

from costmodels.datafile import read_data
from tests.coverage.bands import ANY, FEWEST_FAMILIES, as_content, band_of, bands
from tests.coverage.points import Point


def points(families: int, each: int, spread: float, bias: float = 0.0) -> list[Point]:
    draw = np.random.default_rng(0)
    found = []
    for family in range(families):
        own = draw.normal(bias, spread)
        for _ in range(each):
            measured = float(np.exp(own + draw.normal(0, spread / 4)))
            found.append(
                Point(
                    source="drawn",
                    family=f"f{family}",
                    label="fitted",
                    regime="light",
                    metric="tpot",
                    statistic="p50",
                    predicted=1.0,
                    measured=measured,
                )
            )
    return found


def test_a_band_covers_families_left_out() -> None:
    drawn = points(60, 4, 0.2)
    band = band_of(drawn)
    assert 0.9 <= band.coverage <= 0.98
    assert band.low < -0.15
    assert band.high > 0.2


def test_a_biased_forecast_has_a_band_to_one_side() -> None:
    band = band_of(points(60, 4, 0.1, bias=0.4))
    assert band.low == 0.0
    assert band.high > 0.5


def test_few_families_are_left_to_wider_cells() -> None:
    few = bands(points(FEWEST_FAMILIES - 1, 5, 0.1))
    assert few == {}
    assert set(bands(points(8, 5, 0.1))) == {"fitted", ANY}


def test_what_covers_too_little_is_left_to_wider_cells() -> None:
    assert set(bands(points(FEWEST_FAMILIES, 5, 0.1))) == {ANY}


def test_the_shipped_bands_hold_on_families_left_out() -> None:
    shipped = read_data("hardware/outcomes.yaml")
    cells = [
        cell
        for by_metric in shipped.values()
        for by_regime in by_metric.values()
        for cell in by_regime.values()
    ]
    assert cells
    for cell in cells:
        assert cell["low"] <= 0 <= cell["high"]
        assert 0.8 <= cell["coverage"] <= 1.0
    content = as_content(bands(points(8, 5, 0.1)))
    assert yaml.safe_load(yaml.safe_dump(content)) == content
