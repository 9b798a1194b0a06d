"""How heads and widths are split over tensor-parallel ranks."""

from __future__ import annotations

from sim.errors import ScenarioError


def split(count: int, ranks: int, what: str) -> int:
    """Return one rank's part of ``count``. Raises `ScenarioError` if it does not divide."""
    if count % ranks:
        raise ScenarioError(f"its {what} are not a multiple of {ranks}")
    return count // ranks


def split_width(width: int, ranks: int, what: str) -> int:
    """Return one rank's part of a matrix's width. Raises `ScenarioError` if it does not divide."""
    if width % ranks:
        raise ScenarioError(f"its {what} {width} is not a multiple of {ranks}")
    return width // ranks


def split_kv_heads(kv_heads: int, ranks: int) -> int:
    """Return the KV heads on one rank: more ranks than heads replicate each head, as in vLLM."""
    if kv_heads % ranks and ranks % kv_heads:
        raise ScenarioError(
            f"its {kv_heads} KV heads neither divide into nor replicate over {ranks} ranks"
        )
    return max(1, kv_heads // ranks)
