"""Tiers below device memory: what is found where, and what moving it takes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import simpy
from hypothesis import given

from policies.vtc import VirtualTokenCounter
from sim.accounts import ADMISSION_QUEUE, CACHE_LOAD, LAUNCH_AND_HOST, TIME_ACCOUNTS
from sim.books.ledger import time_books
from sim.engine.config import EngineConfig
from sim.engine.loading import exposed_ns
from sim.errors import ScenarioError
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import Fleet
from sim.fleet.service import Fault, FaultConfig, ServiceConfig
from sim.kv.eviction import CacheConfig
from sim.kv.layout import KVLayout, WindowPages
from sim.kv.pool import KVCache
from sim.kv.tier_store import Pipe, TierConfig, TierStore
from sim.kv.tiers import Tiers, TiersConfig, Write, shared_tiers
from sim.request import Request
from sim.request_table import RequestTable, request_table
from tests.properties.checkout import SHARED
from tests.properties.costs import AffineCost
from tests.properties.engines import small_pool, small_run
from tests.properties.outcome import outcome
from tests.properties.service_runs import MS
from tests.properties.tables import chains_of
from tests.properties.tiers import check_tiers
from workloads.readers.detect import read_trace

GB = 10**9
BLOCK_BYTES = 1_000_000
HOST = TierConfig(
    name="host",
    capacity_blocks=1000,
    block_bytes=BLOCK_BYTES,
    read_bytes_per_s=10 * GB,
    write_bytes_per_s=10 * GB,
    latency_ns=1000,
)
REMOTE = TierConfig(
    name="remote",
    capacity_blocks=10_000,
    block_bytes=BLOCK_BYTES,
    read_bytes_per_s=2 * GB,
    latency_ns=20_000,
    is_shared=True,
    survives_crash=True,
)
ENGINE = EngineConfig(
    step_token_limit=4096,
    running_seq_limit=8,
    max_model_len=4096,
    block_size=16,
    replica_blocks=65,
    async_scheduling=False,
)
SLOW = AffineCost(base_s=1e-3, per_token_s=1e-4, per_context_s=0.0)


def tiered(*tiers: TierConfig, **options: Any) -> CacheConfig:
    return CacheConfig(tiers=TiersConfig(tiers=tiers, **options))


def prefixed(rows: list[tuple[float, int, int, int]]) -> RequestTable:
    """(arrival_s, family, prompt tokens, output tokens): a family has one prefix, in ids of 16."""
    arrival_s, families, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    ids = [
        [1000 * family + j for j in range(-(-tokens // 16))]
        for family, tokens in zip(families.tolist(), prompts.tolist(), strict=True)
    ]
    chains = chains_of(ids, prompts.tolist(), 16)
    return request_table(arrival_s.astype(float), prompts, outputs, chains=chains)


# The second request pushes the first's prompt out of device memory; the third asks for it again.
OUT_AND_BACK = [(0.0, 1, 800, 2), (1.0, 2, 1000, 2), (2.0, 1, 800, 2)]


def account_ns(log: RunLog, account: str, request: int) -> int:
    return int(time_books(log).e2e_ns[request, TIME_ACCOUNTS.index(account)])


@pytest.mark.parametrize("write", ["through", "back"])
@pytest.mark.parametrize("index", ["block_hash", "radix"])
def test_what_was_evicted_comes_back_from_the_host(write: Write, index: Any) -> None:
    """All but the last block: 49 blocks over 10 GB/s, less what is still in device memory."""
    cache = replace(tiered(HOST, write=write, load="always"), prefix_index=index)
    log = small_run(prefixed(OUT_AND_BACK), engine=ENGINE, cost=SLOW, cache=cache)
    assert list(log.requests.cached_tokens) == [0, 0, 49 * 16]
    kept = log.requests.tier_tokens[2][0] // 16
    assert log.requests.tier_tokens == {2: {0: kept * 16, 1: (49 - kept) * 16}}
    assert kept == (64 - 63 if write == "back" else 1)
    load_ns = (49 - kept) * BLOCK_BYTES // 10 + 1000
    assert log.requests.load_ns == {2: load_ns}
    assert account_ns(log, CACHE_LOAD, 2) == load_ns
    prefill_ns = round((1e-3 + 16 * 1e-4) * 1e9)
    ttft_ns = log.requests.first_token_ns[2] - log.requests.arrival_ns[2]
    assert ttft_ns == load_ns + prefill_ns
    (way,) = log.tiers[0].ways
    assert (way.counts.loads, way.counts.loaded) == (1, 49 - kept)
    assert way.to_device.moved_bytes == way.counts.loaded * BLOCK_BYTES
    assert way.from_device.moved_bytes == way.counts.written * BLOCK_BYTES


def test_without_a_tier_it_is_computed_again() -> None:
    log = small_run(prefixed(OUT_AND_BACK), engine=ENGINE, cost=SLOW)
    assert list(log.requests.cached_tokens) == [0, 0, 16]
    never = tiered(HOST, load="never")
    assert outcome(small_run(prefixed(OUT_AND_BACK), engine=ENGINE, cost=SLOW, cache=never)) == (
        outcome(log)
    )


@pytest.mark.parametrize("layers", [1, 2, 8, 32])
def test_layer_by_layer_only_what_is_exposed_is_waited_for(layers: int) -> None:
    """Compute of 16 tokens takes 2.6 ms: a load of 4.8 ms is hidden as far as layers allow."""
    cache = tiered(HOST, load="always", layerwise=True, layers=layers)
    log = small_run(prefixed(OUT_AND_BACK), engine=ENGINE, cost=SLOW, cache=cache)
    kept = log.requests.tier_tokens[2][0] // 16
    load_ns = (49 - kept) * BLOCK_BYTES // 10 + 1000
    compute_ns = round((1e-3 + 16 * 1e-4) * 1e9)
    ends_ns = max(compute_ns + load_ns / layers, load_ns + compute_ns / layers)
    ttft_ns = log.requests.first_token_ns[2] - log.requests.arrival_ns[2]
    assert ttft_ns == pytest.approx(ends_ns, abs=2)
    assert account_ns(log, CACHE_LOAD, 2) == ttft_ns - compute_ns
    assert account_ns(log, LAUNCH_AND_HOST, 2) == account_ns(log, ADMISSION_QUEUE, 2) == 0


@given(
    begin=st.integers(0, 1000),
    load=st.integers(0, 10**6),
    start=st.integers(0, 10**6),
    compute=st.integers(1, 10**6),
    layers=st.integers(1, 40),
)
def test_the_exposed_part_is_that_of_a_pipeline(
    begin: int, load: int, start: int, compute: int, layers: int
) -> None:
    """Layer by layer: it begins when the one before is computed and its own KV is there."""
    done = float(start)
    for layer in range(1, layers + 1):
        done = max(done, begin + load * layer / layers) + compute / layers
    found = exposed_ns(begin, begin + load, start, compute, layers)
    assert found == pytest.approx(max(done - start - compute, 0), abs=2)


@pytest.mark.parametrize("bytes_per_s", [1 * GB, 2 * GB, 3 * GB])
def test_loads_where_that_is_predicted_to_be_sooner(bytes_per_s: int) -> None:
    """n blocks take latency + n b / B to load and 16 n c to compute: the crossover is where these
    meet, n = latency / (16 c - b / B)."""
    latency_ns = 30 * MS
    a_token_ns, a_block_ns = 1e5, BLOCK_BYTES / bytes_per_s * 1e9
    crossover = latency_ns / (16 * a_token_ns - a_block_ns)
    tier = replace(HOST, read_bytes_per_s=bytes_per_s, latency_ns=latency_ns)
    config = TiersConfig(tiers=(tier,), load="cheaper")
    for blocks in range(1, 60):
        kv, tiers, _ = cache_with(config, [[*range(blocks + 1)]], 100)
        tiers.ways[0].store.put((0, 0, 1))
        for prefix_id in range(blocks):
            tiers.ways[0].store.put((prefix_id, 0, 1))
        tokens = 16 * (blocks + 1)
        tiers.prefill_ns = lambda request, done: round((request.num_target_tokens - done) * 1e5)
        request = Request(0, 0, tokens, 1, num_target_tokens=tokens)
        hit = kv.lookup(request)
        found = tiers.find(request, hit, kv.hit_limit(request))
        assert sum(segment.blocks for segment in found) == blocks
        assert bool(tiers.worthwhile(request, hit, found, 16)) == (blocks > crossover)


def test_the_prediction_counts_those_ahead_in_the_queue() -> None:
    kv, tiers, _ = cache_with(TiersConfig(tiers=(HOST,)), [[1, 2]], 100)
    tiers.ways[0].store.put((1, 0, 1))
    tiers.prefill_ns = lambda request, done: (request.num_target_tokens - done) * 10_000
    request = Request(0, 0, 32, 1, num_target_tokens=32)
    hit = kv.lookup(request)
    found = tiers.find(request, hit, 1)
    assert tiers.worthwhile(request, hit, found, 16) == 1  # 0.101 ms against 0.16
    tiers.ways[0].to_device.move(0, BLOCK_BYTES)
    assert tiers.worthwhile(request, hit, found, 16) == 0  # 0.201 ms


def cache_with(
    config: TiersConfig, chains: list[list[int]], blocks: int, size: int = 16
) -> tuple[KVCache, Tiers, simpy.Environment]:
    """A pool of blocks of 16 tokens, one an id, over tiers; no engine."""
    env = simpy.Environment(initial_time=0)
    tokens = [size * len(chain) for chain in chains]
    kv = KVCache(blocks + 1, size, chains=chains_of(chains, tokens, size))
    tiers = Tiers(env, config, kv.index, shared_tiers(config))
    kv.set_over(tiers)
    return kv, tiers, env


def serve(kv: KVCache, tiers: Tiers, index: int, tokens: int) -> int:
    """Serve a request by itself, with what the tiers hold; returns the blocks it hit."""
    request = Request(index, 0, tokens, 1, num_target_tokens=tokens + 1)
    hit = kv.lookup(request)
    found = tiers.find(request, hit, kv.hit_limit(request))
    kv.pin(request, hit)
    if found:
        tiers.load(found)
    assert kv.extend(request, tokens)
    kv.register(request, tokens)
    kv.release(request, tokens, will_return=False)
    return hit.blocks + sum(segment.blocks for segment in found)


@pytest.mark.parametrize("write", ["through", "back"])
def test_an_endless_second_tier_hits_what_an_endless_cache_does(write: Write) -> None:
    """37.4% of the tokens of the Mooncake conversation trace, whatever device memory holds."""
    trace = SHARED / "data" / "traces" / "mooncake_conversation.jsonl.gz"
    if not trace.exists():
        pytest.skip("the Mooncake trace (shared/data/traces) is not here")
    table = read_trace(trace)
    assert table.chains is not None
    size, offsets = table.chains.block_tokens, table.chains.offsets
    ids = table.chains.ids.tolist()
    chains = [ids[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    endless = replace(HOST, capacity_blocks=None, read_bytes_per_s=1e18, write_bytes_per_s=1e18)
    config = TiersConfig(tiers=(replace(endless, latency_ns=0),), write=write)
    kv, tiers, env = cache_with(config, chains, 500, size)
    hit_tokens = 0
    for row, chain in enumerate(chains):
        blocks = serve(kv, tiers, row, size * len(chain))
        hit_tokens += min(blocks * size, int(table.prompt_tokens[row]))
        env.run()
    assert round(hit_tokens / int(table.prompt_tokens.sum()), 4) == 0.3736


def two_engines(cache: CacheConfig, rows: list[tuple[float, int, int, int]], *faults: Fault) -> Any:
    pool = replace(small_pool(ENGINE, cost=SLOW, replicas=2), cache=cache)
    service = ServiceConfig(faults=FaultConfig(schedule=faults, detection_ns=0))
    return run_cluster(prefixed(rows), Fleet(pools=(pool,), service=service))


def test_a_remote_pool_is_everybodys() -> None:
    """Round robin: what the first engine put there is hit by the second."""
    rows = [(0.0, 1, 800, 2), (1.0, 1, 800, 2)]
    hits = {}
    for name, tier in (("host", HOST), ("remote", REMOTE)):
        log = two_engines(tiered(tier, load="always"), rows)
        assert list(log.requests.replica) == [0, 1]
        hits[name] = log.requests.cached_tokens[1]
    assert hits == {"host": 0, "remote": 49 * 16}


def test_a_crash_loses_what_only_the_engine_had() -> None:
    """Host memory goes with the process; the remote pool keeps what was written to it."""
    rows = [(0.0, 1, 800, 2), (0.2, 9, 16, 2), (2.0, 1, 800, 2)]
    crash = Fault(at_ns=1000 * MS, kind="engine_crash", replica=0)
    for tier, kept in ((HOST, 0), (REMOTE, 49 * 16)):
        log = two_engines(tiered(tier, load="always"), rows, crash)
        assert log.requests.replica[2] == 0
        assert log.requests.cached_tokens[2] == kept
        assert log.tiers[0].ways[0].store.lost == (0 if kept else 50)
        check_tiers(log)


def test_a_write_under_way_dies_with_its_engine() -> None:
    slow = replace(REMOTE, read_bytes_per_s=50_000_000)  # a second for 50 blocks
    rows = [(0.0, 1, 800, 2), (0.2, 9, 16, 2), (3.0, 1, 800, 2)]
    crash = Fault(at_ns=500 * MS, kind="engine_crash", replica=0)
    log = two_engines(tiered(slow, load="always"), rows, crash)
    assert log.requests.cached_tokens[2] == 0
    unhurt = two_engines(tiered(slow, load="always"), rows)
    assert unhurt.requests.tier_tokens == {}  # it is in device memory
    assert unhurt.requests.cached_tokens[2] == 49 * 16


def test_those_behind_do_not_wait_for_a_load() -> None:
    slow = replace(HOST, read_bytes_per_s=50_000_000)  # a second for 50 blocks
    rows = [*OUT_AND_BACK, (2.0, 7, 100, 2)]
    log = small_run(prefixed(rows), engine=ENGINE, cost=SLOW, cache=tiered(slow, load="always"))
    finished = log.requests.finished_ns
    assert finished[3] < 2.1 * GB < 2.9 * GB < finished[2]


def test_a_fair_scheduler_charges_a_request_that_is_loaded_once() -> None:
    made: list[VirtualTokenCounter] = []

    def make() -> VirtualTokenCounter:
        made.append(VirtualTokenCounter())
        return made[-1]

    table = replace(prefixed(OUT_AND_BACK), class_index=np.zeros(3, np.int64), class_names=("a",))
    counters = []
    for load in ("never", "always"):
        log = small_run(
            table, engine=ENGINE, cost=SLOW, scheduler=make, cache=tiered(HOST, load=load)
        )
        assert bool(log.requests.tier_tokens) == (load == "always")
        counters.append(made[-1].counter(0))
    assert counters[0] == counters[1]


def test_what_falls_out_of_the_host_is_found_on_disk() -> None:
    """Written back from tier to tier; the nearest that has it is asked, both for their parts."""
    disk = replace(HOST, name="ssd", capacity_blocks=None, survives_crash=True)
    host = replace(HOST, capacity_blocks=20)
    cache = tiered(host, disk, write="back", load="always")
    rows = [*OUT_AND_BACK[:2], (2.0, 3, 1000, 2), (3.0, 1, 800, 2)]
    log = small_run(prefixed(rows), engine=ENGINE, cost=SLOW, cache=cache)
    found = log.requests.tier_tokens[3]
    assert log.requests.cached_tokens[3] == sum(found.values()) == 49 * 16
    assert found[2] > 0
    check_tiers(log)


def test_models_with_windows_have_no_tiers() -> None:
    engine = replace(ENGINE, kv_layout=KVLayout(windows=(WindowPages(64, 1),)))
    with pytest.raises(ScenarioError, match="windows"):
        small_run(prefixed(OUT_AND_BACK), engine=engine, cache=tiered(HOST))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(1, 6)), max_size=30))
def test_a_store_never_holds_more_than_it_can(puts: list[tuple[int, int, int]]) -> None:
    store = TierStore(12)
    for prefix_id, start, blocks in puts:
        gone = store.put((prefix_id, start, start + blocks))
        assert store.held <= 12
        assert store.added == store.held + store.evicted
        assert all(store.gaps(piece) == [piece] for piece in gone)
        assert store.reach(prefix_id, start) > start


def test_a_pipe_serves_one_after_the_other() -> None:
    pipe = Pipe(GB)
    assert pipe.move(0, 1000) == (0, 1000)
    assert pipe.move(500, 1001) == (1000, 2001)
    assert pipe.move(9000, 1) == (9000, 9001)
    assert (pipe.busy_ns, pipe.moved_bytes) == (2002, 2002)
    assert math.isclose(pipe.duration_ns(10), 10)
