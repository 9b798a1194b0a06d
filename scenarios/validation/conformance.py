"""Score the scheduler on a recorded run: the share of steps composed as the engine composed
them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fits.engine_log import RequestRow, StepRows
from scenarios.validation.conversations import are_conversations, conversation_chains, system_tokens
from scenarios.validation.system import System
from sim.clock import Clock
from sim.engine.engine import Engine
from sim.engine.step import InFlight, Plan
from sim.fleet.config import PoolConfig
from sim.kv.pool import KVCache
from sim.recorder import RequestLog
from sim.request import Request

COLUMNS = (
    "prefill_tokens",
    "prefill_reqs",
    "decode_seqs",
    "ctx_decode_sum",
    "ctx_prefill_start_sum",
    "attn_pairs_prefill",
    "running",
    "waiting",
    "preempted",
    "free_blocks",
)
"""Columns of the step log that a replay composes."""


class Replay(NamedTuple):
    """What our scheduler did on the recorded clock."""

    composed: NDArray[np.int64]
    """Composed steps, ``[steps, len(COLUMNS)]``."""
    cached: list[int]
    """Prefix tokens hit by each request."""


def replay(rows: Sequence[RequestRow], steps: StepRows, pool: PoolConfig) -> Replay:
    """Compose the steps of a run; ``rows`` are in order of hand-over to the engine."""
    in_flight: deque[tuple[float, InFlight]] = deque()
    arrivals = deque(enumerate(rows))
    composed: list[tuple[int, ...]] = []
    engine, log = _engine(rows, pool)
    view = engine.view

    def plan_at(now_s: float) -> Plan:
        while arrivals and arrivals[0][1].added <= now_s:
            index, row = arrivals.popleft()
            output = max(1, row.out)
            request = Request(index, 0, row.prompt, output, num_target_tokens=row.prompt)
            view.waiting.add(request)
        return engine.schedule()

    def read_oldest() -> None:
        _, batch = in_flight.popleft()
        for request in batch.finishing:
            engine.lifecycle.finish(request, batch.row, 0)

    for number, (now_s, read_s) in enumerate(zip(steps.t_sched, steps.t_upd_end, strict=True)):
        while in_flight and in_flight[0][0] <= now_s:
            read_oldest()
        plan = plan_at(now_s)
        while not plan.shape.num_tokens and in_flight:  # an empty plan leaves no row in the log
            read_oldest()
            plan = plan_at(now_s)
        shape, batch = plan.shape, InFlight(0, 0, number)
        composed.append(
            (
                shape.prefill_tokens,
                shape.prefill_seqs,
                shape.decode_seqs,
                shape.decode_context_tokens,
                shape.prefill_context_tokens,
                shape.prefill_pairs,
                len(view.running),
                len(view.waiting),
                plan.preempted,
                view.kv.free_blocks,
            )
        )
        engine.lifecycle.commit(plan, batch)
        in_flight.append((read_s, batch))
    return Replay(np.array(composed, np.int64), list(log.cached_tokens))


def _engine(rows: Sequence[RequestRow], pool: PoolConfig) -> tuple[Engine, RequestLog]:
    config = pool.engine
    chains = conversation_chains(rows, config.block_size) if are_conversations(rows) else None
    kv = KVCache(
        config.replica_blocks,
        config.block_size,
        prefix_caching=config.enable_prefix_caching,
        chains=chains,
        layout=config.kv_layout,
    )
    if chains is not None:
        _warm_up(kv, rows)
    log = RequestLog(len(rows))
    return Engine(Clock(), config, pool.cost, pool.make_scheduler(), kv, log), log


def _warm_up(kv: KVCache, rows: Sequence[RequestRow]) -> None:
    """Put the system prompts into the cache if the recording began with them there."""
    tokens = system_tokens(rows, kv.block_size)
    first_of = {row.group.split("/")[0]: i for i, row in reversed([*enumerate(rows)])}
    for index in (i for i in first_of.values() if rows[i].cached):
        request = Request(index, 0, tokens, 1, num_target_tokens=tokens)
        if kv.extend(request, tokens):
            kv.register(request, tokens)
            kv.release(request, tokens, will_return=False)


_SHOWN_STEPS = 5


def score_conformance(
    system: System, run: str, rows: Sequence[RequestRow], steps: StepRows
) -> dict[str, Any]:
    """Return the shares of steps composed equally, in all and by column, and the first that differ.

    Requests are in order of hand-over, as `read_request_runs` returns them.
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
    """Return the columns of a step that differ."""
    return {name: int(row[i]) for i, name in enumerate(COLUMNS) if not equal[i]}
