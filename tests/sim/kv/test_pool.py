"""The paged pool and its prefix cache: ownership, hits, and the order of eviction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.errors import ScenarioError
from sim.kv.pool import KVCache
from sim.request import Request
from sim.request_table import PrefixChains
from tests.properties.checkout import SHARED
from tests.properties.tables import chains_of
from workloads.readers.detect import read_trace

# Workload notes, table 3.1: LRU hit rate of the Mooncake conversation trace by capacity in blocks.
MOONCAKE_LRU = {
    500: 0.0430,
    1_000: 0.0454,
    2_000: 0.0554,
    5_000: 0.1140,
    10_000: 0.2157,
    20_000: 0.2935,
    50_000: 0.3615,
    100_000: 0.3708,
    200_000: 0.3736,
}


def prefill(kv: KVCache, index: int, prompt_tokens: int) -> Request:
    """Admit a request and compute its whole prompt."""
    request = Request(index, 0, prompt_tokens, 1, num_target_tokens=prompt_tokens)
    hit = kv.lookup(request)
    assert kv.fits(request, hit)
    kv.pin(request, hit)
    assert kv.extend(request, prompt_tokens)
    request.num_computed_tokens = prompt_tokens
    kv.register(request, prompt_tokens)
    return request


def finish(kv: KVCache, request: Request) -> None:
    """Free a finished request."""
    kv.release(request, request.num_computed_tokens, will_return=False)


def small_cache(chains: list[list[int]], tokens: list[int], blocks: int, ids: int = 4) -> KVCache:
    """Blocks of 4 tokens, ``blocks`` usable ones."""
    return KVCache(blocks + 1, 4, chains=chains_of(chains, tokens, ids))


@pytest.mark.parametrize(
    ("capacity", "hit_rate"),
    [
        # All columns at once, from stack distances: tests/workloads/test_stack_distance.py.
        pytest.param(*column, marks=() if column[0] in (500, 10_000) else pytest.mark.slow)
        for column in MOONCAKE_LRU.items()
    ],
)
def test_lru_table_of_the_mooncake_conversation_trace(capacity: int, hit_rate: float) -> None:
    """Rule: every block touched, tail first; inserted at arrival; the last partial one counts."""
    trace = SHARED / "data" / "traces" / "mooncake_conversation.jsonl.gz"
    if not trace.exists():
        pytest.skip("the Mooncake trace (shared/data/traces) is not here")
    table = read_trace(trace)
    assert table.chains is not None
    block_tokens = table.chains.block_tokens
    whole_blocks = np.diff(table.chains.offsets) * block_tokens
    kv = KVCache(capacity + 1, block_tokens, chains=replace(table.chains, tokens=whole_blocks))
    hit_tokens = 0
    for index, tokens in enumerate(whole_blocks.tolist()):
        request = Request(index, 0, tokens, 1, num_target_tokens=tokens + 1)
        hit = kv.lookup(request)
        hit_tokens += min(hit.blocks * block_tokens, int(table.prompt_tokens[index]))
        kv.pin(request, hit)
        assert kv.extend(request, tokens)
        kv.register(request, tokens)
        kv.release(request, tokens, will_return=False)
        assert kv.free_blocks == capacity
    assert round(hit_tokens / int(table.prompt_tokens.sum()), 4) == hit_rate


def test_a_finished_prompt_is_hit_but_for_its_last_token() -> None:
    kv = small_cache([[1, 2, 3], [1, 2, 3], [1, 2, 9]], [12, 12, 12], blocks=10)
    finish(kv, prefill(kv, 0, 12))
    again = Request(1, 0, 12, 1, num_target_tokens=12)
    assert kv.lookup(again).blocks == 2  # the last block is computed again, to sample from
    other = Request(2, 0, 12, 1, num_target_tokens=12)
    assert kv.lookup(other).blocks == 2


def test_running_requests_share_blocks_and_hold_them_once() -> None:
    kv = small_cache([[1, 2, 3], [1, 2, 4]], [12, 12], blocks=10)
    first = prefill(kv, 0, 12)
    second = prefill(kv, 1, 12)
    assert kv.free_blocks == 10 - 4
    finish(kv, first)
    assert kv.free_blocks == 10 - 3
    finish(kv, second)
    assert kv.free_blocks == 10


def test_hits_nobody_holds_count_against_the_free_blocks() -> None:
    kv = small_cache([[1, 2], [7, 8], [1, 2, 3, 4]], [8, 8, 16], blocks=4)
    finish(kv, prefill(kv, 0, 8))
    holder = prefill(kv, 1, 8)
    request = Request(2, 0, 16, 1, num_target_tokens=16)
    hit = kv.lookup(request)
    assert (hit.blocks, hit.evictable, kv.free_blocks) == (2, 2, 2)
    assert not kv.fits(request, hit)
    finish(kv, holder)
    assert kv.fits(request, kv.lookup(request))


def test_the_oldest_tail_is_evicted_first() -> None:
    chains = [[1, 2, 3], [5, 6], [9, 10, 11, 12], [1, 2, 3], [5, 6]]
    kv = small_cache(chains, [12, 8, 16, 13, 9], blocks=6)
    finish(kv, prefill(kv, 0, 12))
    finish(kv, prefill(kv, 1, 8))
    finish(kv, prefill(kv, 2, 16))  # takes the empty block, then blocks 3, 2 and 1 of the first
    assert kv.lookup(Request(3, 0, 13, 1, num_target_tokens=13)).blocks == 0
    assert kv.lookup(Request(4, 0, 9, 1, num_target_tokens=9)).blocks == 2


def test_part_of_an_id_can_be_resident() -> None:
    # Ids of 16 tokens over blocks of 4: eviction takes a node's blocks from its tail.
    kv = small_cache([[1, 2], [3], [1, 2]], [32, 16, 32], blocks=9, ids=16)
    finish(kv, prefill(kv, 0, 32))
    finish(kv, prefill(kv, 1, 12))
    assert kv.lookup(Request(2, 0, 32, 1, num_target_tokens=32)).blocks == 6


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    kv = KVCache(11, 4)
    request = prefill(kv, 0, 30)
    kv.release(request, 30, will_return=True)
    assert kv.free_blocks == 10
    assert kv.lookup(request).blocks == 7
    other = prefill(kv, 1, 16)  # three empty blocks, then the preempted one's tail
    assert kv.lookup(request).blocks == 6
    finish(kv, other)
    assert kv.free_blocks == 10


def test_without_prefix_caching_nothing_is_hit() -> None:
    kv = KVCache(11, 4, prefix_caching=False, chains=chains_of([[1], [1]], [4, 4], 4))
    finish(kv, prefill(kv, 0, 4))
    assert kv.lookup(Request(1, 0, 8, 1, num_target_tokens=8)).blocks == 0


@pytest.mark.parametrize(("block_size", "hit_blocks"), [(4, 3), (8, 1), (16, 0)])
def test_ids_smaller_than_a_block_are_combined(block_size: int, hit_blocks: int) -> None:
    chains = chains_of([[1, 2, 3, 4], [1, 2, 3, 5]], [16, 16], 4)
    kv = KVCache(40, block_size, chains=chains)
    finish(kv, prefill(kv, 0, 16))
    assert kv.lookup(Request(1, 0, 17, 1, num_target_tokens=17)).blocks == hit_blocks


@pytest.mark.parametrize(("block_size", "block_tokens"), [(16, 24), (32, 48)])
def test_ids_that_do_not_line_up_with_blocks_are_refused(
    block_size: int, block_tokens: int
) -> None:
    chains: PrefixChains = chains_of([[1]], [block_tokens], block_tokens)
    with pytest.raises(ScenarioError, match="block_size"):
        KVCache(10, block_size, chains=chains)
