"""Steps and counters of an engine as trace events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reports.perfetto import events as trace
from reports.perfetto.events import whole_ns
from sim.arrays import Int64

if TYPE_CHECKING:
    import pandas as pd

# A host takes milliseconds between steps; a longer gap means that the engine had no work.
_IDLE_GAP_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """Runs of equal steps of one engine, in order; times in ns, each ``[rows]``."""

    replica: int
    rows: pd.DataFrame
    start_ns: Int64
    """Time from which each run of steps could begin: its plan or the GPU end of the run before,
    whichever is later."""
    end_ns: Int64
    """Time at which its last step ended on the GPU."""
    gpu_ns: Int64
    visible_ns: Int64
    """Time at which each step's outputs became visible, ``[steps]``; a horizon may omit the
    last."""

    @property
    def first_step(self) -> Int64:
        """Return the index of each run's first step, with the total number of steps at the end."""
        return np.concatenate([[0], np.cumsum(self.rows["steps"].to_numpy(np.int64))])

    def row_of(self, visible_ns: Int64) -> Int64:
        """Return the row of the step whose outputs became visible at each time."""
        step = np.searchsorted(self.visible_ns, visible_ns)
        row = np.searchsorted(self.first_step, step, side="right") - 1
        return np.minimum(row, len(self.rows) - 1)


def engine_steps(steps: pd.DataFrame, step_times: pd.DataFrame) -> dict[int, EngineSteps]:
    """Return the engines of a run by replica, from steps.parquet and step_times.parquet."""
    times = {int(str(name)): rows["visible_ns"] for name, rows in step_times.groupby("replica")}
    found = {}
    for name, rows in steps.groupby("replica", sort=True):
        replica, end_ns = int(str(name)), whole_ns(rows["gpu_end_s"])
        free_ns = np.concatenate([[0], end_ns[:-1]])
        found[replica] = EngineSteps(
            replica=replica,
            rows=rows,
            start_ns=np.maximum(whole_ns(rows["plan_s"]), free_ns),
            end_ns=end_ns,
            gpu_ns=whole_ns(rows["gpu_s"]),
            visible_ns=np.asarray(times.get(replica, ()), np.int64),
        )
    return found


def step_events(engine: EngineSteps, shown: Int64) -> Iterator[str]:
    """Yield a slice per run of equal steps, for the rows in ``shown``."""
    rows, pid = engine.rows.iloc[shown], trace.engine_pid(engine.replica)
    names = np.where(
        rows["prefill_tokens"] == 0,
        "decode",
        np.where(rows["decode_seqs"] > 0, "prefill and decode", "prefill"),
    )
    spans = (c[shown].tolist() for c in (engine.start_ns, engine.end_ns, engine.gpu_ns))
    fields = (
        "steps",
        "decode_seqs",
        "decode_context_tokens",
        "prefill_seqs",
        "prefill_tokens",
        "prefill_context_tokens",
        "running",
        "waiting",
    )
    columns = [rows[field].to_numpy(np.int64).tolist() for field in fields]
    layout = ",".join(f'"{field}":%d' for field in fields)
    for name, start, end, gpu, *values in zip(names.tolist(), *spans, *columns, strict=True):
        args = f'{{"gpu_us":{trace.us(gpu)},{layout % tuple(values)}}}'
        yield trace.complete(pid, trace.STEPS, name, start, end, args)


def token_events(engine: EngineSteps, shown: Int64) -> Iterator[str]:
    """Yield a slice per single step: from the outputs of the previous step, or the plan, to its
    own."""
    pid, first = trace.engine_pid(engine.replica), engine.first_step
    before_ns = np.concatenate([[0], engine.visible_ns[:-1]])
    plan_ns = whole_ns(engine.rows["plan_s"])
    for row in shown.tolist():
        steps = range(first[row], min(int(first[row + 1]), len(engine.visible_ns)))
        plan = int(plan_ns[row])
        for step in steps:
            start, end = max(int(before_ns[step]), plan), int(engine.visible_ns[step])
            yield trace.complete(pid, trace.TOKENS, "step", start, end, f'{{"step":{step}}}')


def counter_events(
    engine: EngineSteps, shown: Int64, usable_blocks: float, *, ends_idle: bool
) -> Iterator[str]:
    """Yield counters where they change: state at each plan, rates over each run of steps, zeros
    when idle."""
    rows, pid = engine.rows, trace.engine_pid(engine.replica)
    length_s = np.maximum(engine.end_ns - engine.start_ns, 1) / 1e9
    steps = rows["steps"].to_numpy(float)
    plan_ns = whole_ns(rows["plan_s"])
    counters = (
        ("running", "requests", plan_ns, rows["running"]),
        ("waiting", "requests", plan_ns, rows["waiting"]),
        ("KV blocks", "used", plan_ns, usable_blocks - rows["free_blocks"]),
        ("tokens/s", "output", engine.start_ns, rows["logits"] * steps / length_s),
        ("tokens/s", "prompt", engine.start_ns, rows["prefill_tokens"] * steps / length_s),
        ("GPU busy", "share", engine.start_ns, engine.gpu_ns / 1e9 / length_s),
    )
    next_ns = np.append(plan_ns[1:], np.iinfo(np.int64).max if ends_idle else 0)
    is_idle_after = next_ns - engine.end_ns > _IDLE_GAP_NS
    for name, unit, at_ns, values in counters:
        last = None
        known = np.asarray(values, float)[shown].tolist()
        ends = zip(is_idle_after[shown].tolist(), engine.end_ns[shown].tolist(), strict=True)
        for at, value, (idle, end) in zip(at_ns[shown].tolist(), known, ends, strict=True):
            if value != last:
                yield trace.counter(pid, name, unit, at, value)
            if idle and value:
                yield trace.counter(pid, name, unit, end, 0.0)
            last = 0.0 if idle else value


def preemption_events(engine: EngineSteps, shown: Int64) -> Iterator[str]:
    """Yield an instant event for each plan that preempted requests."""
    count = engine.rows["preempted"].to_numpy(np.int64)
    plan_ns = whole_ns(engine.rows["plan_s"])
    for row in shown[count[shown] > 0].tolist():
        args = f'{{"requests":{count[row]}}}'
        yield trace.instant(trace.engine_pid(engine.replica), "preempted", int(plan_ns[row]), args)
