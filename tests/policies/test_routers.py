"""Routers: which replica gets a request, and what each router guarantees."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import ROUTERS, SCHEDULERS
from policies.routers.cache_index import CacheIndex
from policies.routers.consistent_hash import ConsistentHash
from policies.routers.power_of_two import PowerOfTwo
from policies.routers.preble import Preble
from policies.routers.prefix_affinity import PrefixAffinity
from policies.routers.random import Random
from policies.routers.session_sticky import SessionSticky
from scenarios.build.plugins import load_attribute, scheduler_factory
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import PoolConfig
from sim.fleet.routing import Replicas
from sim.kv.block_hashes import BlockHashes
from sim.kv.pool import KVCache
from sim.protocols import ReplicaLoad, Router, RoutingContext
from sim.request import Request, Status
from sim.request_table import RequestTable, request_table
from tests.properties.costs import AffineCost
from tests.properties.routing import Bench
from tests.properties.tables import chains_of, table_of

ENGINE = EngineConfig(
    step_token_limit=512, running_seq_limit=8, max_model_len=400, block_size=8, replica_blocks=150
)


def ask(index: int) -> Request:
    return Request(index, 0, 100, 10)


def run(table: RequestTable, make_router: Callable[[RoutingContext], Router], n: int) -> RunLog:
    pool = PoolConfig(
        engine=ENGINE,
        cost=AffineCost(),
        make_scheduler=scheduler_factory("fcfs", SCHEDULERS),
        make_router=make_router,
        replicas=n,
    )
    return run_cluster(table, pool)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_all_requests(name: str) -> None:
    table = table_of(*[(0.01 * i, 50 + i % 7, 5 + i % 11) for i in range(200)])
    log = run(table, load_attribute(ROUTERS[name]), 3)
    assert set(log.requests.status) == {Status.FINISHED}
    assert set(log.requests.replica) <= {0, 1, 2}


def test_two_choices_balance_better_than_one() -> None:
    """n requests into n replicas: the fullest has about log n / log log n, or log log n."""
    n = 4_096
    fullest = {}
    for kind in (Random, PowerOfTwo):
        router = kind(Bench(n))
        loads = [0] * n
        for index in range(n):
            replica = router.choose(ask(index))
            loads[replica] += 1
            router.publish(replica, ReplicaLoad(0, loads[replica]))
        fullest[kind] = max(loads)
    assert fullest[PowerOfTwo] <= 4 < fullest[Random]


def test_a_session_stays_where_it_began() -> None:
    bench = Bench(5, sessions={i: i % 9 for i in range(90)})
    router = SessionSticky(bench)
    chosen: dict[int, set[int]] = {}
    for index in range(90):
        replica = router.choose(ask(index))
        chosen.setdefault(index % 9, set()).add(replica)
        router.publish(replica, ReplicaLoad(0, index))
    assert all(len(replicas) == 1 for replicas in chosen.values())
    assert len(set.union(*chosen.values())) == 5


@given(st.integers(2, 9), st.floats(1, 3), st.lists(st.integers(0, 5), max_size=200))
def test_no_replica_gets_more_than_its_bound(n: int, bound: float, keys: list[int]) -> None:
    """However skewed the keys: at most the bound times the mean, the new request counted in."""
    bench = Bench(n, sessions=dict(enumerate(keys)))
    router = ConsistentHash(bench, load_bound=bound)
    loads = [0] * n
    for index in range(len(keys)):
        replica = router.choose(ask(index))
        loads[replica] += 1
        router.publish(replica, ReplicaLoad(0, loads[replica]))
        assert loads[replica] <= math.ceil(bound * (index + 1) / n)


def test_one_more_replica_moves_only_its_share_of_keys() -> None:
    bench = [Bench(n, sessions={i: i for i in range(3_000)}) for n in (10, 11)]
    before, after = (ConsistentHash(one, load_bound=None) for one in bench)
    moved = [i for i in range(3_000) if before.choose(ask(i)) != after.choose(ask(i))]
    assert all(after.choose(ask(i)) == 10 for i in moved)
    assert len(moved) / 3_000 == pytest.approx(1 / 11, abs=0.04)


def test_affinity_follows_the_prefix_until_the_bound() -> None:
    bench = Bench(4, prefixes={i: [1, 2, 3] for i in range(100)})
    router = PrefixAffinity(bench, load_bound=2.0)
    assert bench.watcher is not None
    for prefix in (1, 2, 3):
        bench.watcher(2, prefix, 1)
    loads = [0] * 4
    for index in range(8):
        replica = router.choose(ask(index))
        loads[replica] += 1
        router.publish(replica, ReplicaLoad(0, loads[replica]))
    # Twice the mean of 8 over 4 is 4; the others share what does not fit.
    assert loads[2] == 4
    assert sorted(loads) == [1, 1, 2, 4]


def test_without_a_bound_affinity_makes_a_hot_spot() -> None:
    bench = Bench(4, prefixes={i: [1] for i in range(50)})
    router = PrefixAffinity(bench, load_bound=None)
    assert bench.watcher is not None
    bench.watcher(3, 1, 1)
    assert Counter(router.choose(ask(i)) for i in range(50)) == {3: 50}


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (PrefixAffinity, "load_bound", 0.5),
        (PrefixAffinity, "min_share", 2.0),
        (PrefixAffinity, "cache_delay_s", -1.0),
        (Preble, "window_s", 0.0),
        (Preble, "imbalance", 0.5),
    ],
)
def test_options_out_of_range_are_refused(kind: Any, option: str, value: float) -> None:
    with pytest.raises(ScenarioError, match=option):
        kind(Bench(2), **{option: value})


class Spy:
    """A router that compares the index with what the engines really cache, at every choice."""

    def __init__(self, context: RoutingContext, *, delay_s: float) -> None:
        assert isinstance(context, Replicas)
        self._context = context
        self._index = CacheIndex(context, delay_s)
        self._late = delay_s > 0
        self._next = 0
        self.agreed = self.differed = 0

    def choose(self, request: Request) -> int:
        ids = self._context.prefix_ids(request)
        depth, holders = self._index.deepest(ids)
        truth = {
            position: {
                replica
                for replica, engine in enumerate(self._context._engines)
                if is_cached(engine.view.kv, ids[position])
            }
            for position in range(len(ids))
        }
        found = max((p + 1 for p, holding in truth.items() if holding), default=0)
        same = depth == found and (not found or set(holders) == truth[found - 1])
        self.agreed += same
        self.differed += not same
        self._next = (self._next + 1) % self._context.num_replicas
        return self._next

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Ignore the published load."""


def is_cached(kv: KVCache, prefix_id: int) -> bool:
    assert isinstance(kv.index, BlockHashes)
    node = kv.index._nodes.get(prefix_id)
    return node is not None and node.resident > 0


def prefixed_table(n: int, num_families: int = 6) -> RequestTable:
    rng = np.random.default_rng(5)
    prompts = rng.integers(20, 200, n)
    families = rng.integers(0, num_families, n)
    ids = [[f * 100 + j for j in range(-(-p // 8))] for f, p in zip(families, prompts, strict=True)]
    return request_table(
        np.cumsum(rng.exponential(0.02, n)),
        prompts,
        rng.integers(1, 40, n),
        chains=chains_of(ids, prompts.tolist(), 8),
    )


@pytest.mark.parametrize("delay_s", [0.0, 0.5])
def test_the_cache_index_knows_what_engines_cache(delay_s: float) -> None:
    """Without delay, always; with one, not always."""
    spies: list[Spy] = []

    def make(context: RoutingContext) -> Router:
        spies.append(Spy(context, delay_s=delay_s))
        return spies[0]

    run(prefixed_table(300), make, 3)
    assert spies[0].agreed + spies[0].differed == 300
    assert (spies[0].differed > 0) == (delay_s > 0)


def test_affinity_hits_more_than_chance() -> None:
    table = prefixed_table(400, num_families=40)
    hits = {}
    for name in ("random", "prefix_affinity"):
        log = run(table, load_attribute(ROUTERS[name]), 4)
        hits[name] = int(np.frombuffer(log.requests.cached_tokens, np.int64).sum())
    assert hits["prefix_affinity"] > 1.2 * hits["random"]


def test_least_work_sends_a_short_prompt_past_a_long_one() -> None:
    table = table_of((0.0, 390, 2), (0.0, 10, 2), (0.001, 10, 2))
    log = run(table, load_attribute(ROUTERS["least_work"]), 2)
    assert list(log.requests.replica) == [0, 1, 1]
    by_count = run(table, partial(load_attribute(ROUTERS["least_loaded"])), 2)
    assert list(by_count.requests.replica) == [0, 1, 0]


def test_preble_exploits_long_hits_and_explores_for_the_rest() -> None:
    """8 tokens an id, 1 ms a token; answers count nothing here."""
    prefixes = {0: [1, 2, 3, 9], 1: [1, 7, 8, 9], 2: [1, 2, 3, 8], 3: [1, 2, 3, 7]}
    bench = Bench(2, prefixes=prefixes)
    router = Preble(bench, decode_tokens=0, window_s=10, imbalance=2.0)
    assert bench.watcher is not None
    for prefix in (1, 2, 3):
        bench.watcher(1, prefix, 1)
    chosen = [router.choose(Request(index, 0, 32, 1)) for index in range(2)]
    # The first has 24 of 32 tokens cached at replica 1, which no work tells against; the second
    # has 8 of them there, where 8 have been sent: 32 tokens at 0 come as soon as 8 and 24 at 1.
    assert chosen == [1, 0]
    # Replica 1 has 8 tokens of work, the other 32: exploited. In the next window as well.
    assert router.choose(Request(2, 0, 32, 1)) == 1
    bench.now_ns = 11 * 10**9
    assert router.choose(Request(3, 0, 32, 1)) == 1
    router.down(1)
    assert router.choose(Request(2, 0, 32, 1)) == 0


def test_an_index_looks_at_one_holder_where_that_is_enough() -> None:
    """A prefix that every replica has costs a choice no more than one that few have."""
    asked: list[int] = []
    bench = Bench(50, prefixes={i: [1] for i in range(100)})
    bench.catch_up = asked.append  # type: ignore[method-assign, assignment]
    router = PrefixAffinity(bench)
    assert bench.watcher is not None
    for replica in range(50):
        bench.watcher(replica, 1, 1)
    loads = [0] * 50
    for index in range(100):
        replica = router.choose(ask(index))
        loads[replica] += 1
        router.publish(replica, ReplicaLoad(0, loads[replica]))
    assert set(loads) == {2}
    assert len(asked) == 100
