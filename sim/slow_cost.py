"""A node that has become slow: every step takes longer by a factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sim.protocols import DecodeRun, Rises, RoundCost, StepCost, StepPrice
from sim.shape import StepShape
from sim.throttle import PowerThrottle


@dataclass(frozen=True, slots=True)
class SlowCost:
    """A step cost times a factor, on the GPU and the host."""

    cost: StepCost
    factor: float

    @property
    def throttle(self) -> PowerThrottle | None:
        """That of the device."""
        return self.cost.throttle

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """The cost of one step of this shape."""
        return self._times(self.cost.price(shape, draw))

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price a run of decode-only steps, each rounded by itself."""
        return self._slow(self.cost.price_decodes(shape, steps))

    def price_rounds(self, shape: StepShape, rises: Rises, /) -> DecodeRun:
        """The same of steps that verify drafts."""
        return self._slow(cast(RoundCost, self.cost).price_rounds(shape, rises))

    def _slow(self, run: DecodeRun) -> DecodeRun:
        gpu_ns = np.diff(np.array(run.gpu_cumulative_ns, np.int64), prepend=0)
        slow_ns = np.rint(gpu_ns * self.factor).astype(np.int64)
        return DecodeRun(self._times(run.first), slow_ns.cumsum().tolist(), int(slow_ns.min()))

    def schedule_ns(self, running: int, /) -> int:
        """Host time of one scheduler call."""
        return round(self.cost.schedule_ns(running) * self.factor)

    def update_ns(self, seqs: int, /) -> int:
        """Host time to process a step's outputs."""
        return round(self.cost.update_ns(seqs) * self.factor)

    def split(
        self, columns: Mapping[str, NDArray[np.float64]], /
    ) -> dict[str, NDArray[np.float64]]:
        """As of the device when it is not slow: what it is slower by is the remainder."""
        return self.cost.split(columns)

    def _times(self, price: StepPrice) -> StepPrice:
        return StepPrice(*(round(part * self.factor) for part in price))
