"""Build the pools that a scenario names, ready to be simulated."""

from __future__ import annotations

from policies import ROUTERS, SCHEDULERS
from scenarios.build import compiling
from scenarios.build.cache import cache_of
from scenarios.build.engine import check_beams, check_fit, engine_config
from scenarios.build.notes import build_notes, pool_notes
from scenarios.build.plugins import router_factory, scheduler_factory
from scenarios.build.pools import Build, PoolBuild, pool_scenarios, transfer_config
from scenarios.build.resolve import resolve
from scenarios.build.service import service_config, start_ns
from scenarios.schema import Scenario
from sim.clock import to_ns
from sim.errors import ScenarioError
from sim.fleet.config import PoolConfig, Role


def build(scenario: Scenario) -> Build:
    """Look up and compile everything but the workload. Raises `ScenarioError`."""
    parts = tuple(_build_pool(of, name, role) for name, role, of in pool_scenarios(scenario))
    pools = tuple(part.pool for part in parts)
    transfer = transfer_config(scenario, parts)
    if scenario.workload.beam_width > 1:
        for part in parts:
            check_beams(scenario.workload.beam_width, part.replica, part.pool)
    whole = Build(
        parts=parts,
        notes=build_notes(scenario, parts, transfer),
        transfer=transfer,
        service=service_config(scenario, pools),
        prices=scenario.prices,
    )
    whole.fleet.check_roles()
    _check_api_server(whole)
    return whole


def _check_api_server(whole: Build) -> None:
    """Raise `ScenarioError` for what an API server is not modeled together with."""
    if all(part.replica.api_server is None for part in whole.parts):
        return
    if whole.service is not None:
        reason = "admission, clients' patience, faults or an autoscaler"
    elif any(part.pool.role != "mixed" for part in whole.parts):
        reason = "pools that only prefill or only decode"
    else:
        return
    raise ScenarioError(f"engine.api_server_count is not modelled with {reason}: leave it out")


def _build_pool(scenario: Scenario, name: str, role: Role) -> PoolBuild:
    replica = resolve(scenario)
    check_fit(replica)
    if role != "mixed" and replica.added:
        raise ScenarioError(
            f"{replica.added[0].name} is not modelled with pools that only prefill or only decode"
        )
    cost, engine, cache = replica.cost, engine_config(replica), cache_of(replica)
    pool = PoolConfig(
        engine=engine,
        cost=cost,
        make_scheduler=scheduler_factory(scenario.engine.scheduler, SCHEDULERS),
        make_router=router_factory(scenario.pool.router, ROUTERS),
        replicas=scenario.pool.replicas,
        start_ns=start_ns(replica),
        provision_ns=to_ns(scenario.startup.provision_s),
        name=name,
        role=role,
        cache=cache.config,
        make_features=(*(one.in_engine for one in replica.added), *compiling.features(replica)),
    )
    notes = (*pool_notes(replica, engine, cache), *compiling.notes(replica))
    return PoolBuild(replica=replica, pool=pool, cache=cache, notes=notes)
