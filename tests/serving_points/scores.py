"""Errors of predictions over serving points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.serving_points.points import Answer, ServingPoint

WITHIN = 0.35
"""The error that nine in ten points should stay below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A point with what was predicted of it; a text is why nothing was."""

    point: ServingPoint
    answer: Answer | str

    @property
    def throughput_error(self) -> float:
        """Signed relative error of tokens a second; -1 if it was refused."""
        if isinstance(self.answer, str):
            return -1.0
        return self.answer.tokens_per_s / self.point.tokens_per_s - 1

    @property
    def tpot_error(self) -> float:
        """Signed relative error of TPOT; -1 if it was refused."""
        if isinstance(self.answer, str):
            return -1.0
        return self.answer.tpot_s / self.point.tpot_s - 1

    @property
    def group(self) -> str:
        """GPU, and whether the model has experts."""
        return f"{self.point.gpu} {'dense' if self.point.is_dense else 'experts'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors over a number of points, relative to what was measured."""

    points: int
    median: float
    """Of absolute errors of tokens a second."""
    within: float
    """Share of points with an error of at most `WITHIN`."""
    bias: float
    """Median of signed errors."""
    tpot_median: float


def score(rows: Sequence[Scored]) -> Score:
    """Return the errors over some points, at least one."""
    errors = np.array([row.throughput_error for row in rows])
    tpot = np.abs([row.tpot_error for row in rows])
    return Score(
        points=len(rows),
        median=float(np.median(np.abs(errors))),
        within=float(np.mean(np.abs(errors) <= WITHIN)),
        bias=float(np.median(errors)),
        tpot_median=float(np.median(tpot)),
    )


def is_trusted(row: Scored) -> bool:
    """Return whether a point counts: H100 rows may be of slow cards and are shown apart."""
    return row.point.gpu != "H100"
