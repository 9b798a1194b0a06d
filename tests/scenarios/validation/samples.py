"""A folder of measurements as the real engine would leave them, made by simulation."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.validation.folder import Recording
from scenarios.validation.points import PARAMETERS
from scenarios.validation.protocol import predict_ms
from scenarios.validation.system import System, read_system
from sim.fleet.cluster import RunLog, run_cluster
from sim.request_table import RequestTable, request_table
from tests.properties.tables import chains_of

SYSTEM_TOKENS, BLOCK = 64, 16
LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
INFO: dict[str, Any] = {
    "model_name": "Tiny",
    "hf_config": LLAMA,
    "engine_args": {"max_model_len": "4096", "gpu_memory_utilization": "0.5"},
    "vllm": "0.25.1",
    "gpu": "NVIDIA H200, 580.159.04, 143771 MiB",
    "max_num_batched_tokens": 512,
    "max_num_seqs": 64,
    "block_size": BLOCK,
    "num_gpu_blocks": 2000,
    "async_scheduling": True,
    "prefix_caching": True,
    "kv_cache_dtype": "auto",
    "compilation": {"cudagraph_mode": "FULL_AND_PIECEWISE", "sizes": [1, 2, 4, 8, 16, 32]},
}
POINTS = (
    {"kind": "decode", "B": 4, "L": 512},
    {"kind": "prefill", "P": 300},
    {"kind": "extend", "P": 100, "C": 512},
    {"kind": "multiprefill", "N": 3, "P": 100},
    {"kind": "mixed", "P": 128, "D": 8, "L": 256},
)


def write_sample(folder: Path, key: str = "x1", *, zipped: bool = True, **changes: Any) -> Path:
    """Write the four files of one key; ``changes`` replace fields of the info file."""
    folder.mkdir(exist_ok=True)
    info_path = folder / f"{key}_info.json"
    info_path.write_text(json.dumps(INFO | changes))
    system = read_system(Recording(key=key, info_path=info_path))
    points = [_point(system, point) for point in POINTS]
    info_path.write_text(json.dumps(INFO | changes | {"e1": points}))
    runs = {"p20": _poisson(), "mt": _conversations()}
    steps, requests = [_HEADER], []
    pool = replace(system.pool, engine=replace(system.pool.engine, fast_forward=False))
    for run, (table, groups) in runs.items():
        log = run_cluster(table, pool)
        steps += _step_lines(run, log)
        requests += _request_lines(run, log, groups)
    chunks = [_HEADER, *(f"prefill_P700,{row}" for row in _CHUNKS)]
    for name, lines in (
        ("steps.csv", steps),
        ("requests.jsonl", requests),
        ("e1_steps.csv", chunks),
    ):
        text = "\n".join(lines) + "\n"
        if zipped:
            (folder / f"{key}_{name}.gz").write_bytes(gzip.compress(text.encode(), 1))
        else:
            (folder / f"{key}_{name}").write_text(text)
    return folder


_HEADER = (
    "run,t_sched,t_sched_end,t_out,t_upd_end,prefill_tokens,prefill_reqs,decode_seqs,"
    "ctx_decode_sum,ctx_prefill_start_sum,attn_pairs_prefill,running,waiting,preempted,free_blocks"
)
# A prompt of 700 tokens in two chunks, three times.
_CHUNKS = [
    f"{at + begin},{at + begin},{at + end},{at + end},{tokens},1,0,0,{start},1,1,0,0,1999"
    for at in (0.0, 1.0, 2.0)
    for begin, end, tokens, start in ((0.0, 0.010, 512, 0), (0.001, 0.016, 188, 512))
]


def _point(system: System, point: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: int(point[name]) for name in PARAMETERS[point["kind"]]}
    pool = replace(system.pool, cost=system.replica.plain_cost(equal_contexts=True))
    ms = predict_ms(pool, point["kind"], asked)
    return {**point, "n": 4, "ms_median": ms, "ms_min": ms, "ms_p90": ms, "ms_max": ms}


def _poisson() -> tuple[RequestTable, list[str]]:
    draw = np.random.default_rng(1)
    arrival_s = np.cumsum(draw.exponential(1 / 20, 200))
    prompt, output = draw.integers(20, 1500, 200), draw.integers(1, 120, 200)
    return request_table(arrival_s, prompt, output), [""] * 200


def _conversations() -> tuple[RequestTable, list[str]]:
    """Four conversations of three turns on two system prompts, their turns in step."""
    turns, conversations = 3, 4
    arrival_s: list[float] = []
    prompt: list[int] = []
    after: list[int] = []
    think_ns: list[int] = []
    groups: list[str] = []
    ids: list[list[int]] = []
    for turn in range(turns):
        for conversation in range(conversations):
            system = conversation % 2
            groups.append(f"s{system}/c{conversation}/t{turn}")
            arrival_s.append(0.0 if turn else 0.3 * conversation)
            after.append(len(after) - conversations if turn else -1)
            think_ns.append(1_000_000_000 if turn else 0)
            prompt.append(SYSTEM_TOKENS + 50 + 137 * turn)
            shared = [1000 * system + j for j in range(SYSTEM_TOKENS // BLOCK)]
            own = [10_000 * (1 + conversation) + j for j in range(-(-(prompt[-1] + 60) // BLOCK))]
            ids.append([*shared, *own[len(shared) :]])
    covered = [tokens + 60 for tokens in prompt]
    table = request_table(
        np.array(arrival_s),
        np.array(prompt),
        np.full(len(prompt), 60),
        after=np.array(after),
        think_ns=np.array(think_ns),
        chains=chains_of(ids, covered, BLOCK, covers_output=True),
    )
    return table, groups


def _step_lines(run: str, log: RunLog) -> list[str]:
    steps = log.steps[0].columns()
    cost = log.pool.cost
    schedule_ns = np.array([cost.schedule_ns(n) for n in steps["running"].tolist()])
    seqs = (steps["decode_seqs"] + steps["prefill_seqs"]).tolist()
    update_ns = np.array([cost.update_ns(n) for n in seqs])
    plan_ns, visible_ns = steps["plan_ns"], log.steps[0].step_visible_ns()
    times_ns = (plan_ns, plan_ns + schedule_ns, visible_ns - update_ns, visible_ns)
    times_s = zip(*((ns / 1e9).tolist() for ns in times_ns), strict=True)
    names = [
        *("prefill_tokens", "prefill_seqs", "decode_seqs", "decode_context_tokens"),
        *("prefill_context_tokens", "prefill_pairs", "running", "waiting", "preempted"),
        "free_blocks",
    ]
    counts = zip(*(steps[name].tolist() for name in names), strict=True)
    return [
        ",".join(map(str, (run, *times, *count)))
        for times, count in zip(times_s, counts, strict=True)
    ]


def _request_lines(run: str, log: RunLog, groups: list[str]) -> list[str]:
    requests, table = log.requests, log.table
    return [
        json.dumps(
            {
                "run": run,
                "id": str(index),
                "arrival": requests.arrival_ns[index] / 1e9,
                "added": requests.arrival_ns[index] / 1e9,
                "prompt": int(table.prompt_tokens[index]),
                "planned_out": int(table.output_tokens[index]),
                "out": int(table.output_tokens[index]),
                "cached": requests.cached_tokens[index],
                "group": group,
                "preempt": requests.preemptions[index],
                "first": requests.first_token_ns[index] / 1e9,
                "finish": requests.finished_ns[index] / 1e9,
            }
        )
        for index, group in enumerate(groups)
    ]
