"""Shipped scenarios that fail, each with its remedy, and the cause as the result names it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from reports.facts import warning_texts
from reports.run.report import run_report
from reports.terminal import print_report
from scenarios.files.load import load_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from sim.accounts import KV_TRANSFER
from sim.books.fleet_ledgers import balance, busiest_link, reuse
from sim.books.saturation import saturation
from sim.books.window import measured_window
from sim.engine.config import EngineConfig
from sim.fleet.cluster import run_cluster
from sim.request_table import request_table
from tests.properties.checkout import CHECKOUT
from tests.properties.engines import small_run
from tests.properties.handover import TRANSFER, fleet
from tests.properties.tables import chains_of, table_of

SHIPPED = CHECKOUT / "scenarios"


@cache
def shipped(name: str, *changes: str) -> RunResult:
    return simulate(load_scenario(SHIPPED / f"{name}.yaml", ["bands=false", *changes]))


def attainment(result: RunResult) -> float:
    share: float = result.summary["slo"]["attainment"]
    return share


def said(result: RunResult) -> str:
    """What terminal and page say, both, in one line."""
    text = StringIO()
    report = run_report(result.summary)
    print_report(report, Console(file=text, width=10_000))
    on_page = " ".join(
        str(one) for one in (*report.sentences, *warning_texts(result.summary)) if one
    )
    for sentence in on_page.split(". "):
        assert sentence in " ".join(text.getvalue().split())
    return on_page


def codes(result: RunResult) -> list[str]:
    return [warning["code"] for warning in result.summary["warnings"]]


def test_affinity_without_a_bound_makes_a_hot_spot() -> None:
    hot = shipped("hot_spot", "workload.num_requests=2500")
    cured = shipped("hot_spot", "workload.num_requests=2500", "pool.router.load_bound=1.25")
    assert attainment(cured) > 0.99
    assert attainment(hot) < 0.9
    routing = hot.summary["fleet"]["routing"]
    assert routing["max_over_mean"] > 4 > 1.3 > cured.summary["fleet"]["routing"]["max_over_mean"]
    told = said(hot)
    assert f"routing is overdrawn: replica {routing['busiest_replica']} has" in told.lower()
    assert "prefix_affinity without a load bound" in told
    assert "hot_spot" not in codes(cured)


def test_least_loaded_loses_a_prefix_of_400_000_tokens() -> None:
    cure = "pool.router={name: prefix_affinity, load_bound: 2}"
    lost, cured = shipped("lost_prefix"), shipped("lost_prefix", cure)
    reused, kept = lost.summary["fleet"]["reuse"], cured.summary["fleet"]["reuse"]
    assert reused["longest_lost_tokens"] > 400_000
    assert reused["lost_to_routing_share"] > 0.2 > 0.1 > kept["lost_to_routing_share"]
    assert attainment(lost) < 0.5 < 0.7 < attainment(cured)
    assert lost.figure("ttft", "p50") > 50 * cured.figure("ttft", "p50")  # type: ignore[operator]
    told = said(lost)
    assert "reuse is lost" in told.lower()
    assert "least_loaded does not look at caches" in told
    assert "lost_prefixes" not in codes(cured)


def test_a_thin_link_makes_prefill_and_decode_apart_slower_than_together() -> None:
    apart = shipped("thin_link", "workload.num_requests=1500")
    together = shipped("thin_link", "workload.num_requests=1500", "pools=[]", "pool.replicas=4")
    wide = shipped("thin_link", "workload.num_requests=1500", "kv_transfer.core_bytes_per_s=50e9")
    assert apart.figure("e2e", "mean") > 1.5 * together.figure("e2e", "mean")  # type: ignore[operator]
    assert attainment(apart) < 0.8 < 0.99 < min(attainment(together), attainment(wide))
    accounts_s = apart.summary["e2e_accounts_s"]
    assert max(accounts_s, key=accounts_s.get) == KV_TRANSFER
    told = said(apart)
    assert "the network is tight" in told.lower()
    assert "moving KV from prefill to decode engines is" in told
    assert "decode engines" in told
    assert "network" in apart.summary["saturation"]["by_part_per_s"]
    assert not {"thin_link"} & {*codes(together), *codes(wide)}


def test_a_retry_storm_says_why() -> None:
    shorter = ["workload.num_requests=2800"]
    told = said(shipped("retry_storm", *shorter))
    assert "these retries alone keep the engines too busy" in told
    assert "clients.retry_budget: 0.1" in told


def test_balance_and_lost_reuse_of_a_run_that_is_known() -> None:
    """Two engines in turns: every second request finds its prefix on the other one only."""
    prompts, n = [33, 33, 33, 33], 4
    ids = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [9, 8, 7, 6, 0], [1, 2, 3, 4, 7]]
    table = request_table(
        np.arange(n, dtype=np.float64),
        np.array(prompts),
        np.full(n, 5),
        chains=chains_of(ids, prompts, 8),
    )
    engine = EngineConfig(block_size=8, replica_blocks=100)
    log = small_run(table, engine=engine, replicas=2)
    found = reuse(log)
    assert found is not None
    # The second computes again what the first has; the fourth finds it where the second was.
    assert found == (132, 32, 0, 32, 32)
    even = balance(log, measured_window(log))
    assert even is not None
    assert even.overload == pytest.approx(1.0, rel=0.2)
    one = small_run(table, engine=engine, replicas=1)
    assert (balance(one, measured_window(one)), reuse(one)) == (None, None)


def test_a_link_is_as_busy_as_the_bytes_it_carried() -> None:
    log = run_cluster(table_of(*[(0.1 * i, 100, 5) for i in range(20)]), fleet(EngineConfig()))
    window = measured_window(log)
    found = busiest_link(log, window)
    assert found is not None
    moved = 20 * 100 * TRANSFER.bytes_per_token
    share = moved / (TRANSFER.prefill_nic_bytes_per_s * window.length_s)
    assert found.share == pytest.approx(share)


@pytest.mark.parametrize(
    ("prompt", "output", "binds"), [(900, 3, "prefill"), (20, 90, "decode"), (400, 20, "network")]
)
def test_each_part_saturates_where_its_throughput_ends(
    prompt: int, output: int, binds: str
) -> None:
    """Far past saturation a P/D fleet serves what the estimate of its tightest part says."""
    engine = EngineConfig(running_seq_limit=32, replica_blocks=2000, step_token_limit=512)
    nic = 2e9 if binds == "network" else 1e12
    transfer = replace(TRANSFER, prefill_nic_bytes_per_s=nic, decode_nic_bytes_per_s=nic)
    n = 1500
    log = run_cluster(
        table_of(*[(i * 1e-4, prompt, output) for i in range(n)]), fleet(engine, transfer)
    )
    limit = saturation(log)
    assert limit is not None
    parts = limit.by_part_per_s
    assert min(parts, key=lambda part: parts[part]) == binds
    served = n / measured_window(log).length_s
    assert served == pytest.approx(limit.saturation_per_s, rel=0.1)
