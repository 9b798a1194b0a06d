"""Memory that systems without paging reserve for a request when they admit it."""

from __future__ import annotations

from typing import Literal, get_args

from sim.engine.view import EngineView
from sim.errors import ScenarioError
from sim.request import Request

Reserve = Literal["max", "pow2", "oracle"]


def checked_reserve(reserve: str) -> None:
    """Raise ScenarioError if ``reserve`` is not the name of a variant."""
    if reserve not in get_args(Reserve):
        raise ScenarioError(f"reserve is {reserve!r}; it must be max, pow2 or oracle")


def reserved_tokens(
    view: EngineView, request: Request, reserve: Reserve, *, buddy: bool = False
) -> int:
    """Return the tokens to reserve for a request's prompt and answer.

    ``max`` reserves the longest sequence the engine takes, ``pow2`` rounds the answer's length up
    to a power of two, and ``oracle`` knows its length. With ``buddy`` the sum is rounded up to a
    power of two once more, as a buddy allocator does; that its areas may be scattered is not
    modeled. Source: Kwon et al. 2023 (vLLM), section 6.1.
    """
    longest = view.config.max_model_len
    if reserve == "max":
        return longest
    output = max(request.output_tokens, *(request.samples.unforked if request.samples else (0,)))
    if reserve == "pow2":
        output = _power_of_two(output)
    tokens = request.prompt_tokens + output
    return min(_power_of_two(tokens) if buddy else tokens, longest)


def _power_of_two(tokens: int) -> int:
    """Return the smallest power of two that is not below ``tokens``."""
    return 1 << (tokens - 1).bit_length()
