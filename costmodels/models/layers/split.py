"""How heads and widths are split over tensor-parallel ranks."""

from __future__ import annotations

from sim.errors import ScenarioError


def split(count: int, ranks: int, what: str) -> int:
    """One rank's part of ``count``. Raises `ScenarioError` where it does not divide."""
    if count % ranks:
        raise ScenarioError(f"its {what} are not a multiple of {ranks}")
    return count // ranks


def split_width(width: int, ranks: int, what: str) -> int:
    """The same for the width of a matrix."""
    if width % ranks:
        raise ScenarioError(f"its {what} {width} is not a multiple of {ranks}")
    return width // ranks


def split_kv_heads(kv_heads: int, ranks: int) -> int:
    """KV heads on one rank: with more ranks than heads each is replicated, as vLLM does."""
    if kv_heads % ranks and ranks % kv_heads:
        raise ScenarioError(
            f"its {kv_heads} KV heads neither divide into nor replicate over {ranks} ranks"
        )
    return max(1, kv_heads // ranks)
