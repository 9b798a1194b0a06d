"""Requests, tokens, blocks, nanoseconds and bytes of a run are all accounted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policies import ROUTERS
from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.files.load import load_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.clock import to_ns
from sim.engine.config import EngineConfig
from sim.fleet.cluster import run_cluster
from sim.recorder import UNSET
from sim.request import Status
from sim.request_table import RequestTable
from tests.properties.checkout import CHECKOUT
from tests.properties.conservation import (
    MAKERS,
    audited,
    check_books,
    check_order,
    check_requests,
    check_run_to_the_end,
    check_token_times,
    ns,
    statuses,
)
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, small_run
from tests.properties.tables import tables

SHIPPED = sorted((CHECKOUT / "scenarios").glob("*.yaml"))
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


over_random_runs = given(
    table=tables(),
    engine=ENGINES,
    cost=COSTS,
    scheduler=st.sampled_from(list(MAKERS)),
    router=st.sampled_from(list(ROUTERS)),
    replicas=st.integers(1, 3),
)
moderately = settings(
    deadline=None,
    max_examples=120,
    phases=PHASES,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("fast_forward", [True, False], ids=["jumping", "stepping"])
@moderately
@over_random_runs
def test_a_run_to_its_end_conserves_everything(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    scheduler: str,
    router: str,
    replicas: int,
    fast_forward: bool,
) -> None:
    """Requests, tokens, blocks and time balance, whatever the policy and the pressure.

    Stepping, the auditor looks at every single step.
    """
    make, auditors = audited(MAKERS[scheduler])
    config = replace(engine, fast_forward=fast_forward)
    log = small_run(
        table, engine=config, cost=cost, scheduler=make, router=router, replicas=replicas
    )
    check_run_to_the_end(log, auditors)


@moderately
@given(share=st.floats(0.001, 1.2), data=st.data())
def test_a_cut_run_is_the_beginning_of_the_whole(share: float, data: st.DataObject) -> None:
    """A horizon loses no request and changes nothing that finished or was turned away before it."""
    table, engine, cost = data.draw(tables()), data.draw(ENGINES), data.draw(COSTS)
    scheduler = MAKERS[data.draw(st.sampled_from(list(MAKERS)))]
    whole = small_run(table, engine=engine, cost=cost, scheduler=scheduler)
    until_ns = 1 + int(share * whole.end_ns)
    cut = small_run(table, engine=engine, cost=cost, scheduler=scheduler, until_ns=until_ns)
    check_requests(cut)
    check_order(cut)
    assert cut.end_ns == until_ns
    for name in ("arrival_ns", "admitted_ns", "finished_ns"):
        reached = ns(whole, name) < until_ns
        assert ns(cut, name).tolist() == np.where(reached, ns(whole, name), UNSET).tolist()
    gone = ns(whole, "finished_ns") < until_ns
    fates = np.where(gone, statuses(whole), Status.UNFINISHED)
    assert statuses(cut).tolist() == fates.tolist()


def shipped(path: Path) -> Scenario:
    """A scenario of ours, cut to a few hundred requests."""
    return load_scenario(path, ["warmup_s=0", "workload.num_requests=300"])


# Other tests run these too, to see why they fail and what helps.
LONG = {"agents", "lost_prefix", "rag"}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])
        for path in SHIPPED
    ],
)
def test_shipped_scenario_conserves_everything(path: Path) -> None:
    """With real cost models too, and its summary counts the same requests and bytes."""
    scenario = shipped(path)
    built = build(scenario)
    make, auditors = audited(built.pool.make_scheduler)
    until_ns = None if scenario.horizon_s is None else to_ns(scenario.horizon_s)
    table = build_table(scenario)
    is_apart = built.transfer is not None  # blocks of KV on its way are no running request's
    fleet = built.fleet if is_apart else replace(built.pool, make_scheduler=make)
    log = run_cluster(table, fleet, until_ns=until_ns)
    if until_ns is None and not is_apart:
        check_run_to_the_end(log, auditors)
    for check in (check_requests, check_books, check_order, check_token_times):
        check(log)

    summary = simulate(scenario).summary
    counts = summary["requests"]
    assert counts["arrived"] == int((ns(log, "arrival_ns") != UNSET).sum())
    fates = ("finished", "rejected", "failed", "unfinished")
    assert counts["arrived"] == sum(counts[fate] for fate in fates)
    assert counts["finished"] == int((statuses(log) == Status.FINISHED).sum()) > 0
    bytes_of = dict(summary["device_bytes"])
    assert bytes_of.pop("total") == sum(bytes_of.values()) == built.replica.gpu.hbm_bytes
    assert min(bytes_of.values()) >= 0


@pytest.mark.parametrize(
    ("changes", "least_unfinished"),
    [
        pytest.param([], 0, id="to the end"),
        pytest.param(["horizon_s=10"], 1, id="cut"),
        pytest.param(["horizon_s=1e-6"], 0, id="cut before the first arrival"),
        pytest.param(["horizon_s=10", "workload.max_concurrency=4"], 4, id="closed loop, cut"),
        pytest.param(["horizon_s=9"], 1, id="cut while somebody finishes"),
        pytest.param(
            ["engine.max_model_len=1500"],
            0,
            id="long ones rejected",
        ),
        pytest.param(
            ["engine.max_num_seqs=16"],
            0,
            id="small batches",
        ),
    ],
)
def test_summary_counts_those_who_arrived(changes: list[str], least_unfinished: int) -> None:
    """Arrived is finished, rejected, failed and unfinished; those never sent are nowhere."""
    (path,) = (path for path in SHIPPED if path.stem == "demo")
    result = simulate(load_scenario(path, ["warmup_s=0", "workload.num_requests=300", *changes]))
    counts, sent = result.summary["requests"], ns(result.log, "arrival_ns") != UNSET
    fates = ("finished", "rejected", "failed", "unfinished")
    assert counts["arrived"] == sum(counts[fate] for fate in fates) == int(sent.sum())
    assert counts["rejected"] == sum(counts["reject_reasons"].values())
    assert counts["unfinished"] >= least_unfinished
    is_cut = any(change.startswith("horizon") for change in changes)
    assert (counts["arrived"] < 300) == is_cut
