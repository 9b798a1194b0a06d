"""What an engine's prefix cache is like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sim.protocols import Eviction
from sim.tiers import TiersConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How cached content is found and dropped."""

    make_eviction: Callable[[], Eviction] | None = None
    """A fresh policy for each engine; None: least recently used."""
    prefix_index: Literal["block_hash", "radix"] = "block_hash"
    tiers: TiersConfig | None = None
    """What lies below device memory; None: nothing."""


PLAIN_CACHE = CacheConfig()
"""vLLM's: block hashes, the least recently used goes first."""
