"""Which measured points a fit may look at, and which judge it: two halves that never change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def point_parameters(point: Mapping[str, Any]) -> dict[str, int]:
    """What was asked for: the fields of one capital letter (B, L, P, ...), and ``chunk``.

    All else of a controlled point is what was measured, and where.
    """
    chosen = {name: point[name] for name in point if _is_parameter(name)}
    return dict(sorted(chosen.items()))


def is_held_out(key: str, point: Mapping[str, Any]) -> bool:
    """Whether a point of an info file's ``e1`` is left out of fits, to judge them.

    The half is drawn by a hash of key, kind and parameters, so it does not depend on the order,
    the number or the values of the measurements.
    """
    parameters = ",".join(f"{name}={value}" for name, value in point_parameters(point).items())
    text = f"{key}|{point['kind']}|{parameters}"
    return hashlib.sha256(text.encode()).hexdigest()[0] in "89abcdef"


def _is_parameter(name: str) -> bool:
    return name == "chunk" or (len(name) == 1 and name.isupper())
