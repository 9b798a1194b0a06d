"""Adapter affinity: requests follow their LoRA adapter as long as its replica has room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from policies.routers.adapter_affinity import AdapterAffinity
from policies.routers.round_robin import RoundRobin
from sim.accounts import ADAPTERS
from sim.engine.adapters import COLUMN, AdapterConfig, Adapters
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.cluster import run_cluster
from sim.protocols import ReplicaLoad, Router, RoutingContext
from sim.request import Request
from sim.request_table import request_table
from tests.properties.engines import small_pool
from tests.properties.routing import Bench


def ask(router: AdapterAffinity, *indices: int) -> list[int]:
    return [router.choose(Request(index, 0, 100, 10)) for index in indices]


def test_an_adapter_stays_where_it_is() -> None:
    context = Bench(3, extras={"adapter": {0: 7, 1: 8, 2: 7, 3: 8}})
    router = AdapterAffinity(context, load_bound=None)
    assert ask(router, 0) == [0]
    router.publish(0, ReplicaLoad(0, 5))
    assert ask(router, 1, 2, 3) == [1, 0, 1]


def test_a_full_replica_is_passed_over() -> None:
    context = Bench(2, extras={"adapter": dict.fromkeys(range(9), 7)})
    router = AdapterAffinity(context, load_bound=1.0)
    assert ask(router, 0) == [0]
    router.publish(0, ReplicaLoad(0, 4))
    assert ask(router, 1) == [1]  # it holds the adapter from now on


def test_a_replica_forgets_what_its_slots_cannot_hold() -> None:
    context = Bench(2, extras={"adapter": {0: 7, 1: 8, 2: 7}})
    router = AdapterAffinity(context, slots=1, load_bound=None)
    assert ask(router, 0, 1) == [0, 0]
    router.publish(0, ReplicaLoad(0, 1))
    assert ask(router, 2) == [1]


def test_the_base_model_and_replicas_that_were_down() -> None:
    context = Bench(2, extras={"adapter": {0: 7, 1: -1, 2: 7}})
    router = AdapterAffinity(context, load_bound=None)
    assert ask(router, 0) == [0]
    router.publish(0, ReplicaLoad(0, 1))
    assert ask(router, 1) == [1]
    router.down(0)
    router.up(0)  # with an engine that has lost its adapters
    assert ask(router, 2) == [1]
    assert AdapterAffinity(Bench(2)).choose(Request(0, 0, 10, 10)) == 0
    with pytest.raises(ScenarioError, match="slots is 0"):
        AdapterAffinity(context, slots=0)


def test_affinity_loads_fewer_adapters_than_round_robin() -> None:
    config = AdapterConfig(
        num_adapters=8, max_loras=2, max_cpu_loras=8, copy_ns=2_000_000, read_ns=0
    )
    n = 400
    draws = np.random.default_rng(3)
    table = request_table(
        draws.exponential(0.02, n).cumsum(), draws.integers(5, 60, n), draws.integers(1, 20, n)
    )
    table = replace(table, extras={COLUMN: draws.integers(0, 8, n)})

    def loads(make: Callable[[RoutingContext], Router]) -> int:
        pool = small_pool(EngineConfig(), replicas=4, router=make)
        features = (lambda rows: Adapters(config, rows.extras[COLUMN]),)
        log = run_cluster(table, replace(pool, make_features=features))
        waits = (steps.waits.get(ADAPTERS, []) for steps in log.steps)
        return sum(moved for of_one in waits for _, moved, _ in of_one)

    affine = partial(AdapterAffinity, slots=2, load_bound=2.0)
    assert loads(affine) < 0.6 * loads(RoundRobin)
