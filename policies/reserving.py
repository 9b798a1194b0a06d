"""What systems before paging reserved for a request when they admitted it."""

from __future__ import annotations

from typing import Literal, get_args

from sim.engine.view import EngineView
from sim.errors import ScenarioError
from sim.request import Request

Reserve = Literal["max", "pow2", "oracle"]


def checked_reserve(reserve: str) -> None:
    """Raises ScenarioError where that is no variant."""
    if reserve not in get_args(Reserve):
        raise ScenarioError(f"reserve is {reserve!r}; it must be max, pow2 or oracle")


def reserved_tokens(
    view: EngineView, request: Request, reserve: Reserve, *, buddy: bool = False
) -> int:
    """Prompt and answer tokens to reserve.

    ``max``: the longest sequence the engine takes; ``pow2``: the answer's length rounded up to a
    power of two; ``oracle``: its length. A ``buddy`` allocator rounds the whole up to a power of
    two once more; that its areas may lie apart is not modelled. Source: Kwon et al. 2023 (vLLM),
    section 6.1.
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
    """The next one, not below."""
    return 1 << (tokens - 1).bit_length()
