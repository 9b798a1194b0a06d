"""Errors of both predictors over measured points, found in several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np

from tests.silicon.models import Predicted, estimated, simulated
from tests.silicon.points import SiliconPoint

PROCESSES = 2
SERVED_SHARE = 0.5
"""A family is one that fleetcast serves if it refuses less than this share of its points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One point with what was predicted of it; a text is why nothing was."""

    point: SiliconPoint
    ours: Predicted | str
    aic: Predicted | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one predictor over some points, relative to what was measured."""

    points: int
    answered: int
    tpot: float
    """Mean of absolute errors, those refused at 1; ``answered_tpot``: without them."""
    ttft: float
    answered_tpot: float
    answered_ttft: float
    tpot_bias: float
    """Mean signed error of those answered."""
    ttft_bias: float


def score(scored: Sequence[Scored], of: Callable[[Scored], Predicted | str]) -> Score:
    """The errors of ``of`` over ``scored``; of no points, or none answered, they are NaN."""
    found = [(row.point, said) for row in scored if isinstance(said := of(row), Predicted)]
    tpot = np.array([said.tpot_s / point.tpot_s - 1 for point, said in found])
    ttft = np.array([said.ttft_s / point.ttft_s - 1 for point, said in found])
    missing = len(scored) - len(found)

    def mean(values: np.ndarray, refused: int = 0) -> float:
        count = len(values) + refused
        return float((values.sum() + refused) / count) if count else float("nan")

    return Score(
        points=len(scored),
        answered=len(found),
        tpot=mean(np.abs(tpot), missing),
        ttft=mean(np.abs(ttft), missing),
        answered_tpot=mean(np.abs(tpot)),
        answered_ttft=mean(np.abs(ttft)),
        tpot_bias=mean(tpot),
        ttft_bias=mean(ttft),
    )


def evaluate(
    points: Sequence[SiliconPoint], operators: str, host_speed_factor: float = 1.0
) -> list[Scored]:
    """Both predictions of every point, in `PROCESSES` processes."""
    # Equal GPUs and models side by side: their tables are read once.
    order = sorted(points, key=lambda point: (point.gpu, point.model, point.precision))
    task = partial(_scored, operators=operators, host_speed_factor=host_speed_factor)
    with get_context("spawn").Pool(PROCESSES) as pool:
        return pool.map(task, order, chunksize=16)


def _scored(point: SiliconPoint, operators: str, host_speed_factor: float) -> Scored:
    ours = simulated(point, operators, host_speed_factor)
    return Scored(point=point, ours=ours, aic=estimated(point))


def served(scored: Sequence[Scored]) -> list[Scored]:
    """The points of families that fleetcast serves."""
    total = Counter(row.point.family for row in scored)
    refused = Counter(row.point.family for row in scored if isinstance(row.ours, str))
    return [
        row for row in scored if refused[row.point.family] < SERVED_SHARE * total[row.point.family]
    ]
