"""The kinds of values that scenario fields take, and the base of every section."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

LONGEST_S = 4e9  # 127 years: int64 nanoseconds end at 292
MOST_TOKENS = 100_000_000


def _not_true_or_false(value: Any) -> Any:
    """Reject truth values: YAML reads yes, no, on and off so, and pydantic would take 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


def _in_reach(value: float) -> float:
    """Reject what no quantity is: arithmetic on it would end in infinities."""
    if value and not _LEAST <= abs(value) <= _MOST:
        raise ValueError(f"must be 0 or between {_LEAST:g} and {_MOST:g} in size")
    return value


_LEAST, _MOST = 1e-15, 1e18
Number = Annotated[float, BeforeValidator(_not_true_or_false), AfterValidator(_in_reach)]
Whole = Annotated[int, BeforeValidator(_not_true_or_false), AfterValidator(_in_reach)]
Positive = Annotated[Number, Field(gt=0)]
BytesPerS = Annotated[Number, Field(ge=1)]
Interval = Annotated[Number, Field(ge=1e-3, le=LONGEST_S)]
"""Seconds between looks, of which a run has many."""
Seconds = Annotated[Number, Field(ge=1e-9, le=LONGEST_S)]
Count = Annotated[Whole, Field(ge=1)]
Tokens = Annotated[Whole, Field(ge=1, le=MOST_TOKENS)]


def _is_policy(value: Any) -> Any:
    if isinstance(value, dict) and not isinstance(value.get("name"), str):
        raise ValueError("needs a name beside its options, e.g. {name: sarathi, chunk_tokens: 512}")
    if not isinstance(value, str | dict):
        raise ValueError("must be a name, or {name: ..., option: ...}")
    return value


Policy = Annotated[str | dict[str, str | int | float | bool | None], BeforeValidator(_is_policy)]
"""The name of a policy, or a mapping of ``name`` and its options."""


class Section(BaseModel):
    """A section of a scenario, which refuses unknown keys and cannot be changed once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
