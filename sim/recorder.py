"""What a run leaves behind, as columns: a row a request, a row a run of equal steps."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from sim.request import Request, Status
from sim.shape import StepShape

UNSET = -1
"""Value of a time or a row that never came."""


def _column(length: int, value: int = UNSET) -> array[int]:
    return array("q", [value]) * length


class RequestLog:
    """One row a request of the table; times in ns, rows count into the replica's `StepLog`."""

    def __init__(self, num_requests: int) -> None:
        n = num_requests
        self.status = array("b", [Status.WAITING]) * n
        self.replica = array("h", [UNSET]) * n
        self.arrival_ns = _column(n)
        self.seen_ns = _column(n)
        """First scheduler call that saw it waiting."""
        self.admitted_ns = _column(n)
        """Scheduler call that gave it its first tokens."""
        self.first_token_ns = _column(n)
        self.finished_ns = _column(n)
        self.first_row = _column(n)
        self.first_token_row = _column(n)
        self.last_row = _column(n)
        self.cached_tokens = _column(n, 0)
        self.preemptions = array("i", [0]) * n
        self.recomputes: list[tuple[int, int, int]] = []
        """(request, row that preempted it, row that had recomputed it), closed intervals."""
        self.held_back: list[tuple[int, int]] = []
        """(request, row): a decode step that left a decoding request out."""
        self._preempted_at: dict[int, int] = {}
        self.reject_reasons: dict[int, str] = {}

    def admitted(self, request: Request, now_ns: int, row: int) -> None:
        """It got its first tokens; only the first admission counts."""
        index = request.index
        if self.first_row[index] == UNSET:
            self.admitted_ns[index] = now_ns
            self.first_row[index] = row
            self.cached_tokens[index] = request.cached_tokens

    def preempted(self, request: Request, row: int) -> None:
        """It lost its blocks at the plan of this row."""
        self.preemptions[request.index] = request.num_preemptions
        if request.status is Status.WAITING:
            self._preempted_at.setdefault(request.index, row)

    def prefilled(self, request: Request, row: int) -> None:
        """This row computed the last of its known tokens and samples the next."""
        if self.first_token_row[request.index] == UNSET:
            self.first_token_row[request.index] = row
        if request.num_preemptions:
            start = self._preempted_at.pop(request.index, None)
            if start is not None:
                self.recomputes.append((request.index, start, row))

    def finished(self, request: Request, now_ns: int, row: int) -> None:
        """Its last token became visible."""
        self.status[request.index] = Status.FINISHED
        self.finished_ns[request.index] = now_ns
        self.last_row[request.index] = row

    def rejected(self, request: Request, now_ns: int, reason: str) -> None:
        """It was turned away."""
        self.status[request.index] = Status.REJECTED
        self.finished_ns[request.index] = now_ns
        self.reject_reasons[request.index] = reason


class StepLog:
    """One row a run of equal steps of one engine, in order; `visible_ns` has one entry a step."""

    COLUMNS = (
        "steps",
        "plan_ns",
        "gpu_end_ns",
        "gpu_ns",
        *StepShape._fields,
        "running",
        "waiting",
        "free_blocks",
        "preempted",
    )

    def __init__(self) -> None:
        self._rows = array("q")
        self._width = len(self.COLUMNS)
        self.visible_ns = array("q")
        self.num_rows = 0
        self.plans = 0
        """Scheduler calls, empty plans included."""

    def __len__(self) -> int:
        return self.num_rows

    def append(
        self,
        steps: int,
        plan_ns: int,
        gpu_end_ns: int,
        gpu_ns: int,
        shape: StepShape,
        running: int,
        waiting: int,
        free_blocks: int,
        preempted: int,
    ) -> None:
        """Add a run: its first plan, GPU end of its last step, GPU time in all, state at the plan.

        The shape is that of the first step; in a run only the context grows.
        """
        self.num_rows += 1
        state = (running, waiting, free_blocks, preempted)
        self._rows.extend((steps, plan_ns, gpu_end_ns, gpu_ns, *shape, *state))

    def column(self, name: str) -> NDArray[np.int64]:
        """A column as int64 ``[rows]`` (a view: take it when the run is over)."""
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, self._width)
        return rows[:, self.COLUMNS.index(name)]

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """All columns, by name."""
        return {name: self.column(name) for name in self.COLUMNS}

    def step_visible_ns(self) -> NDArray[np.int64]:
        """When each step's outputs became visible, int64 ``[steps]``."""
        return np.frombuffer(self.visible_ns, np.int64)
