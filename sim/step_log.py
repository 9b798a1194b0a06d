"""The log of an engine's steps: one row per run of equal steps, one time per step.

Both stay small while they grow: rows are packed into the narrowest integers that hold them, times
into 32-bit gaps, so that the log of a million requests fits in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.shape import Clip, StepShape, shape_columns, shape_values

_PACK_ROWS = 8192
_PACK_STEPS = 32768
_LONG_GAP = np.iinfo(np.uint32).max  # 4.3 s: marks a gap that is stored separately


class StepLog:
    """The steps of one engine, in order."""

    def __init__(
        self,
        clip_tokens: tuple[Clip, ...] = (),
        *,
        speculates: bool = False,
        feature_columns: tuple[str, ...] = (),
    ) -> None:
        """``clip_tokens`` as in `EngineConfig`: four columns each (`sim.shape`). ``speculates``
        adds the columns of `SpeculatedSums`; ``feature_columns`` are those of optional
        features."""
        self.clip_tokens = clip_tokens
        self.speculates = speculates
        self.shape_names = (*shape_columns(clip_tokens, speculates=speculates), *feature_columns)
        """The columns that are the shape."""
        self.names = (
            *("steps", "plan_ns", "gpu_end_ns", "gpu_ns"),
            *self.shape_names,
            *("running", "waiting", "free_blocks", "preempted"),
        )
        """The columns of a run: number of steps, plan time of the first, GPU end of the last, total
        GPU time, shape of the first step (only contexts grow within a run), and the engine's state
        at its plan."""
        self._row = Struct(f"{len(self.names)}q")
        self.num_rows = 0
        self.num_steps = 0
        self.plans = 0
        """Number of scheduler calls, empty plans included."""
        self.waits: dict[str, list[tuple[int, int, int]]] = {}
        """By time account: (row, number of things moved to or from the device before it, such as
        blocks, time in ns that its kernels waited for them)."""
        self._rows = bytearray()
        self._packed_rows: list[list[NDArray[np.unsignedinteger]]] = []
        self._visible_ns = array("q")
        self._gaps_ns = array("I")
        self._long_gaps_ns: dict[int, int] = {}
        self._last_visible_ns = 0

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
        """Append a run of equal steps."""
        self.num_rows += 1
        self.num_steps += steps
        state = (running, waiting, free_blocks, preempted)
        values = (steps, plan_ns, gpu_end_ns, gpu_ns, *shape_values(shape), *state)
        self._rows += self._row.pack(*values)
        if not self.num_rows % _PACK_ROWS:
            self._pack_rows()

    def add_wait(self, account: str, moved: int, wait_ns: int) -> None:
        """Note that the kernels of the next row wait for ``moved`` things to be moved."""
        self.waits.setdefault(account, []).append((self.num_rows, moved, wait_ns))

    def add_visible(self, visible_ns: list[int]) -> None:
        """Append the times at which the next steps' outputs became visible, in order."""
        self._visible_ns.extend(visible_ns)
        if len(self._visible_ns) >= _PACK_STEPS:
            self._pack_steps()

    @property
    def num_visible(self) -> int:
        """Number of steps whose outputs became visible."""
        return len(self._gaps_ns) + len(self._visible_ns)

    def column(self, name: str) -> Int64:
        """Return one column as int64 ``[rows]``."""
        self._pack_rows()
        position = self.names.index(name)
        parts = [packed[position] for packed in self._packed_rows]
        return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)

    def columns(self) -> dict[str, Int64]:
        """Return all columns by name."""
        return {name: self.column(name) for name in self.names}

    def chunks(self) -> Iterator[dict[str, Int64]]:
        """Yield all columns, a few thousand rows at a time."""
        self._pack_rows()
        for packed in self._packed_rows:
            columns = zip(self.names, packed, strict=True)
            yield {name: column.astype(np.int64) for name, column in columns}

    def gaps_ns(self, start: int = 0, stop: int | None = None) -> Int64:
        """Return the time between each step's visibility and that of the step before; the first
        from 0."""
        self._pack_steps()
        gaps = np.frombuffer(self._gaps_ns, np.uint32)[start:stop].astype(np.int64)
        for step in np.flatnonzero(gaps == _LONG_GAP).tolist():
            gaps[step] = self._long_gaps_ns[start + step]
        return gaps

    def row_visible_ns(self) -> Int64:
        """Return when each run's last step became visible, int64 ``[rows]``.

        A horizon may cut off the reading of the last steps: those get the last known time.
        """
        times, done, now_ns = [np.empty(0, np.int64)], 0, 0
        for columns in self.chunks():
            last_step = np.cumsum(columns["steps"]) - 1
            size = int(last_step[-1]) + 1
            visible_ns = now_ns + np.append(self.gaps_ns(done, done + size), 0).cumsum()
            times.append(visible_ns[np.minimum(last_step, len(visible_ns) - 1)])
            done += size
            now_ns = int(visible_ns[-1])
        return np.concatenate(times)

    def step_visible_ns(self) -> Int64:
        """Return when each step's outputs became visible, int64 ``[steps]``."""
        return np.cumsum(self.gaps_ns())

    def _pack_rows(self) -> None:
        if self._rows:
            rows = np.frombuffer(self._rows, np.int64).reshape(-1, len(self.names))
            packed = [column.astype(np.min_scalar_type(int(column.max()))) for column in rows.T]
            self._packed_rows.append(packed)
            self._rows = bytearray()

    def _pack_steps(self) -> None:
        if self._visible_ns:
            visible_ns = np.frombuffer(self._visible_ns, np.int64)
            gaps_ns = np.diff(visible_ns, prepend=self._last_visible_ns)
            long = np.flatnonzero(gaps_ns >= _LONG_GAP)
            done = len(self._gaps_ns)
            self._long_gaps_ns.update(
                zip((done + long).tolist(), gaps_ns[long].tolist(), strict=True)
            )
            self._gaps_ns.frombytes(np.minimum(gaps_ns, _LONG_GAP).astype(np.uint32).tobytes())
            self._last_visible_ns = int(visible_ns[-1])
            self._visible_ns = array("q")
