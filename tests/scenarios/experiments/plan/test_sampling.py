"""`fleetcast plan` with Optuna: the candidates tried, reproducibility, and the report."""

from __future__ import annotations

import builtins
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reports.plan.answer import sampled_sentences
from scenarios.commands import app
from scenarios.experiments.plan.bounds import Bounds
from scenarios.experiments.plan.candidates import Asked, asked
from scenarios.experiments.plan.find import find_plan, judge_of, targeted
from scenarios.experiments.plan.judge import Judge
from scenarios.experiments.plan.question import ask
from scenarios.experiments.plan.sampling import (
    UNREADABLE,
    Levels,
    Sampled,
    objective,
    sample,
    space_of,
)
from scenarios.experiments.plan.search import Outcome, Search, Stage
from scenarios.run.execution.workers import Workers
from sim.errors import ScenarioError
from tests.properties.scenarios import write

FIELD = "engine.max_num_batched_tokens"
PLAN: dict[str, Any] = {
    "scenario": {
        "model": "llama-3.1-8b",
        "pool": {"router": "least_loaded"},
        "workload": {
            "generator": {
                "arrivals": "poisson",
                "input_tokens": {"lognormal": [{"mu": 6.5, "sigma": 0.6}], "max": 4000},
                "output_tokens": {"lognormal": [{"mu": 3, "sigma": 0.5}], "max": 100},
            }
        },
    },
    "demand": {"now": 70},
    "targets": [{"metric": "ttft", "percentile": 95, "within_s": 0.25}],
    "gpus": [
        {"gpu": "H100", "usd_per_gpu_h": 2.5},
        {"gpu": "A100-SXM-80GB", "usd_per_gpu_h": 1.1},
    ],
    "options": {FIELD: {"from": 512, "to": 16384, "scale": "log", "whole": True}},
    "search": {"method": "optuna", "trials": 7, "seed": 1},
    "num_requests": 100,
    "confidence": 0.5,
    "ranked": 1,
}
LISTED: dict[str, Any] = {"options": {FIELD: [512, 2048, 8192]}}


def plan(**more: Any) -> Asked:
    return asked(deepcopy(PLAN) | more, {(): "test"}, folder=Path())


def sampled(question_of: Asked, judge: Judge | None = None) -> tuple[Search, Sampled]:
    """A search alone, without a closer look at what it finds."""
    space = space_of(question_of)
    question = ask(question_of.plan, space.start())
    chosen = judge or judge_of(question_of.plan, question, Workers(jobs=1))
    search = Search(plan=question_of.plan, question=question, judge=chosen)
    return search, sample(space, search)


@pytest.fixture(scope="module")
def small() -> tuple[Search, Sampled]:
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'fleetcast[optuna]'")
    return sampled(plan())


def test_as_many_different_candidates_are_tried_as_was_asked(
    small: tuple[Search, Sampled],
) -> None:
    search, found = small
    assert found.tried == len(search.outcomes) == 7
    assert found.candidates == 2 * (16384 - 512 + 1)
    values = [one.candidate.options[FIELD] for one in search.outcomes.values()]
    assert all(isinstance(value, int) and 512 <= value <= 16384 for value in values)
    contents = {one.candidate.scenario.model_dump_json() for one in search.outcomes.values()}
    assert len(contents) == 7


def test_the_best_so_far_only_gets_cheaper_and_ends_at_the_answer(
    small: tuple[Search, Sampled],
) -> None:
    search, found = small
    trials, costs = zip(*found.best, strict=True)
    assert list(trials) == sorted(set(trials))
    assert list(costs) == sorted(set(costs), reverse=True)
    best = search.ranked[0]
    assert best.units is not None
    assert costs[-1] == best.candidate.usd_per_h(best.units)
    assert search.judge.verdict(best.candidate, best.units).kept


def test_the_same_seed_tries_the_same_and_another_seed_does_not(
    small: tuple[Search, Sampled],
) -> None:
    search, found = small
    again, found_again = sampled(plan())
    assert list(again.outcomes) == list(search.outcomes)
    assert again.judge.simulated == search.judge.simulated
    assert found_again == found
    other, _ = sampled(plan(search=PLAN["search"] | {"seed": 2}))
    assert list(other.outcomes) != list(search.outcomes)


def test_the_order_in_which_a_plan_lists_values_does_not_matter() -> None:
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'fleetcast[optuna]'")
    five = LISTED | {"search": {"method": "optuna", "trials": 5}}
    search, _ = sampled(plan(**five))
    turned = deepcopy(five) | {"gpus": PLAN["gpus"][::-1]}
    turned["options"][FIELD].reverse()
    assert list(sampled(plan(**turned))[0].outcomes) == list(search.outcomes)


def test_what_bounds_rule_out_is_tried_but_never_simulated() -> None:
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'fleetcast[optuna]'")
    targets = [{"metric": "ttft", "percentile": 90, "within_s": 0.003}]
    search, found = sampled(plan(targets=targets))
    assert (found.tried, found.simulated, search.judge.simulated) == (7, 0, 0)
    assert {one.stage for one in search.outcomes.values()} == {"latency"}


def test_a_candidate_that_is_the_same_under_another_name_is_not_tried_again() -> None:
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'fleetcast[optuna]'")
    options = {"engine.async_scheduling": [True, "yes", False]}
    five = {"method": "optuna", "trials": 5}
    search, found = sampled(plan(options=options, search=five, num_requests=50))
    assert found.candidates == 6
    on = [bool(one.candidate.scenario.engine.async_scheduling) for one in search.outcomes.values()]
    assert sorted(on) == [False, False, True, True]
    assert found.tried == 4


def test_values_that_do_not_go_together_are_counted_and_told() -> None:
    """A budget must hold the sinks: of 2 x 3 values 4 do, for each of two GPUs."""
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'fleetcast[optuna]'")
    options = {
        "kv.policy": [{"kind": "streaming_llm", "budget_tokens": 512}],
        "kv.policy.sink_tokens": [4, 256],
        "kv.policy.budget_tokens": [64, 128, 1024],
    }
    eleven = {"method": "optuna", "trials": 11}
    search, found = sampled(plan(options=options, search=eleven, num_requests=50))
    assert found.tried == 11
    assert len(found.unreadable) in (3, 4)
    assert len(search.outcomes) == 11 - len(found.unreadable)
    assert all("must be more than its 256 sink_tokens" in told for told in found.unreadable)


@pytest.mark.parametrize(
    "layouts",
    [
        [{"gpu": "H100"}, {"tensor_parallel_size": [1, 2]}],
        [{"prefill": {"gpu": "H100"}, "decode": {}, "ratios": ["1:1", "2:1"]}, {}],
        [{"prefill": {}, "decode": {"tensor_parallel_size": 2}, "gpu": "H100"}, {}],
    ],
    ids=["one GPU", "split", "split on one GPU"],
)
def test_the_space_holds_just_the_candidates_that_would_be_listed(layouts: list[Any]) -> None:
    question_of = plan(**LISTED | {"layouts": layouts, "search": {}})
    listed = [one.name for one in targeted(question_of)]
    space = space_of(question_of)
    levels = [range(len(a.values)) for a in space.axes.values() if isinstance(a, Levels)]
    choices = [dict(zip(space.axes, places, strict=True)) for places in product(*levels)]
    assert sorted({space.candidate(choice).name for choice in choices}) == listed
    assert space.candidates == len(listed)


def test_what_fits_is_better_than_what_does_not_and_a_near_miss_than_a_far_one() -> None:
    question_of = plan(**LISTED | {"search": {}})
    every = targeted(question_of)
    judge = judge_of(question_of.plan, ask(question_of.plan, every[0]), Workers(jobs=1))

    def value(stage: Stage, least_s: float = 0.1, units: int = 1) -> float:
        bounds = Bounds(units=units, least_s=(least_s,), refused=None)
        outcome = Outcome(candidate=every[0], stage=stage, bounds=bounds, most=4)
        return objective(outcome, judge)

    order = [
        value("cost", units=2),
        value("cost", units=3),
        value("supply", units=5),
        value("supply", units=9),
        value("latency", 0.3),
        value("latency", 0.5),
        value("latency", float("inf")),
        value("memory"),
        UNREADABLE,
    ]
    assert order == sorted(set(order))


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "range": ({"search": {}}, "max_num_batched_tokens is a range, which has too many values"),
    "trials": (LISTED | {"search": {"trials": 5}}, "trials is for method: optuna"),
    "method": ({"search": {"method": "tpe"}}, "search.method"),
    "turned": ({"options": {FIELD: {"from": 9, "to": 5}}}, "to 5 must be above from 9"),
    "zero": ({"options": {FIELD: {"from": 0, "to": 5, "scale": "log"}}}, "must be above 0"),
    "whole": ({"options": {FIELD: {"from": 1.5, "to": 5, "whole": True}}}, "whole numbers"),
    "key": ({"options": {FIELD: {"form": 9, "to": 5}}}, "from: Field required; an option is a"),
    "kind": ({"options": {FIELD: 512}}, f"{FIELD}: must be a list of values or a range {{from"),
    "empty": ({"options": {FIELD: []}}, "must be a list of values or a range"),
    "middle": ({"options": {FIELD: [512, "many", 1024]}}, FIELD),
    "part": ({"options": {FIELD: {"from": 512.5, "to": 900}}}, FIELD),
    "end": ({"options": {FIELD: {"from": -5, "to": 900, "whole": True}}}, FIELD),
    "elsewhere": ({"options": {"hardware.gpu": ["H200"]}}, "is for the plan's gpus"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_with_what_would_be_right(fault: str) -> None:
    more, told = FAULTS[fault]
    with pytest.raises(ScenarioError) as caught:
        find_plan(plan(**more), jobs=1)
    assert told in str(caught.value)


def test_more_trials_than_candidates_are_refused() -> None:
    with pytest.raises(ScenarioError, match="7 trials are enough for all 6 candidates"):
        find_plan(plan(**LISTED), jobs=1)


def test_without_optuna_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ScenarioError, match=r"pip install 'fleetcast\[optuna\]'"):
        find_plan(plan(), jobs=1)


def test_the_answer_says_that_the_space_was_sampled(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'fleetcast[optuna]'")
    quick = PLAN | {"search": {"method": "optuna", "trials": 3}}
    path = write(tmp_path / "plan.yaml", quick)
    result = CliRunner().invoke(
        app, ["plan", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    )
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out" / "plan.html").read_text()
    for text in (" ".join(result.output.split()), " ".join(page.split())):
        assert "The cheapest fleet found for 70.0 requests/s is" in text
        assert "Candidates were sampled: 3 of 31,746, chosen by Optuna (seed 0)" in text
        assert "A cheaper fleet may exist." in text
        assert "Optuna's TPE sampler, from" in text.replace("&#39;", "'")


SAMPLED: dict[str, Any] = {
    "method": "optuna",
    "seed": 3,
    "candidates": None,
    "tried": 60,
    "simulated": 35,
    "best": [
        {"trials": n, "usd_per_h": usd} for n, usd in zip((1, 9, 40), (12, 9, 7.5), strict=True)
    ],
    "unreadable": ["a: no"],
}


def test_what_was_tried_is_told_in_plain_words() -> None:
    content: dict[str, Any] = {"sampled": SAMPLED}
    assert sampled_sentences(content) == (
        "Candidates were sampled: 60 of endlessly many, chosen by Optuna (seed 3): 35 "
        "simulated, 24 ruled out by bounds and 1 with values that do not go together "
        "(a: no). A cheaper fleet may exist. The cheapest so far was $12.00 an hour after "
        "1 trial, $9.00 after 9, $7.50 after 40."
    )
    assert sampled_sentences({"sampled": None}) == ""
    nothing = SAMPLED | {"best": [], "candidates": 2000, "unreadable": [], "simulated": 60}
    assert sampled_sentences({"sampled": nothing}) == (
        "Candidates were sampled: 60 of 2,000, chosen by Optuna (seed 3): 60 simulated. "
        "Another may meet the targets."
    )
