"""Parallel execution completes in any number of processes, even if workers die."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from scenarios.run.execution import WorkerLostError
from scenarios.run.execution.workers import check_cluster, spread
from sim.errors import ScenarioError
from tests.scenarios.run.worker_functions import die_always, die_once, refuse_three, square

NUMBERS = list(range(12))
SQUARES = [(n, n * n) for n in NUMBERS]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_item_comes_back_once_with_its_position(jobs: int) -> None:
    assert sorted(spread(square, NUMBERS, jobs=jobs)) == SQUARES
    assert list(spread(square, [], jobs=jobs)) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_function_raises_is_raised_and_the_pool_serves_again(jobs: int) -> None:
    with pytest.raises(ValueError, match="three"):
        list(spread(refuse_three, NUMBERS, jobs=jobs))
    assert sorted(spread(square, NUMBERS, jobs=jobs)) == SQUARES


def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    done = spread(partial(die_once, folder=str(tmp_path)), NUMBERS, jobs=2)
    assert sorted(done) == SQUARES
    assert (tmp_path / "died").exists()


def test_an_item_that_kills_every_worker_is_told_apart_from_those_beside_it() -> None:
    done = dict(spread(die_always, NUMBERS, jobs=2))
    assert isinstance(done.pop(3), WorkerLostError)
    assert sorted(done.items()) == [pair for pair in SQUARES if pair[0] != 3]


def test_a_caller_that_leaves_stops_the_rest() -> None:
    with closing(spread(square, NUMBERS, jobs=2)) as runs:
        next(runs)
    assert sorted(spread(square, NUMBERS, jobs=2)) == SQUARES


@pytest.mark.parametrize("cluster", ["", "localhost:8786", "http://x", "slurm"])
def test_what_is_no_cluster_is_refused(cluster: str) -> None:
    with pytest.raises(ScenarioError, match="not a cluster; give ray"):
        check_cluster(cluster)
