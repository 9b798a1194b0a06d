"""What clients wait for in the API server: requests that arrive together, parts that pile up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.accounts import API_SERVER, TIME_ACCOUNTS
from sim.books.ledger import time_books
from sim.books.metrics import Slo, itl_statistics, request_metrics
from sim.engine.config import ApiServerConfig, EngineConfig
from sim.errors import ScenarioError
from sim.fleet.cluster import RunLog, run_cluster
from tests.properties.costs import AffineCost
from tests.properties.engines import small_pool
from tests.properties.tables import table_of

MS = 1_000_000
STEP = AffineCost()


def run(server: ApiServerConfig, *requests: tuple[float, int, int]) -> RunLog:
    """Serve requests of (arrival in s, prompt, output) by one roomy engine behind ``server``."""
    engine = EngineConfig(replica_blocks=100_000, api_server=server)
    return run_cluster(table_of(*requests), small_pool(engine, cost=STEP))


def with_server_ms(log: RunLog) -> list[float]:
    """Return how long each request was with the API server before the engine got it."""
    return [log.requests.api_arrival_ns[i] / MS for i in range(len(log.table))]


def test_a_burst_reaches_the_engine_near_its_end() -> None:
    log = run(ApiServerConfig(request_ns=2 * MS, prompt_token_ns=0, part_ns=0), *[(0, 10, 2)] * 50)
    assert with_server_ms(log) == [100.0] * 50


def test_requests_share_the_time_that_they_overlap() -> None:
    server = ApiServerConfig(request_ns=4 * MS, prompt_token_ns=0, part_ns=0)
    log = run(server, (0, 10, 2), (0.002, 10, 2))
    # the first is half done when the second comes, and then works at half speed
    assert with_server_ms(log) == [pytest.approx(6.0), pytest.approx(6.0)]


def test_a_prompts_tokens_count_and_servers_share_the_requests() -> None:
    server = ApiServerConfig(request_ns=MS, prompt_token_ns=1000, part_ns=0, servers=2)
    log = run(server, (0, 1000, 2), (0, 5000, 2))
    assert with_server_ms(log) == [2.0, 6.0]


def test_parts_that_come_faster_than_they_are_sent_pile_up() -> None:
    plain = run(ApiServerConfig(request_ns=0, prompt_token_ns=0, part_ns=0), *[(0, 10, 50)] * 20)
    engine_s = request_metrics(plain, Slo()).tpot_s.mean()
    part_ns = round(2 * engine_s * 1e9 / 20)  # twice what a step allows
    slow = run(
        ApiServerConfig(request_ns=0, prompt_token_ns=0, part_ns=part_ns), *[(0, 10, 50)] * 20
    )
    metrics = request_metrics(slow, Slo())
    assert metrics.tpot_s.mean() == pytest.approx(2 * engine_s, rel=0.05)
    gaps, _ = itl_statistics(slow, metrics)
    assert gaps["mean"] == pytest.approx(2 * engine_s, rel=0.05)
    account = TIME_ACCOUNTS.index(API_SERVER)
    books = time_books(slow)
    waited_s = books.e2e_ns[:, account] / 1e9
    assert waited_s == pytest.approx(np.full(20, 49 * engine_s), rel=0.1)
    e2e_ns = np.rint(metrics.e2e_s * 1e9).astype(np.int64)
    assert (books.e2e_ns.sum(axis=1) == e2e_ns).all()


def test_a_closed_loop_waits_for_what_the_server_sends() -> None:
    table = replace(table_of(*[(0, 10, 5)] * 8), max_concurrency=1)
    times = []
    for part_ns in (0, 5 * MS):
        server = ApiServerConfig(request_ns=0, prompt_token_ns=0, part_ns=part_ns)
        engine = EngineConfig(replica_blocks=1000, api_server=server)
        times.append(run_cluster(table, small_pool(engine, cost=STEP)).end_ns)
    assert times[1] - times[0] >= 8 * 5 * MS


def test_costs_are_not_negative() -> None:
    with pytest.raises(ScenarioError, match="at least 0"):
        ApiServerConfig(request_ns=-1, prompt_token_ns=0, part_ns=0)
