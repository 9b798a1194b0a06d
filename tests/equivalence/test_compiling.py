"""Kernels compiled while serving, jumping and by steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from sim.accounts import LAUNCH_AND_HOST
from sim.engine.compiling import CompileConfig, Compiling
from sim.engine.config import EngineConfig
from sim.fleet.cluster import RunLog
from sim.fleet.config import Fleet
from sim.request_table import RequestTable
from tests.equivalence.runs import check_audited_jumps, check_jumps
from tests.properties.conservation import MAKERS
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import ENGINES, small_pool
from tests.properties.fleet_checks import check_fleet_run
from tests.properties.service_runs import MS, fleets
from tests.properties.speculating import SPECULATING
from tests.properties.tables import tables

OFTEN = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
CONFIGS = st.builds(
    lambda graph_tokens, bucket_tokens, compile_ns, is_kept: CompileConfig(
        graph_tokens=graph_tokens,
        bucket_tokens=bucket_tokens,
        compile_ns=compile_ns,
        is_kept=is_kept,
    ),
    graph_tokens=st.sampled_from([0, 3, 16]),
    bucket_tokens=st.sampled_from([1, 2, 7]),
    compile_ns=st.sampled_from([1, 3 * MS, 500 * MS]),
    is_kept=st.booleans(),
)


def check_stalls(config: CompileConfig, log: RunLog, *, lives: int | None = 1) -> None:
    """Each bucket beyond the graphs stalls its first step, and only it, in each of ``lives``."""
    for steps in log.steps:
        tokens = steps.column("decode_seqs") + steps.column("prefill_tokens")
        if steps.speculates:
            tokens = tokens + steps.column("draft_tokens")
        stalled = [row for row, _, _ in steps.waits.get(LAUNCH_AND_HOST, [])]
        assert all(ns == config.compile_ns for _, _, ns in steps.waits.get(LAUNCH_AND_HOST, []))
        met: set[int] = set()
        first = []
        for row, count in enumerate(tokens.tolist()):
            bucket = -(-count // config.bucket_tokens)
            if count > config.graph_tokens and bucket not in met:
                met.add(bucket)
                first.append(row)
        if lives == 1:
            assert stalled == first
        else:
            assert set(stalled) >= set(first)


@OFTEN
@given(
    table=tables(),
    engine=ENGINES | SPECULATING,
    cost=COSTS,
    config=CONFIGS,
    scheduler=st.sampled_from(list(MAKERS)),
)
def test_the_first_step_of_a_bucket_stalls_and_jumps_change_nothing(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    config: CompileConfig,
    scheduler: str,
) -> None:
    pool = small_pool(engine, cost=cost, scheduler=MAKERS[scheduler])
    check_audited_jumps(
        table,
        replace(pool, make_features=(lambda table: Compiling(config),)),
        follows_the_clock=scheduler == "capricious",
        checks=[partial(check_stalls, config)],
    )


@OFTEN
@given(
    table=tables(),
    fleet=fleets(ENGINES),
    config=CONFIGS,
    until_ns=st.sampled_from([None, None, 300 * MS]),
)
def test_whatever_fails_a_new_process_compiles_again_unless_kernels_are_kept(
    table: RequestTable, fleet: Fleet, config: CompileConfig, until_ns: int | None
) -> None:
    features = (lambda table: Compiling(config),)
    pools = tuple(replace(pool, make_features=features) for pool in fleet.pools)
    log = check_jumps(table, replace(fleet, pools=pools), until_ns=until_ns)
    check_stalls(config, log, lives=1 if config.is_kept else None)
    check_fleet_run(log, to_its_end=until_ns is None)
