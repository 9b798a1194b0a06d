"""Fields of a JSON object, checked."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from typing import Any

from sim.errors import TraceError
from workloads.readers.rows import MAX_ID, shown


def parse_object(line: str, expected: str) -> dict[str, Any]:
    """The JSON object of a line, else TraceError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not JSON ({error}); expected an object with {expected}") from None
    if not isinstance(row, dict):
        raise TraceError(f"found {shown(row)}; expected an object with {expected}")
    return row


def need(row: dict[str, Any], keys: Sequence[str], expected: str) -> None:
    """TraceError naming the first key that is missing."""
    for key in keys:
        if key not in row:
            raise TraceError(f"{key} is missing; expected {expected}")


def block_ids(value: object, name: str, prompt_name: str, tokens: int, size: int) -> list[int]:
    """A list of one id for each ``size`` tokens begun of ``tokens``, else TraceError."""
    num_blocks = -(-tokens // size)
    if not isinstance(value, list) or len(value) != num_blocks:
        found = f"{len(value)} ids" if isinstance(value, list) else shown(value)
        raise TraceError(
            f"{name} is {found}; expected a list of {num_blocks} ids, one for each "
            f"{size} tokens begun of {prompt_name} {tokens}"
        )
    return ids(value, name)


def ids(value: Any, name: str) -> list[int]:
    """A list of whole numbers from 0, else TraceError."""
    is_ids = isinstance(value, list) and set(map(type, value)) <= {int}
    if is_ids and (not value or 0 <= min(value) <= max(value) <= MAX_ID):
        good: list[int] = value
        return good
    raise TraceError(f"{name} is {shown(value)}; expected whole numbers from 0 to 2**63 - 1")


def name_of(value: object, name: str) -> Hashable | None:
    """A session or request name: text or a whole number; None where there is none."""
    if value is None or value == "":
        return None
    if isinstance(value, str) or type(value) is int:
        return value
    raise TraceError(f"{name} is {shown(value)}; expected text or a whole number")
