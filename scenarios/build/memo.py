"""Compiled step costs and traces that a worker keeps between simulations, keyed by their content.

Runs of a sweep differ in one or two fields, and compiling what they share is often the slowest part
of a short run. A single simulation keeps nothing, because that would only hold memory.
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
    """Keep what is made from now on; called by workers."""
    for kind in _MOST:
        _memo.setdefault(kind, OrderedDict())


def memoized(kind: str, key: str, make: Callable[[], T]) -> T:
    """Return what ``make`` returns, reusing an earlier result for the same key. Callers must not
    modify it."""
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
    """Return a key for plain values and specs; equal keys mean equal contents, but not conversely.

    Contents that cannot be pickled, such as a user's own function, get a new key each time and so
    are never reused.
    """
    if not _memo:
        return ""
    try:
        content = pickle.dumps(parts)
    except (pickle.PicklingError, TypeError, AttributeError):
        return f"not kept {next(_numbers)}"
    return hashlib.sha256(content).hexdigest()
