"""A hundred seeds of the attack in every run of the tests; the module's command runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.__main__ import attack


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_seeds_are_withstood(first: int, tmp_path: Path) -> None:
    outcomes = [attack(seed, tmp_path) for seed in range(first, first + 25)]
    assert [faults for _, _, faults in outcomes if faults] == []
    assert {"completed"} < {ran for ran, _, _ in outcomes} | {"refused"}
