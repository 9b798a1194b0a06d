"""The scheduler against a real engine's log: the same composition in every step.

Each serving run of vLLM 0.25.1 (shared data) is replayed on its logged clock: a request enters at
the time it was handed to the engine, outputs are read when the log says so, and the simulated
state is never healed from the log.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import deque
from typing import Any

import numpy as np
import pytest
import simpy

from policies.fcfs import fcfs
from sim.batch import Plan
from sim.engine import Engine, InFlight
from sim.engine_view import EngineConfig
from sim.kv_cache import KVCache
from sim.recorder import RequestLog
from sim.request import Request
from sim.request_table import PrefixChains
from tests.helpers import SHARED, AffineCost, chains_of

GROUNDTRUTH = SHARED / "data" / "groundtruth"
BLOCK_SIZE = 16
SYSTEM_TOKENS = 512  # of `mt40`, by its README
RUNS = [(key, run) for key in ("m1", "m2") for run in ("p10", "p34", "p26", "mt40")]
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


@pytest.mark.parametrize(("key", "run"), RUNS)
def test_every_step_is_composed_as_the_real_engine_composed_it(key: str, run: str) -> None:
    if not GROUNDTRUTH.exists():
        pytest.skip("the measured runs (shared/data/groundtruth) are not here")
    info = json.loads((GROUNDTRUTH / f"{key}_info.json").read_text())
    requests = [r for r in _json_lines(f"{key}_requests.jsonl.gz") if r["run"] == run]
    steps = [r for r in _csv_rows(f"{key}_steps.csv.gz") if r["run"] == run]
    if not steps:
        pytest.skip(f"{key} has no run {run}")
    requests.sort(key=lambda r: r["added"])

    composed, cached = _replay(requests, steps, info["num_gpu_blocks"])

    measured = np.array([[int(step[name]) for name in COLUMNS] for step in steps])
    differing = np.flatnonzero((composed != measured).any(axis=1))
    assert len(differing) == 0, f"{len(differing)} of {len(steps)} steps, first {differing[:5]}"
    assert cached == [r["cached"] for r in requests]


def _replay(
    requests: list[dict[str, Any]], steps: list[dict[str, str]], num_gpu_blocks: int
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[int]]:
    config = EngineConfig(num_gpu_blocks=num_gpu_blocks, block_size=BLOCK_SIZE)
    kv = KVCache(num_gpu_blocks, BLOCK_SIZE, chains=_conversation_chains(requests))
    _warm_up(kv, requests)
    log = RequestLog(len(requests))
    engine = Engine(simpy.Environment(), config, AffineCost(), fcfs, kv, log)
    view = engine.view
    in_flight: deque[tuple[float, InFlight]] = deque()
    arrivals = deque(enumerate(requests))
    rows = []

    def plan_at(now_s: float) -> Plan:
        while arrivals and arrivals[0][1]["added"] <= now_s:
            index, r = arrivals.popleft()
            prompt = r["prompt"]
            view.waiting.add(Request(index, 0, prompt, r["planned_out"], num_target_tokens=prompt))
        return engine.schedule()

    def read_oldest() -> None:
        _, batch = in_flight.popleft()
        for request in batch.finishing:
            engine.finish(request, batch.row)

    for number, step in enumerate(steps):
        now_s = float(step["t_sched"])
        while in_flight and in_flight[0][0] <= now_s:
            read_oldest()
        plan = plan_at(now_s)
        while not plan.shape.num_tokens and in_flight:  # an empty plan leaves no row in the log
            read_oldest()
            plan = plan_at(now_s)
        shape, batch = plan.shape, InFlight(0, 0, number)
        rows.append(
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
        in_flight.append((float(step["t_upd_end"]), batch))
    return np.array(rows), list(log.cached_tokens)


def _conversation_chains(requests: list[dict[str, Any]]) -> PrefixChains | None:
    """Prompts of `mt40`: a shared system prompt of 512 tokens, then the conversation so far."""
    if not requests[0]["group"]:
        return None
    system_blocks = SYSTEM_TOKENS // BLOCK_SIZE
    ids, tokens = [], []
    for request in requests:
        system, conversation, _ = (int(part[1:]) for part in request["group"].split("/"))
        total = request["prompt"] + request["planned_out"]
        tokens.append(total)
        ids.append(
            [
                (1_000_000 * (system + 1) if j < system_blocks else 10_000 * conversation) + j
                for j in range(-(-total // BLOCK_SIZE))
            ]
        )
    return chains_of(ids, tokens, BLOCK_SIZE, covers_output=True)


def _warm_up(kv: KVCache, requests: list[dict[str, Any]]) -> None:
    """In some recordings the system prompts were in the cache before the run began."""
    if not requests[0]["group"]:
        return
    first_of = {r["group"].split("/")[0]: index for index, r in reversed([*enumerate(requests)])}
    for index in (i for i in first_of.values() if requests[i]["cached"]):
        request = Request(index, 0, SYSTEM_TOKENS, 1, num_target_tokens=SYSTEM_TOKENS)
        assert kv.extend(request, SYSTEM_TOKENS)
        kv.register(request, SYSTEM_TOKENS)
        kv.release(request, SYSTEM_TOKENS, will_return=False)


def _json_lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(GROUNDTRUTH / name, "rt") as file:
        return [json.loads(line) for line in file]


def _csv_rows(name: str) -> list[dict[str, str]]:
    with gzip.open(GROUNDTRUTH / name, "rt") as file:
        return list(csv.DictReader(file))
