"""Prefill and decode on different engines: accounts balance, jumps equal steps, known queues."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from policies import ROUTERS, SCHEDULERS
from sim.accounts import TIME_ACCOUNTS
from sim.books.ledger import time_books
from sim.books.token_times import token_times_ns
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.fleet.cluster import Fleet, Role, RunLog, run_cluster
from sim.fleet.handover import TransferConfig
from sim.request import Status
from sim.request_table import RequestTable
from tests.properties.engines import COSTS, ENGINES, outcome, tables
from tests.properties.handover import GB, TRANSFER, fleet, pool
from tests.properties.helpers import AffineCost, decode_gaps, table_of
from tests.properties.queues import (
    MEAN_SERVICE_S,
    MEAN_TOKENS,
    MICROSECOND_PER_TOKEN,
    ONE_AT_A_TIME,
    exponential,
)

SMALL = EngineConfig(
    max_num_batched_tokens=512, max_num_seqs=8, max_model_len=200, block_size=8, num_gpu_blocks=100
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
    tight = replace(SMALL, num_gpu_blocks=27, max_num_seqs=64)
    table = table_of(*[(0.0, 100, 60)] * 8)
    log = run_cluster(table, fleet(tight))
    assert set(log.requests.status) == {Status.FINISHED}
    waits_s = np.frombuffer(log.requests.admitted_ns, np.int64) / 1e9
    free = run_cluster(table, fleet(replace(tight, num_gpu_blocks=1000)))
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
    pools = (pool("prefill", SMALL), pool("decode", replace(SMALL, num_gpu_blocks=10)))
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
    roomy = replace(ONE_AT_A_TIME, num_gpu_blocks=10**9)
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


TRANSFERS = st.builds(
    TransferConfig,
    bytes_per_token=st.sampled_from([0, 1_000, 300_000]),
    fixed_bytes=st.sampled_from([0, 1_000_000]),
    layers=st.sampled_from([1, 8]),
    latency_ns=st.sampled_from([0, 20_000]),
    mode=st.sampled_from(["pull", "push"]),
    prefill_nic_bytes_per_s=st.sampled_from([GB, 20 * GB]),
    decode_nic_bytes_per_s=st.sampled_from([GB, 7 * GB]),
    core_bytes_per_s=st.sampled_from([None, 2 * GB]),
)


@settings(deadline=None, max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    table=tables(),
    prefill_engine=ENGINES,
    decode_engine=ENGINES,
    cost=COSTS,
    transfer=TRANSFERS,
    replicas=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    schedulers=st.tuples(st.sampled_from(list(SCHEDULERS)), st.sampled_from(list(SCHEDULERS))),
    router=st.sampled_from(list(ROUTERS)),
    until_ns=st.sampled_from([None, None, 300_000_000]),
)
def test_jumped_equals_stepped_and_all_is_conserved(
    table: RequestTable,
    prefill_engine: EngineConfig,
    decode_engine: EngineConfig,
    cost: AffineCost,
    transfer: TransferConfig,
    replicas: tuple[int, int],
    schedulers: tuple[str, str],
    router: str,
    until_ns: int | None,
) -> None:
    def run(fast_forward: bool) -> RunLog:
        engines = (prefill_engine, decode_engine)
        roles: tuple[Role, Role] = ("prefill", "decode")
        pools = tuple(
            pool(
                role,
                replace(engine, fast_forward=fast_forward),
                cost=cost,
                replicas=number,
                scheduler=scheduler,
                router=router,
            )
            for role, engine, number, scheduler in zip(
                roles, engines, replicas, schedulers, strict=True
            )
        )
        return run_cluster(table, Fleet(pools=pools, transfer=transfer), until_ns=until_ns)

    log = run(True)
    assert outcome(log) == outcome(run(False))
    if until_ns is None:
        assert set(log.requests.status) <= {Status.FINISHED, Status.REJECTED}
        for steps, of_pool in zip(log.steps, log.fleet.pool_of, strict=True):
            free = steps.column("free_blocks")
            assert (free >= 0).all()
            assert (free <= of_pool.engine.num_gpu_blocks - 1).all()
    finished = np.frombuffer(log.requests.status, np.int8) == Status.FINISHED
    books = time_books(log)
    sojourn_ns = np.frombuffer(log.requests.finished_ns, np.int64) - np.frombuffer(
        log.requests.arrival_ns, np.int64
    )
    assert (books.e2e_ns.sum(axis=1)[finished] == sojourn_ns[finished]).all()
    assert (books.e2e_ns >= 0).all()
    waited_ns = np.frombuffer(log.requests.first_token_ns, np.int64) - np.frombuffer(
        log.requests.arrival_ns, np.int64
    )
    assert (books.ttft_ns.sum(axis=1)[finished] == waited_ns[finished]).all()
    assert log.requests.decode is not None
    waited = {*log.requests.last_token_row, *log.requests.decode.last_token_row}
    for request in np.flatnonzero(finished).tolist():
        times = token_times_ns(log, request)
        assert len(times) == table.output_tokens[request]
        if len(times):
            assert (np.diff(times) >= 0).all()
            assert times[0] == log.requests.first_token_ns[request]
            if request in waited:  # preempted, it came back in a batch that leaves together
                assert times[-1] <= log.requests.finished_ns[request]
            else:
                assert times[-1] == log.requests.finished_ns[request]
    gaps = np.maximum(table.output_tokens[finished] - 1, 0).sum()
    assert decode_gaps(log)[1].sum() == gaps
    sent = [moved for name, moved in log.link_bytes.items() if name.startswith("out")]
    got = [moved for name, moved in log.link_bytes.items() if name.startswith("in")]
    assert sum(sent) == sum(got)
    if transfer.core_bytes_per_s is not None:
        assert log.link_bytes["core"] == sum(sent)
    assert math.isfinite(log.end_ns)
