"""The bounds that a plan prunes by hold for any step, any split into steps, and any simulated
fleet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.steps.bounds import StepBounds
from scenarios.build.builder import build
from scenarios.build.pools import Build
from scenarios.experiments.plan.bounds import find_bounds
from scenarios.experiments.plan.candidates import Asked, Candidate, asked
from scenarios.experiments.plan.find import judge_of, targeted
from scenarios.experiments.plan.question import Question, ask
from scenarios.files.load import parse_scenario
from scenarios.run.execution.workers import Workers
from sim.request_table import PrefixChains, RequestTable
from sim.shape import StepShape

_WORKLOAD = {
    "generator": {"input_tokens": {"fixed": 1}, "output_tokens": {"fixed": 1}},
    "rate_per_s": 1,
    "num_requests": 1,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {"model": "llama-3.1-8b"},
    "tp": {"model": "llama-3.1-70b", "engine": {"tensor_parallel_size": 4}},
    "pp": {
        "model": "llama-3.1-70b",
        "engine": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    },
    "ep": {
        "model": "qwen3-30b-a3b",
        "engine": {
            "data_parallel_size": 4,
            "enable_expert_parallel": True,
            "all2all_backend": "deepep_low_latency",
        },
    },
    "dbo": {
        "model": "qwen3-30b-a3b",
        "engine": {
            "data_parallel_size": 4,
            "enable_expert_parallel": True,
            "enable_dbo": True,
            "all2all_backend": "deepep_low_latency",
        },
    },
    "pcp": {"model": "llama-3.1-8b", "engine": {"prefill_context_parallel_size": 2}},
    "windows": {"model": "gpt-oss-20b"},
    "latent": {"model": "deepseek-v3", "engine": {"tensor_parallel_size": 8}},
}
_BUILT: dict[str, tuple[Build, StepBounds]] = {}


def built(name: str) -> tuple[Build, StepBounds]:
    if name not in _BUILT:
        values = LAYOUTS[name] | {"workload": _WORKLOAD, "hardware": {"gpu": "H200"}}
        made = build(parse_scenario(values))
        _BUILT[name] = made, made.replica.cost.bounds(made.pool.engine.step_token_limit)
    return _BUILT[name]


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_step_is_cheaper_than_its_bound(name: str, data: st.DataObject) -> None:
    made, bounds = built(name)
    engine = made.pool.engine
    decodes = data.draw(st.integers(0, min(engine.running_seq_limit - 1, 600)))
    context = decodes * data.draw(st.integers(1, 20_000))
    room = engine.step_token_limit - decodes
    least = 0 if decodes else 1
    chunks = data.draw(st.lists(st.integers(1, room // 6), min_size=least, max_size=6))
    start = data.draw(st.integers(0, 4_000))
    pairs = sum(n * start + n * (n + 1) // 2 for n in chunks)
    shape = StepShape(
        decode_seqs=decodes,
        decode_context_tokens=context,
        prefill_seqs=len(chunks),
        prefill_tokens=sum(chunks),
        prefill_context_tokens=start * len(chunks),
        prefill_pairs=pairs,
        logits=decodes + len(chunks),
        clipped=(0,) * (4 * len(engine.clip_tokens)),
    )
    price_ns = made.replica.cost.price(shape).gpu_ns
    least_ns = bounds.lines @ np.array([1.0, shape.num_tokens])
    least_ns = least_ns.max() + bounds.context_ns * context + bounds.pair_ns * pairs
    assert price_ns >= least_ns
    assert least_ns > 0


@pytest.mark.parametrize("name", ["one", "tp", "ep"])
def test_the_bound_of_full_steps_is_no_empty_promise(name: str) -> None:
    """The bound is most of the price of the largest prefill; otherwise it would not prune
    anything."""
    made, bounds = built(name)
    tokens = made.pool.engine.step_token_limit
    ways = made.replica.layout.data_parallel_size
    pairs = tokens * (tokens // ways + 1) // 2
    shape = StepShape(prefill_seqs=ways, prefill_tokens=tokens, prefill_pairs=pairs, logits=ways)
    least_ns = bounds.least_ns(np.ones(1), np.array([float(tokens)]))[0]
    assert least_ns + bounds.pair_ns * pairs > 0.6 * made.replica.cost.price(shape).gpu_ns


def test_an_engine_that_speculates_rules_nothing_out() -> None:
    engine = {"speculative": {"method": "ngram", "num_speculative_tokens": 3}}
    values = {"model": "llama-3.1-8b", "engine": engine, "workload": _WORKLOAD}
    bounds = build(parse_scenario(values)).replica.cost.bounds(512)
    assert bounds.prompt_ns(np.array([100.0])) == bounds.decode_ns(np.array([100.0])) == 0


def test_a_prompt_takes_no_less_in_chunks_than_its_bound() -> None:
    made, bounds = built("one")
    for tokens in (100, 3_000, 20_000):
        least_ns = bounds.prompt_ns(np.array([float(tokens)]))[0]
        for chunk in (64, 500, 2_048, 8_192):
            total, start = 0, 0
            while start < tokens:
                n = min(chunk, tokens - start)
                pairs = n * start + n * (n + 1) // 2
                total += made.replica.cost.price(
                    StepShape(
                        prefill_seqs=1,
                        prefill_tokens=n,
                        prefill_context_tokens=start,
                        prefill_pairs=pairs,
                        logits=1,
                    )
                ).gpu_ns
                start += n
            assert total >= least_ns


def plan(**more: Any) -> Asked:
    scenario = {
        "model": "llama-3.1-8b",
        "workload": {
            "generator": {
                "arrivals": "poisson",
                "input_tokens": {"lognormal": [{"mu": 6.5, "sigma": 0.8}], "max": 4000},
                "output_tokens": {"lognormal": [{"mu": 3, "sigma": 0.5}], "max": 100},
            }
        },
    }
    values = {
        "scenario": scenario,
        "demand": {"now": 40},
        "targets": [
            {"metric": "ttft", "percentile": 95, "within_s": 0.5},
            {"metric": "tpot", "percentile": 90, "within_s": 0.03},
            {"metric": "e2e", "percentile": 95, "within_s": 3},
        ],
        "gpus": [{"gpu": "H100", "usd_per_gpu_h": 2.5}],
        "num_requests": 300,
    }
    return asked(values | more, {(): "test"}, folder=Path())


CASES: dict[str, list[dict[str, Any]]] = {
    "tp": [{"tensor_parallel_size": [1, 2]}],
    "split": [{"prefill": {}, "decode": {}, "ratios": ["1:1", "1:2"]}],
    "stages": [{"pipeline_parallel_size": 2}],
}


@pytest.mark.parametrize("case", CASES)
def test_simulated_fleets_are_never_better_than_their_bounds(case: str) -> None:
    """Latencies of an idle fleet lie above the bounds, and fewer engines than they say miss."""
    question_of = plan(layouts=CASES[case], demand={"now": 120})
    every = targeted(question_of)
    question = ask(question_of.plan, every[0])
    judge = judge_of(question_of.plan, question, Workers(jobs=1), looks=False)
    for candidate in every:
        bounds = bounds_of(candidate, question)
        assert bounds.refused is None
        large = judge.first(candidate, 12, looks=False).runs[0]
        for met, least_s in zip(large.met, bounds.least_s, strict=True):
            assert 0 < least_s <= met.value_s
        assert bounds.units >= 1
        if bounds.units > 1:
            assert not judge.first(candidate, bounds.units - 1).kept


def bounds_of(candidate: Candidate, question: Question) -> Any:
    parts = build(candidate.scenario).parts
    return find_bounds(candidate, parts, question.table, question.counted, question.targets)


def test_work_beyond_what_engines_can_do_asks_for_more_of_them() -> None:
    question_of = plan(demand={"now": 400}, num_requests=2000)
    (candidate,) = targeted(question_of)
    question = ask(question_of.plan, candidate)
    bounds = bounds_of(candidate, question)
    # 8e9 parameters, 2 FLOPs each, some 990e12 FLOP/s, prompts of 900 tokens: 0.015 s a request.
    assert 4 <= bounds.units <= 10


def test_what_no_fleet_can_meet_is_refused() -> None:
    targets = [{"metric": "ttft", "percentile": 90, "within_s": 0.002}]
    question_of = plan(targets=targets)
    (candidate,) = targeted(question_of)
    bounds = bounds_of(candidate, ask(question_of.plan, candidate))
    assert bounds.refused == 0
    assert bounds.least_s[0] > 0.002


def test_requests_beyond_max_model_len_miss_for_certain() -> None:
    question_of = plan(options={"engine.max_model_len": [400]})
    (candidate,) = targeted(question_of)
    bounds = bounds_of(candidate, ask(question_of.plan, candidate))
    assert bounds.refused == 0
    assert np.isinf(bounds.least_s[0])


def with_prefix(table: RequestTable, ids: Any, tokens: int) -> RequestTable:
    """Return the requests with one prefix block of ``tokens`` tokens each, named by ``ids``."""
    n = len(table)
    chains = PrefixChains(
        ids=np.broadcast_to(ids, n),
        offsets=np.arange(n + 1),
        tokens=np.full(n, tokens),
        block_tokens=tokens,
    )
    return replace(table, chains=chains)


def test_what_a_cache_may_hold_is_not_counted_as_work() -> None:
    """Blocks that two requests have need be computed once; those of one alone by it."""
    question_of = plan(demand={"now": 400}, num_requests=2000)
    (candidate,) = targeted(question_of)
    question = ask(question_of.plan, candidate)
    plain = bounds_of(candidate, question).units
    table, longest = question.table, int(question.table.prompt_tokens.max())
    own, shared, all_shared = (
        bounds_of(candidate, replace(question, table=with_prefix(table, ids, tokens))).units
        for ids, tokens in ((np.arange(len(table)), 400), (7, 400), (7, longest))
    )
    assert plain == own > shared > all_shared


def test_prompts_that_are_partly_cached_take_no_less_than_their_bound() -> None:
    scenario = plan().values | {
        "workload": {
            "generator": {
                "arrivals": "poisson",
                "system_prompts": {"tokens": 2000},
                "input_tokens": {"fixed": 500},
                "output_tokens": {"fixed": 20},
            }
        }
    }
    question_of = plan(scenario=scenario, demand={"now": 5}, num_requests=50)
    (candidate,) = targeted(question_of)
    question = ask(question_of.plan, candidate)
    judge = judge_of(question_of.plan, question, Workers(jobs=1), looks=False)
    met = judge.first(candidate, 1, looks=False).runs[0].met
    bounds = bounds_of(candidate, question)
    assert all(0 < a <= b.value_s for a, b in zip(bounds.least_s, met, strict=True))
    assert bounds.least_s[0] > 0.3 * met[0].value_s
