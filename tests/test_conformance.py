"""The scheduler against a real engine's log: the same composition in every step.

Each serving run of vLLM 0.25.1 (shared data) is replayed on its logged clock: a request enters at
the time it was handed to the engine, outputs are read when the log says so, and the simulated
state is never healed from the log.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import simpy

from calibrate.engine_log import (
    RequestRow,
    StepRows,
    read_info,
    read_request_runs,
    read_step_runs,
)
from policies.fcfs import fcfs
from sim.batch import Plan
from sim.engine import Engine
from sim.engine_view import EngineConfig
from sim.errors import TraceError
from sim.in_flight import InFlight
from sim.kv_cache import KVCache
from sim.recorder import RequestLog
from sim.request import Request
from sim.request_table import PrefixChains
from tests.helpers import SHARED, AffineCost, chains_of

GROUNDTRUTH = SHARED / "data" / "groundtruth"
BLOCK_SIZE = 16
SYSTEM_TOKENS = 512  # of the conversations in `mt40`
RUNS = [("m1", "p10"), ("m1", "p34"), ("m1", "mt40"), ("m2", "p10"), ("m2", "p26"), ("m2", "mt40")]
COMPARED = (
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


@pytest.mark.parametrize(("key", "run"), RUNS)
def test_every_step_is_composed_as_the_real_engine_composed_it(key: str, run: str) -> None:
    if not GROUNDTRUTH.exists():
        pytest.skip("the measured runs (shared/data/groundtruth) are not here")
    num_gpu_blocks = read_info(GROUNDTRUTH / f"{key}_info.json")["num_gpu_blocks"]
    requests = read_request_runs(GROUNDTRUTH / f"{key}_requests.jsonl.gz")[run]
    steps = read_step_runs(GROUNDTRUTH / f"{key}_steps.csv.gz")[run]

    composed, cached = _replay(requests, steps, num_gpu_blocks)

    measured = np.column_stack([getattr(steps, name) for name in COMPARED])
    differing = np.flatnonzero((np.array(composed) != measured).any(axis=1))
    assert len(differing) == 0, f"{len(differing)} of {len(steps)} steps, first {differing[:5]}"
    assert cached == [request.cached for request in requests]


def _replay(
    requests: list[RequestRow], steps: StepRows, num_gpu_blocks: int
) -> tuple[list[tuple[int, ...]], list[int]]:
    """The columns compared, a row a step, and each request's prefix tokens hit."""
    config = EngineConfig(num_gpu_blocks=num_gpu_blocks, block_size=BLOCK_SIZE)
    kv = KVCache(num_gpu_blocks, BLOCK_SIZE, chains=_conversation_chains(requests))
    _warm_up(kv, requests)
    log = RequestLog(len(requests))
    engine = Engine(simpy.Environment(), config, AffineCost(), fcfs, kv, log)
    view = engine.view
    in_flight: deque[tuple[float, InFlight]] = deque()
    arrivals = deque(enumerate(requests))
    composed: list[tuple[int, ...]] = []

    def plan_at(now_s: float) -> Plan:
        while arrivals and arrivals[0][1].added <= now_s:
            index, row = arrivals.popleft()
            request = Request(index, 0, row.prompt, row.planned_out, num_target_tokens=row.prompt)
            view.waiting.add(request)
        return engine.schedule()

    def read_oldest() -> None:
        _, batch = in_flight.popleft()
        for request in batch.finishing:
            engine.finish(request, batch.row)

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
                kv.free_blocks,
            )
        )
        engine.commit(plan, batch)
        in_flight.append((read_s, batch))
    return composed, list(log.cached_tokens)


def _conversation_chains(requests: list[RequestRow]) -> PrefixChains | None:
    """Prompts of `mt40`: a shared system prompt, then all of the conversation so far."""
    if not requests[0].group:
        return None
    system_blocks = SYSTEM_TOKENS // BLOCK_SIZE
    ids, tokens = [], []
    for request in requests:
        system, conversation, _ = (int(part[1:]) for part in request.group.split("/"))
        tokens.append(request.prompt + request.planned_out)
        ids.append(
            [
                (1_000_000 * (system + 1) if j < system_blocks else 10_000 * conversation) + j
                for j in range(-(-tokens[-1] // BLOCK_SIZE))
            ]
        )
    return chains_of(ids, tokens, BLOCK_SIZE, covers_output=True)


def _warm_up(kv: KVCache, requests: list[RequestRow]) -> None:
    """In some recordings the system prompts were in the cache before the run began."""
    first_of = {row.group.split("/")[0]: i for i, row in reversed([*enumerate(requests)])}
    for index in (i for i in first_of.values() if requests[i].cached):
        request = Request(index, 0, SYSTEM_TOKENS, 1, num_target_tokens=SYSTEM_TOKENS)
        assert kv.extend(request, SYSTEM_TOKENS)
        kv.register(request, SYSTEM_TOKENS)
        kv.release(request, SYSTEM_TOKENS, will_return=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run,t_sched\np10,0.1\n", "missing columns attn_pairs_prefill"),
        (
            f"run,t_sched,t_sched_end,t_out,t_upd_end,{','.join(COMPARED)}\np10{',x' * 14}\n",
            "line 2",
        ),
    ],
)
def test_a_damaged_step_log_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_step_runs(path)


@pytest.mark.parametrize(("line", "message"), [("{", "not JSON"), ('{"run": "p10"}', "arrival")])
def test_a_damaged_request_log_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(line)
    with pytest.raises(TraceError, match=message):
        read_request_runs(path)
