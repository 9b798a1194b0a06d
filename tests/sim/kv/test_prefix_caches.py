"""Eviction policies and the radix tree: held blocks stay, tails go first, both indices agree."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from policies import EVICTIONS, ROUTERS, SCHEDULERS
from scenarios.build.plugins import eviction_factory
from scenarios.files.trusted import PLUGINS
from sim.engine.config import EngineConfig
from sim.errors import PolicyError, ScenarioError
from sim.kv.eviction import CacheConfig
from sim.kv.pool import KVCache
from sim.protocols import CachedContent, Eviction
from sim.request import Request
from sim.request_table import PrefixChains, RequestTable
from tests.properties.caches import CACHES, RADIX, RADIX_ENGINES, evicting
from tests.properties.checkout import CHECKOUT, SHARED
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import small_run
from tests.properties.outcome import outcome
from tests.properties.tables import chains_of, tables
from workloads.readers.detect import read_trace

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


@settings(deadline=None, max_examples=60, phases=PHASES)
@given(
    table=tables(),
    engine=RADIX_ENGINES,
    cost=COSTS,
    scheduler=st.sampled_from(list(SCHEDULERS)),
    router=st.sampled_from(list(ROUTERS)),
    policy=st.sampled_from(["lru", "ttl"]),
    replicas=st.integers(1, 2),
)
def test_a_radix_tree_hits_what_block_hashes_hit_where_ids_line_up(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    scheduler: str,
    router: str,
    policy: str,
    replicas: int,
) -> None:
    """Under pressure too: both lose the same blocks in the same order."""
    logs = [
        small_run(
            table,
            engine=engine,
            cost=cost,
            scheduler=scheduler,
            router=router,
            replicas=replicas,
            cache=replace(CACHES[policy], prefix_index=index),
        )
        for index in ("block_hash", "radix")
    ]
    assert outcome(logs[0]) == outcome(logs[1])


def serve(kv: KVCache, index: int, tokens: int) -> Request:
    """Admit a request whose content is all computed at once; returns it, still held."""
    request = Request(index, 0, tokens, 1, num_target_tokens=tokens + 1)
    kv.pin(request, kv.lookup(request))
    assert kv.extend(request, tokens)
    request.num_computed_tokens = tokens
    kv.register(request, tokens)
    return request


def done(kv: KVCache, request: Request) -> None:
    kv.release(request, request.num_computed_tokens, will_return=False)


def hit_blocks(kv: KVCache, index: int, tokens: int) -> int:
    return kv.lookup(Request(index, 0, tokens, 1, num_target_tokens=tokens + 1)).blocks


def mooncake_hits(index: Any, capacity: int) -> float:
    trace = SHARED / "data" / "traces" / "mooncake_conversation.jsonl.gz"
    if not trace.exists():
        pytest.skip("the Mooncake trace (shared/data/traces) is not here")
    table = read_trace(trace)
    assert table.chains is not None
    size = table.chains.block_tokens
    whole = np.diff(table.chains.offsets) * size
    chains = replace(table.chains, tokens=whole)
    kv = KVCache(capacity + 1, size, chains=chains, cache=CacheConfig(prefix_index=index))
    hit_tokens = 0
    for row, tokens in enumerate(whole.tolist()):
        hit_tokens += min(hit_blocks(kv, row, tokens) * size, int(table.prompt_tokens[row]))
        done(kv, serve(kv, row, tokens))
    return hit_tokens / int(table.prompt_tokens.sum())


@pytest.mark.parametrize("capacity", [pytest.param(10_000, marks=pytest.mark.slow), 1_000])
def test_both_have_the_lru_table_of_the_mooncake_trace(capacity: int) -> None:
    expected = {1_000: 0.0454, 10_000: 0.2157}[capacity]
    found = [mooncake_hits(index, capacity) for index in ("block_hash", "radix")]
    assert found[0] == found[1]
    assert round(found[1], 4) == expected


def cache_of(
    chains: list[list[int]], cache: CacheConfig, blocks: int, clock: Callable[[], int] = int
) -> KVCache:
    """Blocks and ids of 4 tokens."""
    tokens = [4 * len(chain) for chain in chains]
    return KVCache(blocks + 1, 4, chains=chains_of(chains, tokens, 4), cache=cache, clock=clock)


BOTH = pytest.mark.parametrize("index", ["block_hash", "radix"])


@BOTH
def test_lfu_keeps_what_is_hit_often(index: Any) -> None:
    chains = [[1, 2], [1, 2], [5, 6], [7, 8]]
    kv = cache_of(chains, replace(evicting("lfu"), prefix_index=index), blocks=4)
    for row in (0, 1, 2):  # the first content is used twice, and then longest not
        done(kv, serve(kv, row, 8))
    done(kv, serve(kv, 3, 8))
    assert (hit_blocks(kv, 0, 8), hit_blocks(kv, 2, 8)) == (2, 0)
    kv = cache_of(chains, CacheConfig(prefix_index=index), blocks=4)
    for row in range(4):
        done(kv, serve(kv, row, 8))
    assert (hit_blocks(kv, 0, 8), hit_blocks(kv, 2, 8)) == (0, 2)


@BOTH
def test_fifo_drops_what_came_first_though_it_was_just_hit(index: Any) -> None:
    chains = [[1, 2], [5, 6], [1, 2], [7, 8]]
    kv = cache_of(chains, replace(evicting("fifo"), prefix_index=index), blocks=4)
    for row in range(4):
        done(kv, serve(kv, row, 8))
    assert (hit_blocks(kv, 0, 8), hit_blocks(kv, 1, 8)) == (0, 2)


@BOTH
def test_fifo_drops_a_prefix_only_after_what_continues_it(index: Any) -> None:
    chains = [[1], [1, 2], [1, 2, 3], [9]]
    kv = cache_of(chains, replace(evicting("fifo"), prefix_index=index), blocks=3)
    for row in range(3):
        done(kv, serve(kv, row, 4 * len(chains[row])))
    done(kv, serve(kv, 3, 4))
    assert hit_blocks(kv, 2, 12) == 2


@BOTH
def test_a_private_rest_holds_no_more_of_a_prefix_than_comes_before_it(index: Any) -> None:
    """Ids name four blocks; the first request has two of them, and then a rest of its own."""
    chains = chains_of([[1], [1]], [8, 16], 16)
    cache = replace(evicting("fifo"), prefix_index=index)
    kv = KVCache(9, 4, chains=chains, cache=cache)
    kv.release(serve(kv, 0, 16), 16, will_return=True)
    preempted = Request(0, 0, 16, 1, num_target_tokens=17)
    kv.pin(preempted, kv.lookup(preempted))
    assert preempted.num_blocks == 4
    done(kv, serve(kv, 1, 16))
    assert (kv.free_blocks, kv.cached_free_blocks) == (4, 2)
    kv.take(4)
    assert hit_blocks(kv, 1, 16) == 2


@BOTH
def test_what_nobody_used_for_its_lifetime_is_gone(index: Any) -> None:
    now_ns = [0]
    cache = replace(evicting("ttl", seconds=1.0), prefix_index=index)
    kv = cache_of([[1, 2], [5, 6]], cache, 9, clock=lambda: now_ns[0])
    done(kv, serve(kv, 0, 8))
    now_ns[0] = 600_000_000
    held = serve(kv, 1, 8)
    for time_ns, hit, empty in ((999_999_999, 2, 5), (1_000_000_000, 0, 7)):
        now_ns[0] = time_ns
        kv.expire()
        assert (hit_blocks(kv, 0, 8), kv.empty_blocks) == (hit, empty)
    now_ns[0] = 5_000_000_000
    kv.expire()
    assert hit_blocks(kv, 1, 8) == 2  # held, however long
    done(kv, held)
    now_ns[0] = 5_900_000_000
    kv.expire()
    assert hit_blocks(kv, 1, 8) == 2  # its time began when it was let go of
    now_ns[0] = 6_000_000_000
    kv.expire()
    assert (hit_blocks(kv, 1, 8), kv.empty_blocks) == (0, 9)


@BOTH
def test_a_copy_takes_the_place_of_content_whose_lifetime_is_over(index: Any) -> None:
    """Two compute the same beside each other; the second ends after the first's copy is due."""
    now_ns = [0]
    cache = replace(evicting("ttl", seconds=1.0), prefix_index=index)
    kv = cache_of([[1, 2], [1, 2]], cache, 9, clock=lambda: now_ns[0])
    second = Request(1, 0, 8, 1, num_target_tokens=9)
    kv.pin(second, kv.lookup(second))
    assert kv.extend(second, 8)
    second.num_computed_tokens = 8
    done(kv, serve(kv, 0, 8))
    now_ns[0] = 2_000_000_000
    done(kv, second)
    kv.expire()
    assert hit_blocks(kv, 0, 8) == 2


@pytest.mark.parametrize("name", ["lfu", "fifo", "contrary", "radix, lfu", "radix, contrary"])
@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_held_content_stays_and_no_prefix_goes_before_what_continues_it(
    name: str, seed: int
) -> None:
    die = random.Random(seed)
    chains = [[1000 * (i % 3) + j for j in range(die.randint(1, 6))] for i in range(12)]
    chains = [[*chain, *(10_000 + 100 * i + j for j in range(2))] for i, chain in enumerate(chains)]
    kv = cache_of(chains, CACHES[name], blocks=20)
    held: list[Request] = []
    for row, chain in enumerate(chains):
        while held and (die.random() < 0.4 or kv.free_blocks < len(chain)):
            done(kv, held.pop(die.randrange(len(held))))
        held.append(serve(kv, row, 4 * len(chain)))
        for request in held:
            assert hit_blocks(kv, request.index, request.num_computed_tokens) * 4 == (
                request.num_computed_tokens
            )
    for request in held:
        done(kv, request)
    assert kv.free_blocks == 20
    reachable = {
        block
        for other, path in enumerate(chains)
        for block in path[: hit_blocks(kv, other, 4 * len(path))]
    }
    assert len(reachable) == kv.cached_free_blocks  # nothing is kept that nobody can hit


def test_pages_of_one_token_hit_all_but_the_last_token() -> None:
    chains = chains_of([[1, 2], [1, 2], [1, 3]], [20, 20, 20], 16)
    for block_size, hits in ((16, (1, 1)), (1, (19, 16))):
        kv = KVCache(100, block_size, chains=chains, cache=RADIX)
        done(kv, serve(kv, 0, 20))
        for row, blocks in zip((1, 2), hits, strict=True):
            assert kv.lookup(Request(row, 0, 20, 1, num_target_tokens=20)).blocks == blocks


def test_a_radix_tree_takes_ids_that_do_not_line_up_with_its_pages() -> None:
    chains: PrefixChains = chains_of([[1, 2, 3], [1, 2, 4]], [72, 72], 24)
    with pytest.raises(ScenarioError, match="block_size"):
        KVCache(100, 16, chains=chains)
    kv = KVCache(100, 16, chains=chains, cache=RADIX)
    done(kv, serve(kv, 0, 72))
    assert kv.lookup(Request(1, 0, 72, 1, num_target_tokens=72)).blocks == 3  # of 48 tokens


def by_uses(content: CachedContent) -> float:
    """Rank content by its uses, as a user's function may."""
    return content.uses


class NotANumber:
    def priority(self, content: CachedContent) -> Any:
        return "soon"


class NeverDue:
    lifetime_ns = 0.5


def made(name: str) -> Eviction:
    return eviction_factory(f"{__name__}:{name}", EVICTIONS)()


def test_a_users_own_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGINS, str(CHECKOUT))
    chains = [[1, 2], [1, 2], [5, 6], [7, 8]]
    kv = cache_of(chains, CacheConfig(make_eviction=lambda: made("by_uses")), blocks=4)
    for row in range(4):
        done(kv, serve(kv, row, 8))
    assert hit_blocks(kv, 0, 8) == 2
    kv = cache_of(chains, CacheConfig(make_eviction=lambda: made("NotANumber")), blocks=4)
    with pytest.raises(PolicyError, match="priority"):
        done(kv, serve(kv, 0, 8))
    with pytest.raises(PolicyError, match="lifetime_ns"):
        made("NeverDue")


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("lfru", "unknown eviction policy 'lfru'; did you mean"),
        ("ttl", "needs seconds"),
        ({"name": "ttl", "seconds": 0}, "seconds is 0"),
        ({"name": "lru", "seconds": 1}, "has no option 'seconds'"),
    ],
)
def test_policies_that_cannot_be_are_refused(policy: Any, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        eviction_factory(policy, EVICTIONS)
