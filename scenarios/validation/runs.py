"""Simulate serving runs freely, from arrivals alone, and score them figure by figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fits.engine_log import RequestRow, StepRows
from scenarios.run.bands import BUSY, SATURATED, bands_of
from scenarios.validation.accuracy import AccuracyFigure
from scenarios.validation.conversations import are_conversations, conversation_chains, turns_after
from scenarios.validation.system import System
from sim.arrays import Float64
from sim.books.metrics import LATENCIES, RequestMetrics, Slo, request_metrics, statistics
from sim.books.saturation import saturation
from sim.evidence import weakest
from sim.fleet.cluster import RunLog, run_cluster
from sim.request_table import RequestTable, request_table

_START_S = 10.0
_LONG_STEP_S = 0.5
_TIMES_LATER_STEPS = 2.0
_RECOVERY = 1.5  # the queue of a stall needs about half its length again to drain


def settled_s(steps: StepRows | None, max_num_batched_tokens: int) -> float:
    """Return the time from which a run is scored: 0, or well after the last stall of its start.

    A stall is a step of more than half a second in the first ten seconds, with less than a full
    batch, that takes more than twice as long as any later step.
    """
    if steps is None or not len(steps):
        return 0.0
    before_s = np.append(0.0, steps.t_out[:-1])
    duration_s = steps.t_out - np.maximum(before_s, steps.t_sched)
    is_early = steps.t_sched < _START_S
    later_s = float(duration_s[~is_early].max(initial=0.0))
    is_stall = (
        is_early
        & (later_s > 0)
        & (duration_s > max(_LONG_STEP_S, _TIMES_LATER_STEPS * later_s))
        & (steps.prefill_tokens + steps.decode_seqs < max_num_batched_tokens)
    )
    return float(steps.t_out[is_stall].max(initial=0.0)) * _RECOVERY


class State(NamedTuple):
    """Requests in the running list, after scheduling."""

    mean_running: float
    """Time-weighted from the first scored moment to the last output; an idle engine runs none."""
    max_running: float


def measured_state(steps: StepRows, from_s: float = 0.0) -> State:
    """Return the state of a recorded run with at least one step."""
    next_plan_s = np.append(steps.t_sched[1:], np.inf)
    until_s = np.minimum(next_plan_s, steps.t_upd_end)
    return _state(steps.running, steps.t_sched, until_s, from_s)


def simulated_state(log: RunLog, from_s: float = 0.0) -> State:
    """Return the state of a simulated run of one engine."""
    steps = log.steps[0]
    plan_s = steps.column("plan_ns") / 1e9
    until_s = np.minimum(np.append(plan_s[1:], np.inf), steps.row_visible_ns() / 1e9)
    return _state(steps.column("running"), plan_s, until_s, from_s)


def _state(
    running: NDArray[np.int64],
    start_s: NDArray[np.float64],
    until_s: NDArray[np.float64],
    from_s: float,
) -> State:
    held_s = np.maximum(until_s - np.maximum(start_s, from_s), 0)
    end_s = float(until_s.max(initial=from_s))
    mean = float((running * held_s).sum() / (end_s - from_s)) if end_s > from_s else 0.0
    return State(mean, float(running[held_s > 0].max(initial=0)))


_Samples = dict[str, dict[str, Float64]]  # latency -> predicted and measured, [requests scored]
_Pair = tuple[float | None, float | None]  # predicted, measured
# metric, unit, statistic, pair, size of the population
_Compared = tuple[str, str, str, _Pair, int]

_STATISTICS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """A serving run: its figures, conditions and warnings, and the latencies behind the figures."""

    figures: list[AccuracyFigure]
    conditions: dict[str, Any]
    samples_s: _Samples
    """Latency -> ``predicted`` and ``measured``, ``[requests scored]``, NaN where there is none."""
    warnings: list[str]


def score_run(
    system: System, run: str, rows: Sequence[RequestRow], steps: StepRows | None
) -> ScoredRun:
    """Simulate a run and compare. Raises `TraceError` or `ScenarioError` if it cannot be
    simulated."""
    rows = sorted(rows, key=lambda row: row.arrival)
    is_closed = are_conversations(rows)
    # One row per step, as in the recording: within a run of equal steps the log does not say which
    # request finished.
    stepped = replace(system.pool, engine=replace(system.pool.engine, fast_forward=False))
    table = _table(system, rows, is_closed=is_closed)
    log = run_cluster(table, stepped)
    metrics = request_metrics(log, Slo())
    from_s = settled_s(steps, system.pool.engine.step_token_limit)
    scored = np.array([row.arrival >= from_s for row in rows])
    load, saturation_per_s = _load(log, metrics)
    regime = "light" if load < BUSY else "busy" if load < SATURATED else "saturated"

    def compared(log: RunLog, samples_s: _Samples, metrics: RequestMetrics) -> list[_Compared]:
        return [
            *_latency_pairs(samples_s),
            *_total_pairs(log, metrics, rows),
            *_state_pairs(log, steps, from_s),
        ]

    samples_s = _samples(metrics, rows, scored)
    pairs = compared(log, samples_s, metrics)
    values = {(metric, statistic): pair[0] for metric, _, statistic, pair, _ in pairs}
    bands = bands_of(values, weakest(system.replica.cost.evidence().values()), regime)
    figures = [
        replace(figure, band=bands.get((metric, statistic)))
        for metric, unit, statistic, pair, count in pairs
        if (figure := _figure(system.key, run, regime, metric, unit, statistic, pair, count))
    ]
    unfinished = int((~metrics.finished).sum())
    return ScoredRun(
        figures=figures,
        conditions={
            "requests": len(rows),
            "loop": "closed: turns a think time after the answer" if is_closed else "open",
            "regime": regime,
            "load": load,
            "saturation_per_s": saturation_per_s,
            "scored_from_s": from_s,
            "requests_scored": int(scored.sum()),
        },
        samples_s=samples_s,
        warnings=[f"{unfinished} of {len(rows)} requests are refused"] if unfinished else [],
    )


def _table(system: System, rows: Sequence[RequestRow], *, is_closed: bool) -> RequestTable:
    after = think_ns = chains = None
    arrival_s = np.array([row.arrival for row in rows])
    if is_closed:
        after, think_ns = turns_after(rows)
        arrival_s = np.where(after < 0, arrival_s, 0.0)
        chains = conversation_chains(rows, system.pool.engine.block_size)
    return request_table(
        arrival_s,
        np.array([row.prompt for row in rows]),
        np.array([row.out for row in rows]),
        chains=chains,
        after=after,
        think_ns=think_ns,
        source=f"the recording {system.key}",
    )


def _samples(
    metrics: RequestMetrics, rows: Sequence[RequestRow], scored: NDArray[np.bool_]
) -> _Samples:
    gaps = np.array([row.out - 1 if row.out > 1 else np.nan for row in rows])
    arrival, first, finish = (
        np.array([getattr(row, name) for row in rows]) for name in ("arrival", "first", "finish")
    )
    measured = {"ttft": first - arrival, "tpot": (finish - first) / gaps, "e2e": finish - arrival}
    return {
        name: {
            "predicted": getattr(metrics, f"{name}_s")[scored],
            "measured": measured[name][scored],
        }
        for name in LATENCIES
    }


def _load(log: RunLog, metrics: RequestMetrics) -> tuple[float, float | None]:
    """Return the offered load over the saturation rate; a closed loop offers what is served."""
    limit = saturation(log)
    if limit is None or not np.isfinite(limit.saturation_per_s):
        return 0.0, None
    served_per_s = metrics.finished.sum() / (log.end_ns / 1e9)
    offered_per_s = limit.offered_per_s or float(served_per_s)
    return offered_per_s / limit.saturation_per_s, limit.saturation_per_s


def _latency_pairs(samples_s: _Samples) -> Iterator[_Compared]:
    for metric, sample in samples_s.items():
        ours, theirs = (statistics(sample[side]) for side in ("predicted", "measured"))
        count = int((~np.isnan(sample["measured"])).sum())
        for name in _STATISTICS:
            yield metric, "s", name, (ours[name], theirs[name]), count


def _total_pairs(
    log: RunLog, metrics: RequestMetrics, rows: Sequence[RequestRow]
) -> Iterator[_Compared]:
    """Yield throughput, finished requests or output tokens over the time of the last finish, and
    more."""
    finished, count = metrics.finished, len(rows)
    last_s = max(1, *log.requests.finished_ns) / 1e9, max(row.finish for row in rows)
    requests = float(finished.sum()), float(count)
    tokens = float(log.table.output_tokens[finished].sum()), float(sum(row.out for row in rows))
    for name, unit, (ours, theirs) in (
        ("request_throughput", "1/s", requests),
        ("output_throughput", "tokens/s", tokens),
    ):
        yield name, unit, "mean", (ours / last_s[0], theirs / last_s[1]), count
    preempted = float(sum(log.requests.preemptions)), float(sum(row.preempt for row in rows))
    yield "preemptions", "count", "total", preempted, count


def _state_pairs(log: RunLog, steps: StepRows | None, from_s: float) -> Iterator[_Compared]:
    if steps is None or not len(steps):
        return
    ours, theirs = simulated_state(log, from_s), measured_state(steps, from_s)
    for name, pair in (
        ("mean", (ours.mean_running, theirs.mean_running)),
        ("max", (ours.max_running, theirs.max_running)),
    ):
        yield "running", "count", name, pair, len(steps)


def _figure(
    key: str,
    run: str,
    regime: str,
    metric: str,
    unit: str,
    statistic: str,
    pair: _Pair,
    count: int,
) -> AccuracyFigure | None:
    predicted, measured = pair
    if predicted is None or measured is None:
        return None
    return AccuracyFigure(
        run=f"{key}:{run}",
        regime=regime,
        metric=metric,
        statistic=statistic,
        unit=unit,
        predicted=float(predicted),
        measured=float(measured),
        count=count,
    )
