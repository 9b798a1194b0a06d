"""Watchers of caches know at every choice what stepping would have reported, and when it
happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from policies import SCHEDULERS
from scenarios.build.plugins import scheduler_factory
from sim.engine.config import EngineConfig
from sim.fleet.cluster import run_cluster
from sim.fleet.config import Fleet, PoolConfig, Role
from sim.protocols import ReplicaLoad, Router, RoutingContext, Watch
from sim.request import Request
from sim.request_table import RequestTable, request_table
from tests.properties.costs import COSTS, AffineCost
from tests.properties.handover import TRANSFER
from tests.properties.tables import chains_of

WATCHES: list[Watch] = ["immediate", "deferred", "deferred_timed"]
TIGHT = EngineConfig(
    step_token_limit=64, running_seq_limit=6, max_model_len=200, block_size=4, replica_blocks=70
)


AT_ONCE = replace(TRANSFER, bytes_per_token=0, latency_ns=0)
IN_STEP = AffineCost(base_s=5e-3, per_token_s=0.0, per_context_s=0.0)
"""Every step of every engine begins at a multiple of 5 ms."""


class Notebook:
    """A router in turns that writes down what it knows of the caches whenever it is asked."""

    def __init__(self, context: RoutingContext, *, when: Watch) -> None:
        self._context, self._when = context, when
        self._known: dict[tuple[int, int], int] = {}
        self._next = 0
        self.choices: list[Any] = []
        self.told: list[list[tuple[int, int, int]]] = [[] for _ in range(context.num_replicas)]
        """(time, prefix id, blocks) of each change, by replica."""
        context.watch_caches(self._note, when=when)

    def choose(self, request: Request) -> int:
        for replica in range(self._context.num_replicas):
            self._context.catch_up(replica)
        known = {key: blocks for key, blocks in self._known.items() if blocks}
        self.choices.append((self._context.now_ns, request.index, sorted(known.items())))
        self._next = (self._next + 1) % self._context.num_replicas
        return self._next

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Ignore the published load."""

    def _note(self, replica: int, prefix_id: int, blocks: int) -> None:
        self._known[replica, prefix_id] = blocks
        self.told[replica].append((self._context.now_ns, prefix_id, blocks))


def crowded(seed: int, n: int = 60) -> RequestTable:
    """Prompts of few families, long answers, more of both than the pool holds."""
    rng = np.random.default_rng(seed)
    prompts, family = rng.integers(4, 90, n), rng.integers(0, 5, n)
    ids = [[f * 100 + j for j in range(-(-p // 8))] for f, p in zip(family, prompts, strict=True)]
    return request_table(
        np.cumsum(rng.choice([0.0, 0.005, 0.03, 0.2], n)),
        prompts,
        rng.integers(1, 100, n),
        chains=chains_of(ids, prompts.tolist(), 8),
    )


def watched(
    table: RequestTable, when: Watch, engine: EngineConfig, cost: AffineCost, roles: list[Role]
) -> tuple[list[Notebook], int]:
    """The notebooks of a run, one a router, and how many rows its steps took."""
    books: list[Notebook] = []

    def make(context: RoutingContext) -> Router:
        books.append(Notebook(context, when=when))
        return books[-1]

    make_scheduler: Callable[[], Any] = scheduler_factory("fcfs", SCHEDULERS)
    pools = tuple(
        PoolConfig(
            engine=engine,
            cost=cost,
            make_scheduler=make_scheduler,
            make_router=make,
            replicas=2,
            name=role,
            role=role,
        )
        for role in roles
    )
    transfer = None if roles == ["mixed"] else AT_ONCE
    log = run_cluster(table, Fleet(pools=pools, transfer=transfer))
    return books, sum(len(steps) for steps in log.steps)


@pytest.mark.parametrize("when", WATCHES)
@settings(deadline=None, max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    seed=st.integers(0, 10_000),
    cost=COSTS | st.just(IN_STEP),
    roles=st.sampled_from([["mixed"], ["prefill", "decode"], ["decode", "prefill"]]),
    is_async=st.booleans(),
)
def test_jumps_tell_what_steps_tell(
    when: Watch, seed: int, cost: AffineCost, roles: list[Role], is_async: bool
) -> None:
    """Jumps and steps give equal knowledge at every choice and, unless deferred, equal changes
    in order."""
    engine = replace(TIGHT, async_scheduling=is_async)
    table = crowded(seed)
    stepped, _ = watched(table, when, replace(engine, fast_forward=False), cost, roles)
    jumped, _ = watched(table, when, engine, cost, roles)
    for one, other in zip(stepped, jumped, strict=True):
        assert one.choices == other.choices
        if when != "deferred":
            assert one.told == other.told


def test_an_index_that_asks_lets_engines_jump() -> None:
    """Being told at once costs the jumps over evictions; asking does not."""
    table, cost = crowded(1, 200), AffineCost()
    rows = {when: watched(table, when, TIGHT, cost, ["mixed"])[1] for when in WATCHES}
    assert rows["deferred"] == rows["deferred_timed"] < 0.7 * rows["immediate"]


@pytest.mark.parametrize("is_async", [True, False])
def test_engines_that_plan_in_one_instant_do_so_in_order(is_async: bool) -> None:
    """A prefill engine that asks sees what decode engines numbered before it evict just then, and
    not what those after it do."""
    engine = replace(TIGHT, async_scheduling=is_async)
    for roles in (["decode", "prefill"], ["prefill", "decode"]):
        for seed in range(4):
            table = crowded(seed)
            stepping = replace(engine, fast_forward=False)
            (one, _), (other, _) = (
                watched(table, "deferred", config, IN_STEP, roles)  # type: ignore[arg-type]
                for config in (stepping, engine)
            )
            for stepped, jumped in zip(one, other, strict=True):
                assert stepped.choices == jumped.choices
