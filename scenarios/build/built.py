"""The parts of a scenario, looked up and compiled: what a simulation runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from costmodels.drafting.speculative_build import PoolCosts
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.memory.plan import DeviceMemory
from costmodels.models.spec import ModelSpec
from costmodels.operators.sources import OperatorSources
from scenarios.build.cache import Cache
from scenarios.build.speculation import SpeculationPlan
from scenarios.schema.fleet import Prices
from sim.fleet.config import Fleet, PoolConfig
from sim.fleet.handover import TransferConfig
from sim.fleet.service import ServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Everything that a scenario is made of except its workload, ready to run."""

    model: ModelSpec
    gpu: GpuSpec
    profile: EngineProfile
    memory: DeviceMemory
    layout: Layout
    cost: PoolCosts
    model_with_drafter: ModelSpec
    """The model together with the layers of a drafter whose keys and values share its blocks."""
    speculating: SpeculationPlan | None
    pool: PoolConfig
    operators: OperatorSources
    """The sources of times for each family of operators."""
    cache: Cache
    """The prefix cache of each engine."""
    notes: tuple[str, ...]
    """Decisions made for the user, in plain words."""
    others: tuple[Build, ...] = ()
    """Builds of the pools after the first."""
    transfer: TransferConfig | None = None
    service: ServiceConfig | None = None
    """Admission, clients, faults and scaling, which apply to all pools."""
    prices: Prices | None = None

    @property
    def parts(self) -> tuple[Build, ...]:
        """Return the builds of all pools, this one first."""
        return (self, *self.others)

    @property
    def fleet(self) -> Fleet:
        """Return all pools as one fleet, ready to be simulated."""
        return self._fleet(tuple(part.pool for part in self.parts))

    def with_costs(self, change: Callable[[PoolCosts], PoolCosts]) -> Fleet:
        """Return the fleet of the same pools with their step costs changed by ``change``."""
        pools = (replace(part.pool, cost=change(part.cost)) for part in self.parts)
        return self._fleet(tuple(pools))

    def _fleet(self, pools: tuple[PoolConfig, ...]) -> Fleet:
        return Fleet(pools=pools, transfer=self.transfer, service=self.service)
