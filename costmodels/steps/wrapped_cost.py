"""A rank's step cost whose steps take longer than their kernels: what both kinds of it share."""

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
    """`RooflineStepCost` prices the kernels; what they do not hide comes on top."""

    kernel_cost: RooflineStepCost

    @abstractmethod
    def beside_ns(self, shape: StepShape, own: StepShape, kernels_ns: int) -> int:
        """What a step takes beyond the kernels of the rank's part, which take ``kernels_ns``."""

    @abstractmethod
    def split(self, columns: Mapping[str, Array], /) -> dict[str, Array]:
        """GPU seconds of many steps by account; see `step_split.split_steps`."""

    def own(self, shape: StepShape) -> StepShape:
        """The rank's part of a step."""
        return shape

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """The cost of one step; see `RooflineStepCost.price`."""
        own = self.own(shape)
        kernels_ns, *others = self.kernel_cost.price(own, draw)
        return StepPrice(kernels_ns + self.beside_ns(shape, own, kernels_ns), *others)

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price ``steps`` decode-only steps whose context grows by one a sequence a step."""
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
        """Host time of one scheduler call."""
        return self.kernel_cost.schedule_ns(running)

    def update_ns(self, seqs: int, /) -> int:
        """Host time to apply a step's outputs."""
        return self.kernel_cost.update_ns(seqs)

    @property
    def kernels(self) -> KernelTimes:
        """Prices of kernels."""
        return self.kernel_cost.kernels

    @property
    def shard(self) -> RankShard:
        """What one rank holds."""
        return self.kernel_cost.shard

    @property
    def gpu(self) -> GpuSpec:
        """The device of each rank."""
        return self.kernel_cost.gpu

    @property
    def efficiency(self) -> Efficiency:
        """How much of its peaks kernels reach."""
        return self.kernel_cost.efficiency

    @property
    def profile(self) -> EngineProfile:
        """Host times."""
        return self.kernel_cost.profile

    @property
    def tables(self) -> StepTables:
        """The kernels' tables."""
        return self.kernel_cost.tables

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Sizes of CUDA graphs."""
        return self.kernel_cost.graph_sizes

    @property
    def tokens_per_seq(self) -> int:
        """Tokens that each decoding sequence computes."""
        return self.kernel_cost.tokens_per_seq

    @property
    def largest_graph(self) -> int:
        """In tokens."""
        return self.kernel_cost.largest_graph

    @property
    def throttle(self) -> PowerThrottle | None:
        """The device's power limit."""
        return self.kernel_cost.throttle
