"""Prefill on one engine, decode on another: transfers, backpressure, queues with known waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.accounts import TIME_ACCOUNTS
from sim.books.ledger import time_books
from sim.books.token_times import token_times_ns
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.cluster import run_cluster
from sim.fleet.config import Fleet, Role
from sim.fleet.handover import TransferConfig
from sim.request import Status
from tests.properties.costs import AffineCost
from tests.properties.handover import GB, TRANSFER, fleet, pool
from tests.properties.queues import (
    MEAN_SERVICE_S,
    MEAN_TOKENS,
    MICROSECOND_PER_TOKEN,
    ONE_AT_A_TIME,
    exponential,
)
from tests.properties.tables import table_of

SMALL = EngineConfig(
    step_token_limit=512, running_seq_limit=8, max_model_len=200, block_size=8, replica_blocks=100
)


def test_a_lone_request_pulls_its_kv_after_its_first_token() -> None:
    log = run_cluster(table_of((0.0, 100, 11)), fleet(SMALL))
    decode = log.requests.decode
    assert decode is not None
    first_ns = log.requests.first_token_ns[0]
    # 100 tokens of 100 kB over 1 GB/s, and the latency.
    assert decode.reserved_ns[0] == first_ns
    assert decode.received_ns[0] - first_ns == 10_000_000 + 20_000
    times = token_times_ns(log, 0)
    assert len(times) == 11
    assert times[0] == first_ns
    assert times[-1] == log.requests.finished_ns[0]
    assert [s.column("prefill_tokens").sum() for s in log.steps] == [100, 0]
    assert log.link_bytes == {"out 0": 10_000_000, "in 1": 10_000_000}


def test_pushing_leaves_a_layer_exposed() -> None:
    """With a step of 40 ms in 8 layers and a fast link, 7 layers' KV is there when it ends."""
    cost = AffineCost(base_s=40e-3, per_token_s=0.0, per_context_s=0.0)
    fast = replace(
        TRANSFER, mode="push", prefill_nic_bytes_per_s=100 * GB, decode_nic_bytes_per_s=100 * GB
    )
    log = run_cluster(table_of((0.0, 100, 3)), fleet(SMALL, fast, cost=cost))
    decode = log.requests.decode
    assert decode is not None
    assert decode.reserved_ns[0] == 0
    exposed_ns = decode.received_ns[0] - log.requests.first_token_ns[0]
    assert 0 < exposed_ns <= 20_000 + 2
    assert log.link_bytes["in 1"] == 10_000_000


def test_a_slow_link_hides_nothing_by_pushing() -> None:
    slow = replace(TRANSFER, prefill_nic_bytes_per_s=GB // 100)
    ends = {}
    for mode in ("pull", "push"):
        log = run_cluster(table_of((0.0, 100, 3)), fleet(SMALL, replace(slow, mode=mode)))
        ends[mode] = log.requests.finished_ns[0]
    # 10 MB at 10 MB/s: a second; the push began up to a prefill earlier.
    assert ends["push"] < ends["pull"]
    assert ends["pull"] - ends["push"] < 0.02 * GB


def test_a_full_decode_pool_holds_the_prefill_pool_up() -> None:
    """KV that has nowhere to go stays where it was computed: prefill stops when that is full."""
    tight = replace(SMALL, replica_blocks=27, running_seq_limit=64)
    table = table_of(*[(0.0, 100, 60)] * 8)
    log = run_cluster(table, fleet(tight))
    assert set(log.requests.status) == {Status.FINISHED}
    waits_s = np.frombuffer(log.requests.admitted_ns, np.int64) / 1e9
    free = run_cluster(table, fleet(replace(tight, replica_blocks=1000)))
    unhindered_s = np.frombuffer(free.requests.admitted_ns, np.int64) / 1e9
    assert waits_s[-1] > unhindered_s[-1] + 0.3
    books = time_books(log)
    queued = books.e2e_ns[:, TIME_ACCOUNTS.index("admission_queue")] / 1e9
    assert queued[-1] > 0.3


def test_a_request_of_one_token_stays() -> None:
    log = run_cluster(table_of((0.0, 100, 1)), fleet(SMALL))
    assert log.requests.status[0] == Status.FINISHED
    assert log.link_bytes == {"out 0": 0, "in 1": 0}


def test_a_request_no_decode_engine_can_hold_is_rejected_at_once() -> None:
    pools = (pool("prefill", SMALL), pool("decode", replace(SMALL, replica_blocks=10)))
    log = run_cluster(table_of((0.0, 100, 10)), Fleet(pools=pools, transfer=TRANSFER))
    assert log.requests.status[0] == Status.REJECTED
    assert log.requests.reject_reasons[0] == "on decode engines: longer than the KV pool"


@pytest.mark.parametrize(
    ("roles", "transfer"),
    [(("prefill",), TRANSFER), (("prefill", "decode"), None), (("mixed", "decode"), TRANSFER)],
)
def test_a_fleet_must_have_both_ends(
    roles: tuple[Role, ...], transfer: TransferConfig | None
) -> None:
    with pytest.raises(ScenarioError, match="prefill"):
        Fleet(pools=tuple(pool(role, SMALL) for role in roles), transfer=transfer).check_roles()


def test_two_stations_in_a_row_are_two_queues() -> None:
    """Poisson arrivals, exponential prefill and decode one at a time: M/M/1 behind M/M/1."""
    rng = np.random.default_rng(3)
    n, rho_prefill, rho_decode = 15_000, 0.5, 0.6
    gaps_s = exponential(rng.random(n)) * MEAN_SERVICE_S / rho_prefill
    prompts = np.maximum(np.rint(exponential(rng.random(n)) * MEAN_TOKENS), 1)
    mean_steps = 200
    outputs = 1 + np.maximum(np.rint(exponential(rng.random(n)) * mean_steps), 1)
    step_s = rho_decode * MEAN_SERVICE_S / rho_prefill / mean_steps
    rows = zip(np.cumsum(gaps_s).tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    # Every prompt waits with its KV where it was computed: that pool must not be a third station.
    roomy = replace(ONE_AT_A_TIME, replica_blocks=10**9)
    pools = (
        pool("prefill", roomy, cost=MICROSECOND_PER_TOKEN),
        pool("decode", roomy, cost=AffineCost(base_s=step_s, per_token_s=0, per_context_s=0)),
    )
    instant = replace(TRANSFER, bytes_per_token=0, latency_ns=0)
    log = run_cluster(table_of(*rows), Fleet(pools=pools, transfer=instant))
    finished_s = np.frombuffer(log.requests.finished_ns, np.int64) / 1e9
    first_s = np.frombuffer(log.requests.first_token_ns, np.int64) / 1e9
    arrival_s = np.frombuffer(log.requests.arrival_ns, np.int64) / 1e9
    kept = slice(n // 5, None)
    in_prefill = (first_s - arrival_s)[kept].mean() / MEAN_SERVICE_S
    in_decode = (finished_s - first_s)[kept].mean() / (step_s * mean_steps)
    assert in_prefill == pytest.approx(1 / (1 - rho_prefill), rel=0.08)
    assert in_decode == pytest.approx(1 / (1 - rho_decode), rel=0.1)
