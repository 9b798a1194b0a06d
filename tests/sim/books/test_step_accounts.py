"""Accounts of GPU time: every busy nanosecond of every step is posted to one account."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from policies import SCHEDULERS
from scenarios.files.load import load_scenario
from scenarios.run.simulate import simulate
from sim.accounts import GPU_ACCOUNTS, TIME_ACCOUNTS
from sim.books.ledger import time_books
from sim.books.run_accounts import gpu_time_ns
from sim.engine.config import EngineConfig
from sim.protocols import StepCost
from sim.request_table import RequestTable
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, small_run
from tests.properties.tables import table_of, tables


@settings(deadline=None, max_examples=60)
@given(
    table=tables(),
    engine=ENGINES,
    cost=COSTS,
    scheduler=st.sampled_from(list(SCHEDULERS)),
    replicas=st.integers(1, 3),
)
def test_accounts_sum_to_the_engines_busy_time(
    table: RequestTable, engine: EngineConfig, cost: StepCost, scheduler: str, replicas: int
) -> None:
    log = small_run(table, engine=engine, cost=cost, scheduler=scheduler, replicas=replicas)
    posted = gpu_time_ns(log)
    assert posted.sum() == sum(int(steps.column("gpu_ns").sum()) for steps in log.steps)
    assert posted.min(initial=0) >= 0
    used = {TIME_ACCOUNTS[i] for i in np.flatnonzero(posted)}
    assert used <= set(GPU_ACCOUNTS)


def test_the_gpu_time_of_a_lone_request_is_its_own() -> None:
    engine = EngineConfig(replica_blocks=100, step_token_limit=64, running_seq_limit=8)
    log = small_run(table_of((0.0, 150, 20)), engine=engine, cost=AffineCost())
    gpu_ns, own_ns = gpu_time_ns(log), time_books(log).e2e_ns[0]
    on_gpu = [i for i, name in enumerate(TIME_ACCOUNTS) if name in GPU_ACCOUNTS]
    on_gpu.remove(TIME_ACCOUNTS.index("launch_and_host"))  # the host's own time besides
    # With asynchronous scheduling one step more is in flight when the last token is read.
    assert (gpu_ns[on_gpu] >= own_ns[on_gpu]).all()
    assert gpu_ns[on_gpu].sum() <= own_ns[on_gpu].sum() + log.steps[0].column("gpu_ns")[-1]


def test_the_summary_states_them_in_seconds() -> None:
    scenario = load_scenario("scenarios/demo.yaml", ["workload.num_requests=200", "bands=false"])
    result = simulate(scenario)
    posted_s = result.summary["step_accounts_s"]
    assert list(posted_s) == list(TIME_ACCOUNTS)
    assert sum(posted_s.values()) == pytest.approx(result.steps["gpu_s"].sum(), rel=1e-12)
    assert posted_s["decode_weight_reads"] > posted_s["prefill_compute"] > 0
