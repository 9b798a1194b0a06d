"""Random engines, and small pools of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

from policies import ROUTERS, SCHEDULERS
from scenarios.build.plugins import load_attribute, scheduler_factory
from sim.engine.config import EngineConfig
from sim.engine.view import Scheduler
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import PoolConfig, Role
from sim.kv.eviction import PLAIN_CACHE, CacheConfig
from sim.kv.layout import PLAIN, KVLayout, PromptPages, WindowPages
from sim.protocols import Router, RoutingContext, StepCost
from sim.request_table import RequestTable
from tests.properties.costs import AffineCost

LAYOUTS = st.builds(
    KVLayout,
    grows=st.sampled_from([True, True, False]),
    windows=st.sampled_from([(), (WindowPages(10, 2),), (WindowPages(4, 1), WindowPages(33, 1))]),
    fixed_pages=st.integers(0, 2),
    prompts=st.sampled_from(
        [(), (), (PromptPages(20, 1),), (PromptPages(3, 1), PromptPages(70, 2))]
    ),
    checkpoint_pages=st.sampled_from([0, 0, 1, 3]),
).filter(lambda layout: layout.pages(1, 4) > 0)


ENGINES = st.builds(
    EngineConfig,
    step_token_limit=st.sampled_from([8, 40, 512]),
    running_seq_limit=st.sampled_from([1, 4, 8]),
    max_model_len=st.just(200),
    block_size=st.sampled_from([4, 8]),
    replica_blocks=st.integers(20, 120),
    kv_layout=st.just(PLAIN) | LAYOUTS,
    clip_tokens=st.sampled_from(
        [(), (), (1,), (16,), (7, 64), (30, 31, 150), ((20,),), (16, (9, 40, 90))]
    ),
    enable_prefix_caching=st.booleans(),
    shared_prefix_attention=st.sampled_from(["none", "cascade", "tree"]),
    async_scheduling=st.booleans(),
    preemption_mode=st.sampled_from(["recompute", "swap"]),
    num_cpu_blocks=st.sampled_from([0, 10, 100]),
    swap_ns_per_block=st.sampled_from([0.0, 40_000.0]),
)


HARD = EngineConfig(
    step_token_limit=32,
    running_seq_limit=8,
    max_model_len=220,
    block_size=4,
    replica_blocks=80,
)


def small_pool(
    engine: EngineConfig,
    *,
    role: Role = "mixed",
    cost: StepCost | None = None,
    scheduler: str | Callable[[], Scheduler] = "fcfs",
    router: str | Callable[[RoutingContext], Router] = "round_robin",
    replicas: int = 1,
    cache: CacheConfig = PLAIN_CACHE,
    start_ns: int = 0,
    provision_ns: int = 0,
) -> PoolConfig:
    """Return a pool on a plain cost model, with policies of its own or by name."""
    return PoolConfig(
        engine=engine,
        cost=AffineCost() if cost is None else cost,
        make_scheduler=(
            scheduler if callable(scheduler) else scheduler_factory(scheduler, SCHEDULERS)
        ),
        make_router=router if callable(router) else load_attribute(ROUTERS[router]),
        replicas=replicas,
        role=role,
        cache=cache,
        start_ns=start_ns,
        provision_ns=provision_ns,
    )


def small_run(
    table: RequestTable, *, engine: EngineConfig, until_ns: int | None = None, **options: Any
) -> RunLog:
    """Run a table on a `small_pool` with these options."""
    return run_cluster(table, small_pool(engine, **options), until_ns=until_ns)
