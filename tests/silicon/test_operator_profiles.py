"""Vidur's A100 kernel times, predicted from a datasheet, and from tables of half the shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodels.hardware.gpus import load_gpu
from costmodels.tables.lookup import Lookup
from costmodels.tables.shapes import LOOKUPS
from tests.properties.checkout import SHARED
from tests.published.models.vidur_datasheet import TwoShares, datasheet_seconds, fit_shares
from tests.published.models.vidur_profiles import (
    ELEMENTWISE,
    GEMMS,
    MeasuredOperator,
    merged,
    read_all_reduce,
    read_attention,
    read_mlp,
    vidur_table,
)

PROFILES = SHARED / "data" / "profiles"
ATTENTION_FILE = "oss-release-branch/a100/attention.csv.gz"
# What the bars hold for; the others are reported.
BARRED = (*GEMMS, "attn_prefill", "attn_decode")
A100 = load_gpu("A100")

pytestmark = pytest.mark.skipif(
    not (PROFILES / "compute").is_dir(), reason=f"Vidur's profiles are not in {PROFILES}"
)


@pytest.fixture(name="operators", scope="module")
def _operators() -> dict[str, MeasuredOperator]:
    files = sorted(PROFILES.glob("compute/a100/*/*/mlp.csv.gz"))
    found = merged(operator for file in files for operator in read_mlp(file))
    found += read_attention(PROFILES / ATTENTION_FILE)
    found.append(read_all_reduce(PROFILES / "network/a100_dgx/all_reduce.csv.gz"))
    return {operator.name: operator for operator in found}


def scores(
    operators: dict[str, MeasuredOperator],
    predict: Callable[[MeasuredOperator], NDArray[np.float64]],
) -> dict[str, float]:
    """Prints |relative error| on the held-out half; the medians of the operators barred."""
    medians = {}
    for name, operator in operators.items():
        held_out = operator.where(operator.is_held_out)
        error = predict(held_out) / held_out.seconds - 1
        median, p90 = np.quantile(np.abs(error), [0.5, 0.9])
        print(
            f"{name:26} {len(error):5} shapes: median {median:6.1%} p90 {p90:6.1%} "
            f"signed {np.median(error):+6.1%}"
        )
        medians[name] = float(median)
    return {name: medians[name] for name in BARRED}


def test_every_operator_is_split_in_two_halves(operators: dict[str, MeasuredOperator]) -> None:
    assert set(operators) == {*BARRED, *ELEMENTWISE, "all_reduce"}
    for operator in operators.values():
        assert 0.45 < operator.is_held_out.mean() < 0.55
        assert len(operator.seconds) > 1000


def test_a_datasheet_and_two_shares_predict_the_held_out_half(
    operators: dict[str, MeasuredOperator],
) -> None:
    seen = [operators[name].where(~operators[name].is_held_out) for name in BARRED]
    shares = fit_shares(seen, A100)
    print(f"\ndatasheet, {shares.compute:.0%} of compute, {shares.memory:.0%} of memory bandwidth")
    medians = scores(operators, lambda op: datasheet_seconds(op, A100, shares))
    assert max(medians.values()) <= 0.15
    # Not any two shares will do.
    wrong = TwoShares(compute=0.5, memory=0.5)
    for operator in (operators[name] for name in BARRED):
        error = datasheet_seconds(operator, A100, wrong) / operator.seconds - 1
        assert np.median(np.abs(error)) > 0.15


def test_tables_of_one_half_predict_the_other(operators: dict[str, MeasuredOperator]) -> None:
    groups = [[operators[name] for name in GEMMS]]
    # Kernels with equal bytes a row differ: an elementwise table is one kernel's.
    groups += [[op] for name, op in operators.items() if name not in GEMMS]
    lookups: dict[str, Lookup] = {}
    for group in groups:
        seen = [operator.where(~operator.is_held_out) for operator in group]
        lookup = LOOKUPS[group[0].kind](vidur_table(seen, "A100-SXM-80GB", "data/profiling"))
        lookups |= {operator.name: lookup for operator in group}
    print("\ntables of half the shapes")
    medians = scores(operators, lambda op: lookups[op.name].columns_seconds(op.columns)[0])
    assert max(medians.values()) <= 0.06


def test_the_held_out_shapes_are_not_in_the_tables(operators: dict[str, MeasuredOperator]) -> None:
    gemms = [operators[name] for name in GEMMS]
    table = vidur_table([op.where(~op.is_held_out) for op in gemms], "A100-SXM-80GB", "f")
    assert "MIT" in table.source()["source"]
    for operator in gemms:
        held_out = operator.where(operator.is_held_out)
        labels = LOOKUPS["gemm"](table).columns_seconds(held_out.columns)[1]
        assert "measured" not in labels
