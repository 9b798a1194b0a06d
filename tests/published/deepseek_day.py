"""DeepSeek's published day (V3/R1 online inference, 27-28 February 2025) as a plan.

It asks how many nodes carry the day's tokens, split over prefill and decode engines of the
published layouts. The plan is for a seventh of the day's load, which keeps one decode engine busy.
Engines do not communicate, so the whole load takes seven times that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.experiments.plan.candidates import asked
from scenarios.experiments.plan.find import judge_of, targeted
from scenarios.experiments.plan.question import ask
from scenarios.experiments.plan.search import Search
from scenarios.run.execution.workers import Workers
from tests.published.models.economics import fleet_cost_usd, profit_margin, revenue_usd
from tests.published.rows import Row, Section

# github.com/deepseek-ai/open-infra-index, 202502OpenSourceWeek, day 6.
NODES, GPUS_A_NODE, USD_A_GPU_H = 226.75, 8, 2.0
INPUT, CACHED, OUTPUT, DAY_S = 608e9, 342e9, 168e9, 86_400
KV_TOKENS = 4_989  # mean length of the KV cache at an output token
PREFILL_NODE_TOKENS_S, DECODE_NODE_TOKENS_S = 73_700, 14_800
REVENUE, COST, MARGIN = 562_027, 87_072, 545
R1_PRICES = {"cached": 0.14, "input": 0.55, "output": 2.19}  # USD a million

PREFILL_NODES, DECODE_NODES = 4, 18  # EP32, EP144
PART = 7
_WARMUP_S, _REQUESTS = 180.0, 47_000  # more than three times what an answer takes


def lengths() -> tuple[int, int, int]:
    """Input, cached and output tokens of a mean request.

    Equal requests with ``KV_TOKENS`` = input + output / 2 in the day's ratio of input to output.
    """
    output = KV_TOKENS / (INPUT / OUTPUT + 0.5)
    prompt = output * INPUT / OUTPUT
    return round(prompt), round(prompt * CACHED / INPUT), round(output)


def plan() -> dict[str, Any]:
    """The question: the cheapest ratio of the published engines for a part of the day."""
    prompt, cached, output = lengths()
    engine = {
        "enable_eplb": True,
        "num_redundant_experts": 32,
        "enable_dbo": True,
    }
    return {
        "scenario": {
            "model": "deepseek-v3",
            "engine": {"enable_expert_parallel": True, **engine},
            "kv": {"block_size": 64},  # FlashMLA's
            "pool": {"router": "least_loaded"},
            "warmup_s": _WARMUP_S,
            "workload": {
                "generator": {
                    "arrivals": "poisson",
                    "system_prompts": {"tokens": cached},
                    "input_tokens": {"fixed": prompt - cached},
                    "output_tokens": {"fixed": output},
                    "block_tokens": 64,
                }
            },
        },
        "demand": {"now": OUTPUT / output / DAY_S / PART},
        "targets": [
            {"metric": "ttft", "percentile": 95, "within_s": 5.0},
            {"metric": "tpot", "percentile": 95, "within_s": 0.05},
        ],
        "gpus": [{"gpu": "H800", "usd_per_gpu_h": USD_A_GPU_H}],
        "layouts": [
            {
                "prefill": {"data_parallel_size": 32, "enable_expert_parallel": True},
                "decode": {"data_parallel_size": 144, "enable_expert_parallel": True},
                "ratios": ["1:1", "2:1", "3:1", "4:1", "5:1", "6:1"],
            }
        ],
        "options": {
            "pools.0.engine.all2all_backend": ["deepep_high_throughput"],
            "pools.1.engine.all2all_backend": ["deepep_low_latency"],
        },
        "most_replicas": 1,
        "num_requests": _REQUESTS,
        "confidence": 0.5,  # one run: all of its requests are equal
        "ranked": 1,
    }


def found() -> Search:
    """The plan's search; minutes."""
    question_of = asked(plan(), {(): "published day"}, folder=Path())
    every = targeted(question_of)
    question = ask(question_of.plan, every[0])
    # looks would see the warm-up
    judge = judge_of(question_of.plan, question, Workers(), looks=False)
    search = Search(plan=question_of.plan, question=question, judge=judge)
    search.run(every)
    return search


def economics() -> list[Row]:
    """What the day cost and could have earned."""
    tokens = {"cached": CACHED, "input": INPUT - CACHED, "output": OUTPUT}
    cost = fleet_cost_usd(NODES * GPUS_A_NODE, 24, USD_A_GPU_H)
    revenue = revenue_usd(tokens, R1_PRICES)
    return [
        Row("cost of the day", cost, COST, "USD", 1e-9),
        Row("revenue at R1 prices, from rounded tokens", revenue, REVENUE, "USD", 2e-4),
        Row("margin", round(100 * profit_margin(REVENUE, cost)), MARGIN, "%", 1e-9),
    ]


def sections() -> list[Section]:
    """The economics, and the nodes of the plan beside the published ones."""
    prompt, cached, output = lengths()
    search = found()
    rows, notes = [], []
    if search.ranked:
        best = search.ranked[0]
        engines = [engine.count * (best.units or 0) * PART for engine in best.candidate.engines]
        prefill, decode = engines[0] * PREFILL_NODES, engines[1] * DECODE_NODES
        published = (INPUT / DAY_S / PREFILL_NODE_TOKENS_S, OUTPUT / DAY_S / DECODE_NODE_TOKENS_S)
        rows = [
            Row("nodes", prefill + decode, NODES, "", 0.25),
            Row("prefill nodes", prefill, published[0], "", 0.25),
            Row("decode nodes", decode, published[1], "", 0.25),
            Row("share of prefill", prefill / (prefill + decode), 0.42, "", 0.25),
        ]
        verdict = search.judge.verdicts[best.candidate.name, best.units or 0]
        values = [run.value_s for run in verdict.runs[0].met]
        notes.append(
            f"{best.candidate.name}: TTFT p95 {values[0]:.2f} s, TPOT p95 {values[1] * 1e3:.1f} ms"
        )
    for outcome in search.outcomes.values():
        bounds = outcome.bounds
        told = outcome.why if bounds is None else f"{bounds.units} by the bounds"
        notes.append(f"{outcome.candidate.name[:4]} {outcome.stage} ({told})")
    conditions = (
        f"H800, prefill EP32 and decode EP144 with 32 redundant experts and two-batch overlap; "
        f"equal requests of {prompt:,} tokens in, {cached:,} of them one shared prefix, and "
        f"{output:,} out: the day's ratio and its mean KV length; Poisson arrivals at the day's "
        f"mean rate, of which a {PART}th is planned for; no MTP; TPOT p95 within 50 ms (20 of the "
        "20-22 tokens/s published), TTFT p95 within 5 s (assumed); published node shares are the "
        "day's tokens over the published tokens/s a node"
    )
    return [
        Section(
            "Economics of DeepSeek's day (B15)",
            "226.75 nodes of 8 H800, $2 a GPU-hour",
            economics(),
        ),
        Section("Nodes for DeepSeek's day, planned (B15)", conditions, rows, tuple(notes)),
    ]
