"""The conductor, and prefixes that engines fetch from each other: costs, books and blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies import ADMISSIONS
from policies.routers.conductor import Conductor
from reports.run.answer import fleet_sentence
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.accounts import KV_TRANSFER, TIME_ACCOUNTS
from sim.books.fleet_ledgers import reuse
from sim.books.ledger import time_books
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import Fleet, PoolConfig
from sim.fleet.service import ServiceConfig
from sim.protocols import Fetch, ReplicaLoad
from sim.request import Request, Status
from sim.request_table import RequestTable, request_table
from tests.properties.costs import AffineCost
from tests.properties.handover import TRANSFER, pool
from tests.properties.routing import Bench, Scripted, used_blocks
from tests.properties.service_runs import policy
from tests.properties.tables import chains_of

ROOMY = EngineConfig(
    step_token_limit=512, running_seq_limit=8, max_model_len=800, block_size=8, replica_blocks=300
)
COST = AffineCost(base_s=1e-3, per_token_s=1e-4, per_context_s=0)


def conducted(bench: Bench, **options: Any) -> Conductor:
    """A conductor of a bench, whose replica 1 caches five prefixes of 8 tokens each."""
    router = Conductor(bench, **options)
    assert bench.watcher is not None
    for prefix in (1, 2, 3, 4, 5):
        bench.watcher(1, prefix, 1)
    return router


@pytest.mark.parametrize(
    ("queued", "bandwidth", "replica", "fetch"),
    [
        ((0, 0, 0), None, 1, None),  # where it is cached
        ((0, 30, 0), None, 1, None),  # 30 + 10 tokens come before 50
        ((0, 60, 0), None, 0, None),  # 60 + 10 do not: computed again, in the shortest queue
        ((9, 60, 0), 1e6, 2, Fetch(1, 40)),  # 40 tokens in 40 ms, and 10 to compute: as long as 50
        ((9, 60, 0), 2e6, 2, Fetch(1, 40)),  # in 20 ms: shorter
        ((9, 60, 0), 1e5, 2, None),  # in 400 ms: it is faster to compute them
    ],
)
def test_the_first_token_that_comes_first(
    queued: tuple[int, ...], bandwidth: float | None, replica: int, fetch: Fetch | None
) -> None:
    """Prompts of 50 tokens, 1 ms a token, 1,000 bytes a token."""
    bench = Bench(3, prefixes={0: [1, 2, 3, 4, 5, 6]})
    bench.fetch_bytes_per_s = bandwidth
    router = conducted(bench)
    for index, tokens in enumerate(queued):
        router.publish(index, ReplicaLoad(0, 0, tokens))
    request = Request(0, 0, 50, 10)
    assert router.choose(request) == replica
    found = router.source(request, replica)
    if bandwidth == 1e6:  # equal: not worth it
        fetch = None
    assert found == fetch
    assert router.source(request, (replica + 1) % 3) is None


def test_what_is_nearly_as_long_is_not_fetched() -> None:
    bench = Bench(2, prefixes={0: [1, 2, 3, 4, 5, 6]})
    bench.fetch_bytes_per_s = 1e12
    for threshold, fetches in ((1.2, True), (1.3, False)):  # 40 tokens against 32
        router = conducted(bench, balance_threshold=threshold)
        assert bench.watcher is not None
        for prefix in (1, 2, 3, 4):
            bench.watcher(0, prefix, 1)
        router.publish(1, ReplicaLoad(0, 0, 1000))
        request = Request(0, 0, 50, 10)
        assert router.choose(request) == 0
        assert (router.source(request, 0) is not None) == fetches
    with pytest.raises(ScenarioError, match="balance_threshold"):
        Conductor(bench, balance_threshold=0.5)


def two_alike(gap_s: float = 1.0) -> RequestTable:
    """Two prompts that begin with the same 200 tokens."""
    ids = [[*range(25), 100 + i] for i in range(2)]
    return request_table(
        np.array([0.0, gap_s]),
        np.array([208, 208]),
        np.array([1, 5]),  # the first needs no decode engine
        chains=chains_of(ids, [208, 208], 8),
    )


def p_and_d(router: Any, **options: Any) -> Fleet:
    prefill = replace(pool("prefill", ROOMY, cost=COST, replicas=2), make_router=router)
    return Fleet(pools=(prefill, pool("decode", ROOMY, cost=COST)), transfer=TRANSFER, **options)


def test_a_fetched_prefix_takes_its_bytes_and_is_not_computed() -> None:
    Scripted.contexts.clear()
    log = run_cluster(two_alike(), p_and_d(Scripted))
    took_ns, tokens = log.requests.fetched[1]
    assert tokens == 200
    sent_ns = 200 * TRANSFER.bytes_per_token  # of a GB/s, so a byte is a nanosecond
    assert took_ns == sent_ns + TRANSFER.latency_ns
    assert list(log.requests.cached_tokens) == [0, 200]
    assert list(log.requests.replica) == [0, 1]
    steps = log.steps[1]
    assert steps.column("prefill_tokens").sum() == 8
    books = time_books(log)
    ttft_ns = log.requests.first_token_ns[1] - log.requests.arrival_ns[1]
    assert books.ttft_ns[1].sum() == ttft_ns
    assert books.ttft_ns[1, TIME_ACCOUNTS.index(KV_TRANSFER)] == took_ns
    assert log.link_bytes["in 1"] == sent_ns
    found = reuse(log)
    assert found is not None
    assert (found.fetched, found.elsewhere) == (200, 0)
    assert used_blocks(Scripted.contexts[0]) == [0, 0]


def test_a_prefix_that_is_computed_yet_is_fetched_when_it_is_there() -> None:
    """Its blocks can be hit from the plan on; its KV is there when the step has ended."""
    log = run_cluster(two_alike(gap_s=0.001), p_and_d(Scripted))
    step_end_ns = int(log.steps[0].column("gpu_end_ns")[0])
    bytes_ns = 200 * TRANSFER.bytes_per_token + TRANSFER.latency_ns
    assert log.requests.fetched[1][0] == step_end_ns - 1_000_000 + bytes_ns


def test_prefixes_spread_and_the_conductor_is_faster_for_it() -> None:
    """Forty long prefixes, more load than there is room for if each engine computes them all."""
    rng = np.random.default_rng(0)
    n, families = 480, 40
    family = rng.integers(0, families, n)
    ids = [[*range(f * 100, f * 100 + 60), 10_000 + i] for i, f in enumerate(family.tolist())]
    table = request_table(
        np.cumsum(rng.exponential(0.006, n)),
        np.full(n, 488),
        np.full(n, 2),
        chains=chains_of(ids, [488] * n, 8),
    )
    network = replace(TRANSFER, bytes_per_token=10_000)
    engine = replace(ROOMY, replica_blocks=4000)
    mean_s = {}
    for name in ("conductor", "prefix_affinity", "least_work"):
        pools = (
            pool("prefill", engine, cost=COST, replicas=4, router=name),
            pool("decode", engine, cost=COST, replicas=2),
        )
        log = run_cluster(table, Fleet(pools=pools, transfer=network))
        mean_s[name] = np.subtract(log.requests.first_token_ns, log.requests.arrival_ns).mean()
        if name == "conductor":
            fetched = [i for i, (_, tokens) in log.requests.fetched.items() if tokens]
            places = [(family[i], log.requests.replica[i]) for i in fetched]
            assert len(places) == len(set(places)) > 20  # nothing is fetched twice
            found = reuse(log)
            assert found is not None
            assert found.elsewhere < 0.02 * found.prompt
    assert mean_s["conductor"] < min(mean_s["prefix_affinity"], mean_s["least_work"])


def test_decode_load_turns_away_who_would_find_decode_full() -> None:
    """Without it they wait for blocks with their prompts computed; with it they never start."""
    n = 200
    rng = np.random.default_rng(1)
    table = request_table(np.cumsum(rng.exponential(0.01, n)), np.full(n, 40), np.full(n, 300))
    logs = {}
    for limit in (n, 8):
        admission = policy(ADMISSIONS, "decode_load", max_requests=limit, decode_s=0.5)
        pools: tuple[PoolConfig, ...] = (
            pool("prefill", ROOMY, cost=COST, replicas=2),
            pool("decode", ROOMY, cost=COST, replicas=1),
        )
        service = ServiceConfig(admission=admission)
        logs[limit] = run_cluster(table, Fleet(pools=pools, transfer=TRANSFER, service=service))
    kept = logs[8].requests
    rejected = np.frombuffer(kept.status, np.int8) == Status.REJECTED
    assert 0 < rejected.sum() < n
    assert set(kept.reject_reasons.values()) == {"the decode engines would be full"}

    def waits_ns(log: RunLog) -> Any:
        decode = log.requests.decode
        assert decode is not None
        first_ns = np.frombuffer(log.requests.first_token_ns, np.int64)
        waited = np.frombuffer(decode.received_ns, np.int64) - first_ns
        return waited[np.frombuffer(log.requests.status, np.int8) == Status.FINISHED]

    assert waits_ns(logs[8]).mean() < 0.1 * waits_ns(logs[n]).mean()
    with pytest.raises(ScenarioError, match="no pool has the role decode"):
        run_cluster(
            table,
            Fleet(pools=(pool("mixed", ROOMY),), service=ServiceConfig(admission=admission)),
        )


def test_a_scenario_with_a_conductor_says_what_was_fetched() -> None:
    result = simulate(
        parse_scenario(
            {
                "model": "llama-3.1-8b",
                "hardware": {"gpu": "H100"},
                "pools": [
                    {"name": "p", "role": "prefill", "replicas": 3, "router": "conductor"},
                    {"name": "d", "role": "decode", "replicas": 1},
                ],
                "workload": {
                    "rate_per_s": 20,
                    "num_requests": 300,
                    "generator": {
                        "input_tokens": {"fixed": 200},
                        "output_tokens": {"fixed": 20},
                        "system_prompts": {"tokens": 8000, "count": 4},
                    },
                },
                "bands": False,
            }
        )
    )
    assert result.summary["fleet"]["reuse"]["fetched_share"] > 0
    assert "fetched from another engine" in fleet_sentence(result.summary)
    assert result.summary["conditions"]["pools"][0]["router"] == "conductor"
