"""Hits by LRU capacity in one pass: equal to a simulated LRU, block by block, and much faster."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from statistics import median
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.build.builder import build
from scenarios.files.load import parse_scenario
from sim.arrays import Int64
from sim.clock import NS_PER_S
from sim.errors import TraceError
from sim.fleet.cluster import run_cluster
from sim.kv.pool import KVCache
from sim.request import Request
from sim.request_table import PrefixChains, RequestTable
from tests.properties.checkout import SHARED
from tests.properties.tables import chains_of
from workloads.chains import regroup
from workloads.readers.detect import read_trace
from workloads.replay import draw_sessions, replayed
from workloads.reuse import NEVER, HitCurve, hit_curve, stack_distances, sums_before_below

TRACES = SHARED / "data" / "traces"
BLOCK_TOKENS = 4
HOUR_NS = 3600 * NS_PER_S

# Workload notes, table 3.1: token hit rate of the Mooncake conversation trace by blocks of LRU.
MOONCAKE_LRU = {
    500: 0.0430,
    1_000: 0.0454,
    2_000: 0.0554,
    5_000: 0.1140,
    10_000: 0.2157,
    20_000: 0.2935,
    50_000: 0.3615,
    100_000: 0.3708,
    1_000_000: 0.3736,
}


def lru_hit_tokens(chains: PrefixChains, prompt_tokens: Int64, capacity: int, since: int) -> int:
    """A plain LRU, a block at a time."""
    held: OrderedDict[int, None] = OrderedDict()
    hit_tokens = 0
    for row, tokens in enumerate(prompt_tokens.tolist()):
        chain = chains.ids[chains.offsets[row] : chains.offsets[row + 1]].tolist()
        leading = next((i for i, block in enumerate(chain) if block not in held), len(chain))
        if row >= since:
            hit_tokens += min(leading * chains.block_tokens, tokens)
        for block in reversed(chain):
            held.pop(block, None)
            held[block] = None
            if len(held) > capacity:
                held.popitem(last=False)
    return hit_tokens


def engine_hit_tokens(chains: PrefixChains, prompt_tokens: Int64, capacity: int) -> int:
    """The pool of an engine that serves one request after another; each must fit."""
    block_tokens = chains.block_tokens
    whole_blocks = np.diff(chains.offsets) * block_tokens
    kv = KVCache(capacity + 1, block_tokens, chains=replace(chains, tokens=whole_blocks))
    hit_tokens = 0
    for row, tokens in enumerate(whole_blocks.tolist()):
        request = Request(row, 0, tokens, 1, num_target_tokens=tokens + 1)
        hit = kv.lookup(request)
        hit_tokens += min(hit.blocks * block_tokens, int(prompt_tokens[row]))
        kv.pin(request, hit)
        assert kv.extend(request, tokens)
        kv.register(request, tokens)
        kv.release(request, tokens, will_return=False)
    return hit_tokens


@st.composite
def trees_of_chains(draw: st.DrawFn) -> tuple[PrefixChains, Int64]:
    """Requests that go down a random tree, often a path taken before; the last block is partial."""
    children: dict[tuple[int, int], int] = {}
    chains, tokens = [], []
    for _ in range(draw(st.integers(1, 14))):
        block, chain = -1, []
        for branch in draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), max_size=7)):
            block = children.setdefault((block, branch), len(children))
            chain.append(block)
        chains.append(chain)
        missing = draw(st.integers(0, BLOCK_TOKENS - 1)) if chain else 0
        tokens.append(max(len(chain) * BLOCK_TOKENS - missing, 1))
    return chains_of(chains, tokens, BLOCK_TOKENS), np.array(tokens)


@st.composite
def sets_of_blocks(draw: st.DrawFn) -> tuple[PrefixChains, Int64]:
    """Chains whose ids are no prefixes: any order, any parent, but no id twice."""
    blocks = st.lists(st.integers(0, 6), unique=True, max_size=5)
    chains = draw(st.lists(blocks, min_size=1, max_size=14))
    tokens = [max(len(chain) * BLOCK_TOKENS, 1) for chain in chains]
    return chains_of(chains, tokens, BLOCK_TOKENS), np.array(tokens)


@settings(deadline=None, max_examples=150)
@given(trees_of_chains() | sets_of_blocks(), st.data())
def test_equals_a_plain_lru_at_every_capacity(
    workload: tuple[PrefixChains, Int64], data: st.DataObject
) -> None:
    chains, tokens = workload
    since = data.draw(st.integers(0, len(tokens)))
    curve = hit_curve(chains, tokens, since=since)
    capacities = np.arange(len(chains.ids) + 2)
    simulated = [lru_hit_tokens(chains, tokens, int(c), since) for c in capacities]
    assert curve.hits_at(capacities).tolist() == simulated
    assert curve.possible_tokens == simulated[-1]
    assert curve.prompt_tokens == tokens[since:].sum()


@settings(deadline=None)
@given(trees_of_chains())
def test_equals_the_engines_pool_where_every_request_fits(
    workload: tuple[PrefixChains, Int64],
) -> None:
    chains, tokens = workload
    longest = int(np.diff(chains.offsets).max())
    curve = hit_curve(chains, tokens)
    for capacity in range(max(longest, 1), len(chains.ids) + 2):
        simulated = engine_hit_tokens(chains, tokens, capacity)
        assert curve.hits_at(capacity) == simulated


@settings(deadline=None)
@given(trees_of_chains(), st.floats(0.01, 1))
def test_the_capacity_for_a_share_is_the_least(
    workload: tuple[PrefixChains, Int64], share: float
) -> None:
    curve = hit_curve(*workload)
    capacity = curve.capacity_for(share)
    assert curve.hits_at(capacity) >= share * curve.possible_tokens
    if capacity:
        assert curve.hits_at(capacity - 1) < share * curve.possible_tokens


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-5, 5)), max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.integers(-11, 11)), max_size=9),
)
def test_sums_of_what_lies_before_and_below(
    points: list[tuple[int, int]], queries: list[tuple[int, int]]
) -> None:
    keys, weights = np.array(points, np.int64).reshape(-1, 2).T
    ends, below = np.array(queries, np.int64).reshape(-1, 2).T
    ends = np.minimum(ends, len(keys))
    expected = [sum(w for k, w in points[:e] if k < b) for e, b in zip(ends, below, strict=True)]
    sums = sums_before_below(keys, np.stack((weights, 2 * weights)), ends, below)
    assert sums.tolist() == [expected, [2 * s for s in expected]]


@settings(deadline=None)
@given(trees_of_chains() | sets_of_blocks())
def test_distances_are_places_in_the_stack(workload: tuple[PrefixChains, Int64]) -> None:
    chains, _ = workload
    stack: list[int] = []
    places = []
    for start, end in pairwise(chains.offsets):
        chain = chains.ids[start:end].tolist()
        places += [stack.index(block) + 1 if block in stack else NEVER for block in chain]
        stack = chain + [block for block in stack if block not in chain]
    assert stack_distances(chains).tolist() == places


def test_blocks_of_two_requests_are_no_run() -> None:
    """Side by side in the list of accesses, but one the last of its request, one the first."""
    chains = chains_of([[1, 2], [3, 4], [2, 3]], [8, 8, 8], 4)
    assert stack_distances(chains)[-2:].tolist() == [4, 1]
    assert hit_curve(chains, chains.tokens).hits_at([3, 4]).tolist() == [0, 8]


def test_distances_of_a_small_case() -> None:
    chains = chains_of([[1, 2, 3], [1, 7], [1, 2, 3, 4], [8], [1, 7]], [12, 8, 16, 4, 8], 4)
    # Turns: 3 2 1, 7 1, 4 3 2 1, 8, 7 1. Just before the third request: 1 7 2 3, youngest first.
    expected = [NEVER] * 3 + [1, NEVER] + [1, 3, 4, NEVER] + [NEVER] + [2, 6]
    assert stack_distances(chains).tolist() == expected
    curve = hit_curve(chains, chains.tokens)
    assert curve.hits_at([0, 1, 2, 3, 4, 5, 6]).tolist() == [0, 8, 12, 16, 20, 20, 24]
    assert curve.fraction_at(6) == 24 / 48
    assert (curve.capacity_for(0.5), curve.capacity_for(1)) == (2, 6)


def test_hits_end_with_the_prompt() -> None:
    """Chains may go on over the output, and a cached prompt may end within a block."""
    chains = chains_of([[1, 2], [1, 2, 3], [1, 2, 3]], [8, 12, 12], 4, covers_output=True)
    curve = hit_curve(chains, np.array([3, 8, 9]))
    assert curve.hits_at([1, 2, 3]).tolist() == [8, 16, 17]


def test_nothing_to_hit() -> None:
    curve = hit_curve(chains_of([[], []], [1, 1], 4), np.array([1, 1]))
    assert (curve.possible_tokens, curve.capacity_for(0.9), int(curve.hits_at(5))) == (0, 0, 0)
    empty = hit_curve(chains_of([], [], 4), np.zeros(0, np.int64))
    assert np.isnan(empty.fraction_at(1))
    with pytest.raises(ValueError, match="share_of_possible is 0"):
        empty.capacity_for(0)


def test_a_block_twice_in_one_chain_is_refused() -> None:
    with pytest.raises(TraceError, match="block 5 stands twice in the chain of request 1"):
        stack_distances(chains_of([[1], [5, 6, 5]], [4, 12], 4))


@pytest.fixture(scope="module")
def mooncake() -> RequestTable:
    path = TRACES / "mooncake_conversation.jsonl.gz"
    if not path.exists():
        pytest.skip("the Mooncake trace (shared/data/traces) is not here")
    return read_trace(path)


def test_the_mooncake_table_to_the_digit(mooncake: RequestTable) -> None:
    assert mooncake.chains is not None
    fraction = hit_curve(mooncake.chains, mooncake.prompt_tokens).fraction_at([*MOONCAKE_LRU])
    assert np.round(fraction, 4).tolist() == [*MOONCAKE_LRU.values()]


def test_one_pass_is_twenty_times_faster_than_nine_simulations(mooncake: RequestTable) -> None:
    """One simulation, where most is evicted, stands for the nine."""
    chains, tokens = mooncake.chains, mooncake.prompt_tokens
    assert chains is not None
    one_pass_s = []
    for _ in range(3):
        started_s = perf_counter()
        curve = hit_curve(chains, tokens)
        one_pass_s.append(perf_counter() - started_s)
    started_s = perf_counter()
    simulated = engine_hit_tokens(chains, tokens, 500)
    nine_s = 9 * (perf_counter() - started_s)
    assert curve.hits_at(500) == simulated
    assert nine_s > 20 * median(one_pass_s), f"{nine_s:.2f} s against {one_pass_s}"


@pytest.fixture(scope="module")
def agentic() -> RequestTable:
    """Sessions with clocks of their own, their prefixes in blocks of 512 tokens."""
    path = TRACES / "weka_agentic_a.csv.gz"
    if not path.exists():
        pytest.skip("the agentic trace (shared/data/traces) is not here")
    recorded = read_trace(path)
    assert recorded.chains is not None
    return replace(recorded, chains=regroup(recorded.chains, 512))


def curve_after_an_hour(table: RequestTable) -> HitCurve:
    assert table.chains is not None
    first = int(np.searchsorted(table.arrival_ns, HOUR_NS))
    return hit_curve(table.chains, table.prompt_tokens, since=first)


@pytest.mark.slow
def test_agentic_sessions_fall_off_a_cliff(agentic: RequestTable) -> None:
    """Workload notes, table 3.2: .042, .473, .822 and .934 of the tokens at these capacities.

    Those are of one draw of sessions, of which two thirds are staged; draws differ by 0.1 at the
    cliff, so this is the mean of six.
    """
    capacities = np.array([2_000_000, 5_000_000, 10_000_000, 20_000_000])
    fractions = []
    for seed in range(6):
        table = draw_sessions(agentic, 200, duration_s=3 * 3600, seed=seed)
        fractions.append(curve_after_an_hour(table).fraction_at(capacities // 512))
        print(f"seed {seed}:", *(f"{fraction:.3f}" for fraction in fractions[-1]))
    at_2m, at_5m, at_10m, at_20m = np.mean(fractions, axis=0)
    assert at_2m < 0.1
    assert 0.4 < at_5m < 0.6
    assert 0.78 < at_10m < 0.88
    assert at_20m > 0.9


@pytest.mark.slow
def test_an_engine_with_many_requests_at_once_hits_about_as_much(agentic: RequestTable) -> None:
    """Llama-3.1-8B on 8 x H200 (memory for the KV cache aside): open loop, and closed beside it.

    Blocks of running requests cannot be evicted and prompts are inserted when they are computed,
    so the engine may hit less than the table of stack distances. In the closed loop a request is
    sent when the answer before it is there: what lies between two turns depends on the engine.
    """
    scenario = parse_scenario(
        {
            "model": "llama-3.1-8b",
            "hardware": {"gpu": "H200"},
            "engine": {"tensor_parallel_size": 8},
            "workload": {"preset": "azure-conv"},
        }
    )
    pool = build(scenario).pool
    table = draw_sessions(agentic, 30, duration_s=3 * 3600, seed=0)
    curve = curve_after_an_hour(table)
    for capacity in (2_000_000, 5_000_000):
        engine = replace(pool.engine, replica_blocks=capacity // 16 + 1, max_model_len=1_000_000)
        hits = {}
        for how in ("open", "closed"):
            sent = replayed(table, how)
            requests = run_cluster(
                sent, replace(pool, engine=engine), until_ns=3 * HOUR_NS
            ).requests
            is_counted = np.array(requests.arrival_ns) >= HOUR_NS
            is_counted &= np.array(requests.first_token_ns) > 0
            tokens = sent.prompt_tokens[is_counted].sum()
            hits[how] = float(np.array(requests.cached_tokens)[is_counted].sum() / tokens)
        expected = float(curve.fraction_at(capacity // 512))
        print(f"{capacity:,} tokens: stack distances {expected:.3f}, engine {hits}")
        assert hits["open"] == pytest.approx(expected, abs=0.06)
        assert hits["closed"] > 0.5
