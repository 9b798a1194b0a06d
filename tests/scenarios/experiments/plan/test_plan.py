"""`fleetcast plan` finds the cheapest fleet, as an exhaustive search does, and reports it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from scenarios.commands import app
from scenarios.experiments.plan.candidates import Asked, asked, read_plan
from scenarios.experiments.plan.find import find_plan, judge_of, targeted
from scenarios.experiments.plan.judge import next_share
from scenarios.experiments.plan.question import ask, runs_for
from scenarios.experiments.plan.search import Search, rank_key
from scenarios.files.load import load_scenario
from scenarios.run.execution.workers import Workers
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError
from tests.properties.checkout import CHECKOUT
from tests.properties.scenarios import write
from tests.scenarios.experiments.plan.samples import PLAN

SHIPPED_PLANS = sorted((CHECKOUT / "scenarios" / "plans").glob("*.yaml"))


def plan(**more: Any) -> Asked:
    return asked(deepcopy(PLAN) | more, {(): "test"}, folder=Path())


def found(**more: Any) -> dict[str, Any]:
    return find_plan(plan(**more), jobs=1)


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    return found()


class Exhaustive(NamedTuple):
    """What simulating every fleet of a plan finds."""

    passing: list[tuple[float, int, str, int]]
    """Cost, GPUs, name and units, cheapest first."""
    spares: list[float]
    """Costs of the fleets that pass with an engine less."""
    fleets: int
    requests: int


def exhaustive(question_of: Asked) -> Exhaustive:
    """Every fleet, none pruned and no run cut short but after one that misses."""
    search = searching(question_of, looks=False)
    passing, spares, fleets = [], [], 0
    for candidate in targeted(question_of):
        for units in range(1, search.bounded(candidate).most + 1):
            fleets += 1
            if search.judge.verdict(candidate, units).kept:
                cost = round(candidate.usd_per_h(units), 9)
                passing.append((cost, candidate.gpus * units, candidate.name, units))
                if search.is_had(candidate, units, spare=1):
                    spares.append(candidate.usd_per_h(units, spare=1))
    return Exhaustive(sorted(passing), sorted(spares), fleets, search.judge.simulated)


def searching(question_of: Asked, looks: bool = True) -> Search:
    question = ask(question_of.plan, targeted(question_of)[0])
    judge = judge_of(question_of.plan, question, Workers(jobs=1), looks=looks)
    return Search(plan=question_of.plan, question=question, judge=judge)


def searched(**more: Any) -> Search:
    """A search alone, without a closer look at what it finds."""
    question_of = plan(**more)
    search = searching(question_of)
    search.run(targeted(question_of))
    return search


@pytest.fixture(scope="module")
def every() -> Exhaustive:
    return exhaustive(plan())


@pytest.fixture(scope="module")
def search() -> Search:
    return searched()


def test_the_cheapest_fleet_is_that_of_an_exhaustive_search(
    every: Exhaustive, search: Search, small: dict[str, Any]
) -> None:
    best = search.ranked[0]
    assert every.fleets == 24
    assert (*rank_key(best), best.units) == every.passing[0]
    assert search.spare is not None
    assert search.spare.candidate.usd_per_h(search.spare.units or 0, spare=1) == pytest.approx(
        every.spares[0]
    )
    assert small["counts"]["cheapest"]["usd_per_h"] == pytest.approx(every.passing[0][0])
    assert search.judge.simulated < every.requests / 4


def test_pruned_candidates_have_no_fleet_that_would_have_been_cheaper(
    every: Exhaustive, search: Search
) -> None:
    dropped = {name for name, one in search.outcomes.items() if one.stage != "ranked"}
    cheapest = rank_key(search.ranked[0])
    assert dropped
    assert all(tuple(row[:3]) >= cheapest for row in every.passing if row[2] in dropped)
    for name, outcome in search.outcomes.items():
        assert outcome.bounds is not None
        units = [row[3] for row in every.passing if row[2] == name]
        assert all(n >= outcome.bounds.units for n in units)


def test_the_order_of_candidates_does_not_matter(search: Search) -> None:
    shuffled = deepcopy(PLAN)
    shuffled["gpus"].reverse()
    shuffled["options"]["engine.max_num_batched_tokens"].reverse()
    other = searched(**shuffled)
    assert list(other.outcomes) == list(search.outcomes)
    assert [rank_key(one) for one in other.ranked] == [rank_key(one) for one in search.ranked]
    assert other.judge.simulated == search.judge.simulated


def test_another_candidate_never_makes_it_dearer(search: Search) -> None:
    options: dict[str, Any] = {"engine.max_num_batched_tokens": [1024]}
    for gpus in ([PLAN["gpus"][0]], [PLAN["gpus"][1]]):
        fewer = searched(gpus=gpus, options=options)
        assert not fewer.ranked or rank_key(search.ranked[0]) <= rank_key(fewer.ranked[0])


def test_every_candidate_is_accounted_for(small: dict[str, Any]) -> None:
    assert len(small["candidates"]) == 4
    assert small["counts"]["fits"]["gpus"] == 1
    assert small["question"]["level"] == pytest.approx(40 * 1.5 * 1.2)
    for row in small["candidates"]:
        if row["stage"] == "cost" and row["units"] is None:
            assert row["least_usd_per_h"] >= small["ranked"][0]["usd_per_h"]
        if row["stage"] == "simulated":
            assert row["missed"]["units"] == row["tried"]
    front = [row for row in small["fleets"] if row["on_front"]]
    costs, latencies = ([row[key] for row in front] for key in ("usd_per_h", "of_target"))
    assert costs == sorted(costs)
    assert latencies == sorted(latencies, reverse=True)


def test_the_winners_scenario_runs_and_meets_the_targets(
    small: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "fleet.yaml", small["winner"]["scenario"])
    scenario = load_scenario(path)
    assert scenario.pool.replicas == small["ranked"][0]["units"]
    result = simulate(scenario.model_copy(update={"seed": 50}))
    ttft = result.metrics.ttft_s
    assert float(np.mean(ttft <= 0.25)) >= 0.95


def test_targets_of_classes_are_met_class_by_class() -> None:
    generator = PLAN["scenario"]["workload"]["generator"]
    classes = [
        {"name": "chat", "generator": generator, "rate_per_s": 40},
        {
            "name": "bulk",
            "generator": generator | {"input_tokens": {"fixed": 3000}},
            "rate_per_s": 10,
        },
    ]
    scenario = PLAN["scenario"] | {"workload": {"classes": classes}}
    targets = [
        {"metric": "ttft", "percentile": 90, "within_s": 0.25, "of_class": "chat"},
        {"metric": "e2e", "percentile": 50, "within_s": 2.0, "of_class": "chat"},
        {"metric": "e2e", "percentile": 95, "within_s": 4.0, "of_class": "chat"},
    ]
    content = found(
        scenario=scenario,
        targets=targets,
        demand={"now": 30},
        gpus=PLAN["gpus"][:1],
        options={},
        num_requests=100,
    )
    best = content["ranked"][0]
    shares = [row["share"] for row in best["attained"]]
    assert all(share >= asked for share, asked in zip(shares, (0.9, 0.5, 0.95), strict=True))
    with pytest.raises(ScenarioError, match="no class 'none'; the workload's: chat, bulk"):
        found(scenario=scenario, targets=[targets[0] | {"of_class": "none"}])


SPLIT = [{"prefill": {}, "decode": {}, "ratios": ["1:1", "2:1"], "gpu": "H100"}]


def test_prefill_and_decode_engines_are_candidates_too() -> None:
    search = searched(layouts=SPLIT, options={}, num_requests=100)
    best = search.ranked[0]
    assert [engine.role for engine in best.candidate.engines] == ["prefill", "decode"]
    fleet = best.candidate.fleet(3, spare=1, down="decode")
    ratio = [engine.count for engine in best.candidate.engines]
    assert [pool.replicas for pool in fleet.pools] == [3 * ratio[0] + 1, 3 * ratio[1]]
    assert best.candidate.usd_per_h(3) == pytest.approx(3 * 2.5 * sum(ratio))


@pytest.mark.slow
def test_the_spare_fleet_of_prefill_and_decode_engines_is_simulated_with_either_down() -> None:
    content = found(layouts=SPLIT, options={}, num_requests=300)
    best = content["ranked"][0]
    assert set(best["degraded"]) == {"prefill", "decode"}
    assert all(row["kept"] for row in best["degraded"].values())
    commands = {(row["role"], row["engine"]) for row in content["winner"]["commands"]}
    assert len(commands) == 4


@pytest.mark.parametrize(
    ("more", "constraint"),
    [
        ({"gpus": [{"gpu": "H100", "usd_per_gpu_h": 2.5, "available": 2}]}, "supply"),
        ({"budget_usd_per_h": 4.0}, "supply"),
        ({"targets": [{"metric": "ttft", "percentile": 90, "within_s": 0.003}]}, "latency"),
        (
            {
                "targets": [{"metric": "tpot", "percentile": 90, "within_s": 0.0064}],
                "gpus": PLAN["gpus"][:1],
            },
            "targets",
        ),
        ({"scenario": PLAN["scenario"] | {"model": "llama-3.1-405b"}}, "memory"),
    ],
)
def test_an_infeasible_plan_says_what_binds(more: dict[str, Any], constraint: str) -> None:
    content = found(options={}, demand={"now": 110}, num_requests=100, **more)
    assert not content["ranked"]
    assert content["relaxed"]["constraint"] == constraint


def test_what_relaxes_an_infeasible_plan_makes_it_feasible() -> None:
    offer = {"gpu": "H100", "usd_per_gpu_h": 2.5, "available": 2}
    short = found(gpus=[offer], options={}, demand={"now": 110})
    assert short["relaxed"]["constraint"] == "supply"
    needs = short["relaxed"]["needs"]["H100"]
    assert needs > 2
    (enough,) = searched(
        gpus=[offer | {"available": needs}], options={}, demand={"now": 110}
    ).ranked
    assert enough.units == needs
    lighter = {"now": short["relaxed"]["load"] * 0.95}
    assert searched(gpus=[offer], options={}, demand=lighter).ranked


def test_as_many_runs_as_the_confidence_asks_for() -> None:
    """The last of k + 1 exchangeable runs is the worst with a chance of 1 / (k + 1)."""
    for confidence, runs in ((0.5, 1), (0.75, 3), (0.9, 9), (0.95, 19), (0.99, 99)):
        assert runs_for(confidence) == runs
        assert 1 / (runs + 1) <= 1 - confidence + 1e-12


def test_another_trace_is_bounded_by_students_prediction() -> None:
    """Stretches with shares 0.9, 0.95 and 1.0 give mean less t * s / sqrt(3) * sqrt(2)."""
    expected = 0.95 - 2.919986 * 0.05 / 3**0.5 * 2**0.5
    assert next_share((90, 95, 100), (100, 100, 100), 0.95) == pytest.approx(expected, abs=1e-6)
    assert next_share((5, 5), (5, 5), 0.95) == 1.0


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"target": []}, "target: unknown key; did you mean 'targets'"),
    "gpu": ({"layouts": [{"gpu": "H200"}]}, "H200 is none of gpus: H100"),
    "twice": ({"gpus": PLAN["gpus"][:1] * 2}, "H100 is offered twice"),
    "half": ({"layouts": [{"prefill": {}}]}, "prefill and decode come together"),
    "ratios": ({"layouts": [{"ratios": ["2:1"]}]}, "ratios are those of prefill and decode"),
    "field": ({"options": {"engine.max_seqs": [1]}}, "unknown key"),
    "elsewhere": ({"options": {"hardware.gpu": ["H200"]}}, "is for the plan's gpus"),
    "horizon": ({"options": {"horizon_s": [5.0]}}, "horizon_s"),
    "load": ({"demand": {}}, "demand.now"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_with_what_would_be_right(fault: str) -> None:
    more, told = FAULTS[fault]
    with pytest.raises(ScenarioError) as caught:
        found(**more)
    assert told in str(caught.value)


def test_the_command_writes_its_folder(tmp_path: Path) -> None:
    quick = PLAN | {"options": {}, "gpus": PLAN["gpus"][:1], "num_requests": 100}
    path = write(tmp_path / "plan.yaml", quick)
    result = CliRunner().invoke(
        app, ["plan", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    )
    assert result.exit_code == 0, result.output
    assert "The cheapest fleet for 72.0 requests/s is" in result.output
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["fleet.yaml", "plan.html", "plan.json", "plan.yaml"]
    content = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert yaml.safe_load(content["winner"]["scenario"])["pool"]["replicas"] >= 1
    again = CliRunner().invoke(app, ["report", str(tmp_path / "out")])
    assert again.exit_code == 0, again.output


def test_no_fleet_is_exit_code_3(tmp_path: Path) -> None:
    targets = [{"metric": "ttft", "percentile": 90, "within_s": 0.003}]
    path = write(tmp_path / "plan.yaml", PLAN | {"targets": targets, "num_requests": 100})
    result = CliRunner().invoke(app, ["plan", str(path), "--jobs", "1"])
    assert result.exit_code == 3
    assert "TTFT p90 ≤ 3 ms binds" in " ".join(result.output.split())


@pytest.mark.parametrize("path", SHIPPED_PLANS, ids=lambda path: path.stem)
def test_shipped_plans_ask_what_can_be_answered(path: Path) -> None:
    """All but the simulations: they can be read, and not all candidates are ruled out."""
    question_of = read_plan(path)
    search = searching(question_of)
    outcomes = [search.bounded(candidate) for candidate in targeted(question_of)]
    assert any(outcome.stage == "simulated" for outcome in outcomes)


def test_the_schema_of_plans_can_be_printed() -> None:
    result = CliRunner().invoke(app, ["schema", "plan"])
    assert set(json.loads(result.output)["properties"]) >= {"scenario", "targets", "gpus"}
    assert CliRunner().invoke(app, ["schema", "plans"]).exit_code == 2


def test_a_plan_may_be_about_a_scenario_file(tmp_path: Path) -> None:
    """Its path starts at the plan's folder; the targets replace its SLO, the offers its prices."""
    (tmp_path / "in").mkdir()
    scenario = PLAN["scenario"] | {
        "slo": {"e2e_s": 9},
        "prices": {"usd_per_gpu_h": 9, "idle_w": 90},
    }
    write(tmp_path / "in" / "base.yaml", scenario)
    path = write(tmp_path / "in" / "plan.yaml", PLAN | {"scenario": "base.yaml"})
    for candidate in targeted(read_plan(path)):
        chosen = candidate.scenario
        assert (chosen.slo.ttft_s, chosen.slo.e2e_s) == (0.25, None)
        assert chosen.prices is not None
        assert chosen.prices.usd_per_gpu_h == candidate.usd_per_h(1)
        assert chosen.prices.idle_w == 90
    write(tmp_path / "in" / "plan.yaml", PLAN | {"scenario": {"base": "base.yaml"}})
    with pytest.raises(ScenarioError, match="base is for scenario files"):
        read_plan(path)


def test_a_plan_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a plan is a mapping"):
        read_plan(write(tmp_path / "plan.yaml", "- 1\n"))
    with pytest.raises(ScenarioError, match="cannot read plan"):
        read_plan(tmp_path / "none.yaml")
