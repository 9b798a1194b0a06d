"""Scores the scheduler on a recorded run: in how many steps it composed what the engine did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrate.fits.engine_log import RequestRow, StepRows
from scenarios.validation.replay import COLUMNS, replay
from scenarios.validation.system import System

_SHOWN_STEPS = 5


def score_conformance(
    system: System, run: str, rows: Sequence[RequestRow], steps: StepRows
) -> dict[str, Any]:
    """Shares of steps composed equally, in all and by column, and the first that differ.

    Requests are in order of hand-over, as `read_request_runs` gives them.
    """
    measured = np.column_stack([getattr(steps, name) for name in COLUMNS])
    ours = replay(rows, steps, system.pool)
    equal = ours.composed == measured
    whole = equal.all(axis=1)
    hits = [cached == row.cached for cached, row in zip(ours.cached, rows, strict=True)]
    return {
        "key": system.key,
        "run": run,
        "steps": len(steps),
        "equal": float(whole.mean()) if len(steps) else None,
        "by_column": {
            name: float(equal[:, column].mean()) if len(steps) else None
            for column, name in enumerate(COLUMNS)
        },
        "requests": len(rows),
        "cached_equal": float(np.mean(hits)) if hits else None,
        "first_differing": [
            {
                "step": step,
                "t_s": float(steps.t_sched[step]),
                "composed": _differences(ours.composed[step], equal[step]),
                "recorded": _differences(measured[step], equal[step]),
            }
            for step in np.flatnonzero(~whole)[:_SHOWN_STEPS].tolist()
        ],
    }


def _differences(row: Any, equal: Any) -> dict[str, int]:
    """The columns of a step that differ."""
    return {name: int(row[i]) for i, name in enumerate(COLUMNS) if not equal[i]}
