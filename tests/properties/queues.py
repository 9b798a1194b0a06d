"""Engines that serve one request per step, as queues with known answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.engine.config import EngineConfig
from tests.properties.costs import AffineCost

Float = NDArray[np.float64]


MEAN_TOKENS = 10_000


NS_PER_TOKEN = 1_000


MEAN_SERVICE_S = MEAN_TOKENS * NS_PER_TOKEN * 1e-9


ONE_AT_A_TIME = EngineConfig(
    running_seq_limit=1,
    step_token_limit=1 << 20,
    max_model_len=1 << 20,
    block_size=1024,
    replica_blocks=2048,
    enable_prefix_caching=False,
    async_scheduling=False,
)


MICROSECOND_PER_TOKEN = AffineCost(base_s=0.0, per_token_s=1e-6, per_context_s=0.0)


def exponential(uniform: Float) -> Float:
    """Mean 1, squared coefficient of variation 1."""
    return -np.log1p(-uniform)
