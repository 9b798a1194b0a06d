"""The numbers behind the figures are thinned, but not changed."""

import numpy as np
import pandas as pd
import pytest

from reports.folder import STEP_COLUMNS
from reports.series import distribution, replica_series, windows
from tests.reports.sample import sample_steps


def steps_of(**columns: list[float]) -> pd.DataFrame:
    length = len(next(iter(columns.values())))
    return pd.DataFrame({name: columns.get(name, [0] * length) for name in STEP_COLUMNS})


def test_a_thinned_distribution_lies_on_the_full_one() -> None:
    values = np.random.default_rng(0).lognormal(size=20_000)
    x, share = distribution(values, max_points=240)
    assert len(x) <= 241
    assert share[-1] == 1
    assert x[-1] == values.max()
    assert np.allclose([(values <= at).mean() for at in x], share)


def test_few_values_are_all_kept() -> None:
    x, share = distribution(np.array([3.0, np.nan, 1.0]))
    assert x.tolist() == [1, 3]
    assert share.tolist() == [0.5, 1]


def test_windows_leave_gaps_where_nothing_arrived() -> None:
    times_s = np.array([0.0] * 100 + [10.0] * 100)
    found = windows(times_s, np.ones(200), (0.5,), end_s=10.0)
    assert np.isfinite(found.percentiles[0]).tolist() == [True, False, False, True]
    assert found.edges_s[-1] == 10
    assert found.median_count == 100


def test_tokens_are_conserved() -> None:
    steps = sample_steps(100.0, replicas=2, seed=3)
    edges_s = np.linspace(0, float(steps["gpu_end_s"].max()), 77)
    tokens = sum(
        float((one.output_tokens_per_s * np.diff(edges_s)).sum())
        for one in replica_series(steps, edges_s, 100)
    )
    assert tokens == pytest.approx(float((steps["steps"] * steps["logits"]).sum()))


def test_a_state_holds_until_the_next_plan_but_not_through_idleness() -> None:
    steps = steps_of(
        plan_s=[0, 1, 8],
        gpu_end_s=[0.99, 2, 10],
        steps=[1, 1, 1],
        running=[4, 2, 6],
        free_blocks=[50, 100, 0],
    )
    (one,) = replica_series(steps, np.array([0.0, 1.0, 2.0, 8.0, 10.0]), 100)
    assert one.running.tolist() == [4, 2, 0, 6]
    assert one.kv_occupancy.tolist() == [0.5, 0, 0, 1]
