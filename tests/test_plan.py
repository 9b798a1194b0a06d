"""`fleetcast plan`: the cheapest fleet, as an exhaustive search finds it, and what it says."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from scenarios.cli import app
from scenarios.load import load_scenario
from scenarios.plan.find import find_plan, judge_of, targeted
from scenarios.plan.judge import next_share
from scenarios.plan.question import ask
from scenarios.plan.read import Asked, asked, read_plan
from scenarios.plan.search import Search
from scenarios.simulate import simulate
from sim.errors import ScenarioError
from tests.scenario_helpers import write

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
    "demand": {"now": 60, "growth_per_year": 0.5, "years": 1, "peak": 1.2},
    "targets": [
        {"metric": "ttft", "percentile": 95, "within_s": 0.25},
        {"metric": "tpot", "percentile": 90, "within_s": 0.03},
    ],
    "gpus": [
        {"gpu": "H100", "usd_per_gpu_h": 2.5, "available": 12},
        {"gpu": "A100-SXM-80GB", "usd_per_gpu_h": 1.1, "available": 20},
    ],
    "layouts": [{"tensor_parallel_size": [1, 2]}],
    "options": {"engine.max_num_batched_tokens": [1024, 8192]},
    "most_replicas": 10,
    "num_requests": 250,
    "replications": 3,
    "ranked": 1,
}


def plan(**more: Any) -> Asked:
    return asked(deepcopy(PLAN) | more, {(): "test"}, folder=Path())


def found(**more: Any) -> dict[str, Any]:
    return find_plan(plan(**more), jobs=1)


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    return found()


def exhaustive(question_of: Asked) -> tuple[list[tuple[float, int, str, int]], int, int]:
    """Every fleet that passes (cost, GPUs, name, units), requests simulated, and fleets."""
    every = targeted(question_of)
    question = ask(question_of.plan, every[0])
    judge = judge_of(question_of.plan, question, jobs=1, looks=False)
    search = Search(plan=question_of.plan, question=question, judge=judge)
    passing, fleets = [], 0
    for candidate in every:
        for units in range(1, search.bounded(candidate).most + 1):
            fleets += 1
            if judge.verdict(candidate, units).kept:
                cost = round(candidate.usd_per_h(units), 9)
                passing.append((cost, candidate.gpus * units, candidate.name, units))
    return sorted(passing), judge.simulated, fleets


def test_the_cheapest_fleet_is_that_of_an_exhaustive_search(small: dict[str, Any]) -> None:
    passing, requests, fleets = exhaustive(plan())
    best = small["ranked"][0]
    assert fleets >= 60
    assert (best["usd_per_h"], best["gpus"]) == pytest.approx(passing[0][:2])
    assert (best["name"], best["units"]) in {row[2:] for row in passing}
    # Stopping at the first run that misses, as this search does too, is left to both.
    searched = Search(**_search_of(plan()))
    searched.run(targeted(plan()))
    assert searched.ranked[0].candidate.name == passing[0][2]
    assert searched.judge.simulated < requests / 3


def _search_of(question_of: Asked) -> dict[str, Any]:
    question = ask(question_of.plan, targeted(question_of)[0])
    judge = judge_of(question_of.plan, question, jobs=1)
    return {"plan": question_of.plan, "question": question, "judge": judge}


def test_pruned_candidates_have_no_fleet_that_would_have_been_cheaper(
    small: dict[str, Any],
) -> None:
    passing, _, _ = exhaustive(plan())
    dropped = {row["name"] for row in small["candidates"] if row["stage"] != "ranked"}
    cheapest = small["ranked"][0]["usd_per_h"]
    assert dropped
    assert all(cost >= cheapest - 1e-9 for cost, _, name, _ in passing if name in dropped)


def test_the_spare_fleet_is_the_cheapest_that_passes_with_an_engine_less() -> None:
    question_of = plan()
    passing, _, _ = exhaustive(question_of)
    every = {one.name: one for one in targeted(question_of)}
    spares = [
        (every[name].usd_per_h(units, spare=1), name, units)
        for _, _, name, units in passing
        if units < 10 and _is_had(question_of, every[name].gpus_by_name(units, spare=1))
    ]
    spare = found()["counts"]["spare"]
    assert spare["usd_per_h"] == pytest.approx(min(spares)[0])


def _is_had(question_of: Asked, gpus: dict[str, int]) -> bool:
    offers = {offer.gpu: offer.available or 10**9 for offer in question_of.plan.gpus}
    return all(count <= offers[gpu] for gpu, count in gpus.items())


def test_the_order_of_candidates_does_not_matter(small: dict[str, Any]) -> None:
    shuffled = deepcopy(PLAN)
    rng = random.Random(1)
    for key in ("gpus", "layouts"):
        rng.shuffle(shuffled[key])
    shuffled["layouts"][0]["tensor_parallel_size"].reverse()
    shuffled["options"] = {"engine.max_num_batched_tokens": [8192, 1024]}
    other = find_plan(asked(shuffled, {(): "test"}, folder=Path()), jobs=1)
    for content in (other, small):
        content["question"].pop("gpus", None)
        content["run"].pop("wall_s", None)
    assert other == small


def test_another_candidate_never_makes_it_dearer(small: dict[str, Any]) -> None:
    fewer = found(gpus=PLAN["gpus"][:1], options={"engine.max_num_batched_tokens": [1024]})
    assert small["ranked"][0]["usd_per_h"] <= fewer["ranked"][0]["usd_per_h"]


def test_every_candidate_is_accounted_for(small: dict[str, Any]) -> None:
    assert len(small["candidates"]) == 8
    assert small["counts"]["fits"]["gpus"] == 1
    assert small["question"]["level"] == pytest.approx(60 * 1.5 * 1.2)
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
        demand={"now": 60},
        gpus=PLAN["gpus"][:1],
        options={},
        layouts=[{}],
    )
    best = content["ranked"][0]
    shares = [row["share"] for row in best["attained"]]
    assert all(share >= asked for share, asked in zip(shares, (0.9, 0.5, 0.95), strict=True))
    with pytest.raises(ScenarioError, match="no class 'none'; the workload's: chat, bulk"):
        found(scenario=scenario, targets=[targets[0] | {"of_class": "none"}])


def test_prefill_and_decode_engines_are_candidates_too() -> None:
    layouts = [{"prefill": {}, "decode": {}, "ratios": ["1:1", "2:1"], "gpu": "H100"}]
    content = found(layouts=layouts, options={}, demand={"now": 60})
    best = content["ranked"][0]
    assert {engine["role"] for engine in best["engines"]} == {"prefill", "decode"}
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
        ({"scenario": PLAN["scenario"] | {"model": "llama-3.1-405b"}}, "memory"),
    ],
)
def test_an_infeasible_plan_says_what_binds(more: dict[str, Any], constraint: str) -> None:
    content = found(options={}, layouts=[{}], **more)
    assert not content["ranked"]
    assert content["relaxed"]["constraint"] == constraint


def test_what_relaxes_an_infeasible_plan_makes_it_feasible() -> None:
    offer = {"gpu": "H100", "usd_per_gpu_h": 2.5, "available": 2}
    short = found(gpus=[offer], options={}, layouts=[{}])
    needs = short["relaxed"]["needs"]["H100"]
    assert needs > 2
    enough = found(gpus=[offer | {"available": needs}], options={}, layouts=[{}])
    assert enough["ranked"][0]["gpus"] == needs
    lighter = {"now": short["relaxed"]["load"] * 0.97}
    assert found(gpus=[offer], options={}, layouts=[{}], demand=lighter)["ranked"]


def test_the_prediction_bound_is_students() -> None:
    """Of runs whose shares are 0.9, 0.95 and 1.0: mean less t * s * sqrt(1 + 1/3)."""
    runs = [((90,), (100,)), ((95,), (100,)), ((100,), (100,))]
    expected = 0.95 - 2.919986 * 0.05 * (1 + 1 / 3) ** 0.5
    assert next_share(runs, 1, 0.95) == pytest.approx(expected, abs=1e-6)
    assert next_share([((5, 5), (5, 5))], 2, 0.95) == 1.0


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
    quick = PLAN | {"options": {}, "layouts": [{}], "gpus": PLAN["gpus"][:1], "num_requests": 100}
    path = write(tmp_path / "plan.yaml", quick)
    result = CliRunner().invoke(
        app, ["plan", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    )
    assert result.exit_code == 0, result.output
    assert "The cheapest fleet for 108 requests/s is" in result.output
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


def test_a_plan_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a plan is a mapping"):
        read_plan(write(tmp_path / "plan.yaml", "- 1\n"))
    with pytest.raises(ScenarioError, match="cannot read plan"):
        read_plan(tmp_path / "none.yaml")
