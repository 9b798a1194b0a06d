"""Split measured points into two fixed halves: one to fit with, and one to judge the fit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def point_parameters(point: Mapping[str, Any]) -> dict[str, int]:
    """Return the requested parameters: the fields of one capital letter (B, L, P, ...), and
    ``chunk``.

    All other fields of a controlled point are what was measured, and where.
    """
    chosen = {name: point[name] for name in point if _is_parameter(name)}
    return dict(sorted(chosen.items()))


def is_held_out(key: str, point: Mapping[str, Any]) -> bool:
    """Return whether a point of an info file's ``e1`` is held out of fits, to judge them.

    The half is chosen by a hash of key, kind and parameters, so it does not depend on the order,
    the number or the values of the measurements.
    """
    parameters = ",".join(f"{name}={value}" for name, value in point_parameters(point).items())
    text = f"{key}|{point['kind']}|{parameters}"
    return hashlib.sha256(text.encode()).hexdigest()[0] in "89abcdef"


def _is_parameter(name: str) -> bool:
    return name == "chunk" or (len(name) == 1 and name.isupper())
