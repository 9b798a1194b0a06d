"""Tables show by their own points whether GEMM times rise in steps as rows grow."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.tables.shapes import find_steps, tile_end

ROWS = np.array([1.0, 8, 16, 24, 32, 48, 64, 96, 128, 136, 192, 256, 264, 320, 384, 448, 512, 520])
ROWS = np.append(ROWS, [640.0, 768, 896, 1024, 1088])
CURVES = [slice(0, len(ROWS))]


def test_a_tile_ends_at_the_multiple_of_the_largest_power_of_two() -> None:
    low = np.array([224.0, 256, 24, 320, 1.0, 392])
    high = np.array([264.0, 264, 32, 384, 2.0, 448])
    assert tile_end(low, high).tolist() == [256, 256, 24, 320, 1, 416]


def test_tiles_are_found_where_there_are_any_and_rows_count_on_their_side() -> None:
    tiled = 1e-6 * np.ceil(ROWS / 128)
    steps = find_steps(ROWS, tiled, ROWS * 1e-9, CURVES)
    assert (128.0, 1024.0) in steps.ranges
    rows = np.array([130.0, 200.0, 257.0, 260.0, 500.0, 600.0, 5000.0])
    snapped = steps.snap(rows, ROWS)
    assert (np.ceil(snapped[:-1] / 128) == np.ceil(rows[:-1] / 128)).all()
    assert snapped[-1] == 5000
    assert set(snapped[:-1]) <= set(ROWS)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_lines_stay_lines(noise: float) -> None:
    factor = np.random.default_rng(0).uniform(1 - noise, 1 + noise, len(ROWS))
    steps = find_steps(ROWS, (5e-6 + ROWS * 1e-7) * factor, ROWS * 1e-9, CURVES)
    assert steps.ranges == ()
    assert steps.snap(ROWS + 0.5, ROWS).tolist() == (ROWS + 0.5).tolist()


def test_too_few_points_tell_nothing() -> None:
    few = ROWS[:4]
    assert find_steps(few, np.ceil(few / 8), few, [slice(0, 4)]).ranges == ()
    assert find_steps(few[:1], few[:1], few[:1], [slice(0, 1)]).snap(few, few[:1]).tolist() == (
        few.tolist()
    )
