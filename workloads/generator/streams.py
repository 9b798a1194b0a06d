"""Independent streams of random numbers by name: changing what one is used for leaves others."""

from __future__ import annotations

import numpy as np

from sim.errors import ScenarioError


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of one named stream of ``seed``, independent of all other names."""
    if seed < 0:
        raise ScenarioError(f"seed is {seed}; expected 0 or more")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))
