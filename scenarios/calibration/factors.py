"""Factors on the constants of a host and a GPU, fitted where measurements are few.

Each factor is held near 1 as firmly as its constants are known beforehand, so that one which no
measurement shows stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodels.engines.profile import HOST_TERMS, EngineProfile
from costmodels.hardware.efficiency import Efficiency
from sim.arrays import Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A factor on constants that measurements show together."""

    name: str
    spread: float
    """Standard deviation of its natural logarithm before anything was measured."""
    farthest: float
    """Largest factor, either way."""
    host: tuple[str, ...] = ()
    """Terms of an engine profile."""
    device: tuple[str, ...] = ()
    """Constants of `Efficiency`: shares of a peak, which stay at most 1, and seconds."""

    def on(
        self, profile: EngineProfile, efficiency: Efficiency, value: float
    ) -> tuple[EngineProfile, Efficiency]:
        """Return the constants with those of this factor multiplied by ``value``."""
        terms = {term: getattr(profile, term) * value for term in self.host}
        constants: dict[str, Any] = {
            name: _scaled(name, getattr(efficiency, name), value) for name in self.device
        }
        return replace(profile, **terms), replace(efficiency, **constants)


def _scaled(name: str, constant: float, factor: float) -> float:
    if name.endswith("_s"):
        return constant * factor
    return min(constant * factor, max(constant, 1.0))


_FIXED = ("gemm_fixed_s", "grouped_fixed_s", "attention_fixed_s", "elementwise_fixed_s")
_PYTHON = (
    "schedule_base_s",
    "schedule_per_running_s",
    "update_base_s",
    "update_per_seq_s",
    "driver_s",
)
_GRAPHS = ("full_graph_launch_s", "full_graph_delay_s")
_REPLAYS = ("graph_replay_s",)
_EXPERTS = ("experts_call_s",)

COMPUTE = Factor(
    name="compute of prompts",
    spread=0.3,
    farthest=3.0,
    device=("gemm_compute", "fp8_compute", "grouped_compute", "attention_compute"),
)
MEMORY = Factor(
    name="bandwidth of decodes",
    spread=0.3,
    farthest=3.0,
    device=("gemm_memory", "grouped_memory", "attention_memory"),
)
FIXED = Factor(name="fixed times of kernels", spread=0.4, farthest=4.0, device=_FIXED)

FROM_OUTSIDE = (
    Factor(name="host times", spread=0.4, farthest=5.0, host=HOST_TERMS),
    COMPUTE,
    MEMORY,
    FIXED,
)
"""What a server's answers show."""
FROM_STEPS = (
    Factor(name="scheduler and loop", spread=0.4, farthest=5.0, host=_PYTHON),
    Factor(name="launches of graphs", spread=0.4, farthest=5.0, host=_GRAPHS),
    Factor(name="replays between attention calls", spread=0.4, farthest=5.0, host=_REPLAYS),
    Factor(name="calls of experts", spread=0.4, farthest=5.0, host=_EXPERTS),
    Factor(
        name="launches without graphs",
        spread=0.4,
        farthest=5.0,
        host=tuple(t for t in HOST_TERMS if t not in (*_PYTHON, *_GRAPHS, *_REPLAYS, *_EXPERTS)),
    ),
    replace(COMPUTE, device=("gemm_compute", "fp8_compute")),
    Factor(name="compute of attention", spread=0.3, farthest=3.0, device=("attention_compute",)),
    replace(MEMORY, device=("gemm_memory",)),
    Factor(name="bandwidth of attention", spread=0.3, farthest=3.0, device=("attention_memory",)),
    Factor(name="compute of experts", spread=0.4, farthest=4.0, device=("grouped_compute",)),
    Factor(name="bandwidth of experts", spread=0.4, farthest=4.0, device=("grouped_memory",)),
    FIXED,
)
"""What steps of an engine core show, one kind at a time."""


def fit_factors(
    spreads: Sequence[float],
    farthest: Sequence[float],
    errors: Callable[[Float64], Float64],
) -> Float64:
    """Return the factors that bring predictions closest to measurements.

    ``errors`` returns, for factors ``[n]``, each prediction's logarithmic error over the error that
    the measurement itself may have.
    """
    from scipy.optimize import least_squares

    known, most = np.array(spreads), np.log(farthest)

    def residuals(shifted: Float64) -> Float64:
        point = shifted - 1
        return np.concatenate([point / known, errors(np.exp(point))])

    # Steps of differences are relative: around 1 they are of one size.
    found = least_squares(
        residuals,
        np.ones(known.size),
        bounds=(1 - most, 1 + most),
        loss="soft_l1",
        diff_step=0.02,
        max_nfev=40,
    )
    factors: Float64 = np.exp(found.x - 1)
    return factors
