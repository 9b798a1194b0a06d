"""What tables say of an operator, or why they say nothing."""

from __future__ import annotations

from typing import NamedTuple

from costmodels.operator_tables.lookup import Labels
from costmodels.operator_tables.table import Array


class Lack(Exception):  # noqa: N818 - it says why, and is caught where it is asked
    """Why no table serves an operator."""


class Served(NamedTuple):
    """Seconds of all calls of an operator in a step, launches included, and labels: ``[n]``."""

    seconds: Array
    labels: Labels
    is_cool: bool
    """Timed in bursts too short for the device to throttle."""
