"""What a worker keeps between simulations: compiled step costs and traces, by their content.

Runs of a sweep differ in a field or two, and what the others make is often the slowest part of a
short run. A single simulation keeps nothing: it would only hold memory.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = {"kernels": 8, "cost": 16, "trace": 2}
_numbers = count()
_memo: dict[str, OrderedDict[str, Any]] = {}


def keep_between_runs() -> None:
    """From now on, keep what is made; a worker says so."""
    for kind in _MOST:
        _memo.setdefault(kind, OrderedDict())


def memoized(kind: str, key: str, make: Callable[[], T]) -> T:
    """What ``make`` made for this key before, or makes now. It must not be changed by anyone."""
    entries = _memo.get(kind)
    if entries is None:
        return make()
    if key in entries:
        entries.move_to_end(key)
    else:
        entries[key] = make()
        if len(entries) > _MOST[kind]:
            entries.popitem(last=False)
    found: T = entries[key]
    return found


def content_key(*parts: Any) -> str:
    """A key of plain values and specs. Equal keys are equal contents; not the other way round.

    What cannot be pickled, such as a user's own function, has a new key each time: it is not kept.
    """
    if not _memo:
        return ""
    try:
        content = pickle.dumps(parts)
    except (pickle.PicklingError, TypeError, AttributeError):
        return f"not kept {next(_numbers)}"
    return hashlib.sha256(content).hexdigest()
