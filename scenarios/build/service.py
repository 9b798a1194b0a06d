"""Turn a scenario's admission, clients, faults and autoscaler into what the simulation takes."""

from __future__ import annotations

import math

from costmodels.hardware.links import host_link
from policies import ADMISSIONS, AUTOSCALERS
from scenarios.build.plugins import service_policy
from scenarios.build.replica import Replica
from scenarios.schema import Scenario
from scenarios.schema.fleet import FaultEvent
from sim.clock import FOREVER_NS, to_ns
from sim.errors import ScenarioError
from sim.fleet.config import PoolConfig
from sim.fleet.service import (
    AdmitAll,
    ClientConfig,
    Fault,
    FaultConfig,
    ScalingConfig,
    ServiceConfig,
)


def service_config(scenario: Scenario, pools: tuple[PoolConfig, ...]) -> ServiceConfig | None:
    """Return what surrounds the engines, or None if nothing does. Raises `ScenarioError`."""
    if not has_service(scenario):
        return None
    admission = scenario.admission
    return ServiceConfig(
        admission=AdmitAll
        if admission is None
        else service_policy(admission, ADMISSIONS, "admission", ("admit", "left")),
        clients=_clients(scenario),
        faults=_faults(scenario, pools),
        scaling=_scaling(scenario, pools),
        seed=scenario.seed,
    )


def has_service(scenario: Scenario) -> bool:
    """Return whether anything surrounds the engines: admission, clients, faults or an
    autoscaler."""
    return any((scenario.admission, scenario.clients, scenario.faults, scenario.autoscaler))


def start_ns(replica: Replica) -> int:
    """Return the nanoseconds from the start of an engine's process until it serves.

    Every GPU reads its own weights. 0 where nothing surrounds the engines.
    """
    scenario = replica.scenario
    if not has_service(scenario):
        return 0
    bandwidth = scenario.startup.load_bytes_per_s
    if bandwidth is None:
        hardware = scenario.hardware
        bandwidth = host_link(
            replica.gpu,
            bytes_per_s=hardware.host_link_bytes_per_s,
            disk_read_bytes_per_s=hardware.disk_read_bytes_per_s,
        ).disk_read_bytes_per_s
    return to_ns(scenario.startup.process_s + replica.memory.weight_bytes / bandwidth)


def _clients(scenario: Scenario) -> ClientConfig:
    clients = scenario.clients
    if clients is None:
        return ClientConfig()
    budget = clients.retry_budget
    return ClientConfig(
        ttft_timeout_ns=_ns_or_forever(clients.ttft_timeout_s),
        e2e_timeout_ns=_ns_or_forever(clients.e2e_timeout_s),
        max_retries=clients.max_retries,
        backoff_ns=to_ns(clients.backoff_s),
        max_backoff_ns=to_ns(max(clients.max_backoff_s, clients.backoff_s)),
        retry_budget=0.0 if budget is None else budget,
        budget_burst=math.inf if budget is None else clients.budget_burst,
        server_notices=clients.server_notices,
    )


def _ns_or_forever(seconds: float | None) -> int:
    return FOREVER_NS if seconds is None else to_ns(seconds)


def _faults(scenario: Scenario, pools: tuple[PoolConfig, ...]) -> FaultConfig:
    faults = scenario.faults
    if faults is None:
        return FaultConfig()
    return FaultConfig(
        schedule=tuple(f for event in faults.schedule for f in _of_event(event, pools)),
        mtbf_ns=_ns_or_forever(faults.mtbf_s),
        detection_ns=to_ns(faults.detection_s),
        proxy_retries=faults.proxy_retries,
    )


def _of_event(event: FaultEvent, pools: tuple[PoolConfig, ...]) -> list[Fault]:
    """Return one fault, or one for each replica of a pool."""
    replicas: list[int | None] = [event.replica]
    if event.pool is not None:
        if event.replica is not None or event.link is not None:
            raise ScenarioError(
                "faults.schedule: a fault has a pool, a replica or a link; give one"
            )
        names = [pool.name for pool in pools for _ in range(pool.replicas)]
        replicas = [index for index, name in enumerate(names) if name == event.pool]
        if not replicas:
            known = ", ".join(pool.name for pool in pools if pool.name) or "none has a name"
            raise ScenarioError(f"faults.schedule: there is no pool {event.pool!r}; pools: {known}")
    return [
        Fault(
            at_ns=to_ns(event.at_s),
            kind=event.kind,
            replica=replica,
            link=event.link,
            factor=event.factor,
            duration_ns=to_ns(event.duration_s),
        )
        for replica in replicas
    ]


def _scaling(scenario: Scenario, pools: tuple[PoolConfig, ...]) -> ScalingConfig | None:
    scaler = scenario.autoscaler
    if scaler is None:
        return None
    of_decode = scaler.role == "decode"
    chosen = [pool for pool in pools if (pool.role == "decode") == of_decode]
    if not chosen:
        raise ScenarioError("autoscaler.role is decode, and no pool decodes for others")
    initial = scaler.initial_replicas
    scaling = ScalingConfig(
        make=service_policy(scaler.policy, AUTOSCALERS, "autoscaler", ("wanted",)),
        min_replicas=scaler.min_replicas,
        initial_replicas=scaler.min_replicas if initial is None else initial,
        interval_ns=to_ns(scaler.interval_s),
        of_decode_engines=of_decode,
    )
    scaling.first(sum(pool.replicas for pool in chosen))
    return scaling
