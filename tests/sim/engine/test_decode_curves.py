"""Decode attention that is nonlinear in the context: exact integers, equal in jumps and steps."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from costmodels.operators.attention import DecodeCurves, curve_prices, summed_curves

CONTEXTS = np.array([0.0, 64, 512, 4096])
SECONDS = np.array([[0.0, 0, 0, 0], [1, 1, 3, 9], [2, 2, 2, 30], [4, 4, 3, 50]]) * 1e-6
CURVES = DecodeCurves(contexts=CONTEXTS, seconds=SECONDS)


def fixed(seconds: float) -> int:
    return round(seconds * 1e9 * (1 << 32))


PRICES = curve_prices(CURVES, fixed)


@given(
    decodes=st.integers(0, 3),
    mean=st.integers(0, 6000),
    rest=st.integers(0, 2),
    steps=st.integers(1, 6000),
)
def test_a_run_is_its_steps(decodes: int, mean: int, rest: int, steps: int) -> None:
    assert PRICES is not None
    context = decodes * mean + min(rest, max(decodes - 1, 0))
    if not decodes:
        assert PRICES.at(0, 0) == 0
        return
    stepped = [PRICES.at(decodes, context + step * decodes) for step in range(steps)]
    assert PRICES.run(decodes, context, steps) == stepped


@given(decodes=st.integers(0, 3), mean=st.integers(0, 10_000))
def test_integers_are_the_seconds(decodes: int, mean: int) -> None:
    assert PRICES is not None
    exact = CURVES.decode_s(np.array([float(decodes)]), np.array([float(decodes * mean)]))[0]
    assert abs(PRICES.at(decodes, decodes * mean) / 2**32 - exact * 1e9) < 1e-3 * max(mean, 1)


def test_at_measured_contexts_it_is_what_was_measured_and_beyond_the_last_slope_goes_on() -> None:
    for place, context in enumerate(CONTEXTS[1:], 1):
        found = CURVES.decode_s(np.array([2.0]), np.array([2 * (context - 1)]))
        assert np.isclose(found[0], SECONDS[2, place])
    beyond = CURVES.decode_s(np.array([2.0]), np.array([2 * (2 * 4096 - 512 - 1.0)]))
    assert np.isclose(beyond[0], 58e-6)


def test_curves_of_several_kinds_of_layers_add_up() -> None:
    other = DecodeCurves(contexts=np.array([0.0, 1000, 2000]), seconds=SECONDS[:, :3])
    both = summed_curves([CURVES, other])
    assert both is not None
    seqs = np.repeat(np.arange(4.0), 5)
    context = seqs * np.tile([10.0, 700, 1500, 3000, 9000], 4)
    np.testing.assert_allclose(
        both.decode_s(seqs, context), CURVES.decode_s(seqs, context) + other.decode_s(seqs, context)
    )
    assert summed_curves([]) is None
