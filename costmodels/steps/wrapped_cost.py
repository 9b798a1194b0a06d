"""Base of the step costs whose steps take longer than their kernels: context parallelism,
streaming."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.shard import RankShard
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.step_tables import StepTables
from costmodels.steps.step_cost import RooflineStepCost
from costmodels.work import Array
from sim.protocols import DecodeRun, StepPrice
from sim.shape import StepShape, grown
from sim.throttle import PowerThrottle


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedStepCost(ABC):
    """A step cost that adds to the kernel times of `RooflineStepCost` what the kernels do not
    hide."""

    kernel_cost: RooflineStepCost

    @abstractmethod
    def beside_ns(self, shape: StepShape, own: StepShape, kernels_ns: int) -> int:
        """Return the step's time beyond its own kernels, which take ``kernels_ns``."""

    @abstractmethod
    def split(self, columns: Mapping[str, Array], /) -> dict[str, Array]:
        """Split the GPU seconds of many steps by account; see `step_split.split_steps`."""

    def own(self, shape: StepShape) -> StepShape:
        """Return the rank's part of a step."""
        return shape

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """Price one step of this shape; see `RooflineStepCost.price`."""
        own = self.own(shape)
        kernels_ns, *others = self.kernel_cost.price(own, draw)
        return StepPrice(kernels_ns + self.beside_ns(shape, own, kernels_ns), *others)

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price ``steps`` decode-only steps in which each sequence's context grows by one token
        per step."""
        first = self.price(shape)
        if not shape.decode_seqs:
            return DecodeRun(first, [0] * steps, 0)
        kernels = self.kernel_cost.price_decodes(self.own(shape), steps).gpu_cumulative_ns
        gpu_ns, before_ns, step = [], 0, shape
        for until_ns in kernels:
            kernels_ns, before_ns = until_ns - before_ns, until_ns
            gpu_ns.append(kernels_ns + self.beside_ns(step, step, kernels_ns))
            step = grown(step, 1)
        return DecodeRun(first, list(accumulate(gpu_ns)), min(gpu_ns))

    def schedule_ns(self, running: int, /) -> int:
        """Return the host time of one scheduler call."""
        return self.kernel_cost.schedule_ns(running)

    def update_ns(self, seqs: int, /) -> int:
        """Return the host time to apply a step's outputs."""
        return self.kernel_cost.update_ns(seqs)

    @property
    def kernels(self) -> KernelTimes:
        """The prices of the rank's kernels."""
        return self.kernel_cost.kernels

    @property
    def shard(self) -> RankShard:
        """The part of the model on one rank."""
        return self.kernel_cost.shard

    @property
    def gpu(self) -> GpuSpec:
        """The device of each rank."""
        return self.kernel_cost.gpu

    @property
    def efficiency(self) -> Efficiency:
        """The shares of the device's peaks that kernels reach."""
        return self.kernel_cost.efficiency

    @property
    def profile(self) -> EngineProfile:
        """The engine's host times."""
        return self.kernel_cost.profile

    @property
    def tables(self) -> StepTables:
        """The tables that the kernels are priced from."""
        return self.kernel_cost.tables

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """The captured sizes of CUDA graphs, in tokens."""
        return self.kernel_cost.graph_sizes

    @property
    def tokens_per_seq(self) -> int:
        """Tokens that each decoding sequence computes."""
        return self.kernel_cost.tokens_per_seq

    @property
    def largest_graph(self) -> int:
        """The largest CUDA graph, in tokens."""
        return self.kernel_cost.largest_graph

    @property
    def throttle(self) -> PowerThrottle | None:
        """The device's power limit; None: no limit."""
        return self.kernel_cost.throttle
