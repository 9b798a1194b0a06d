"""A server observed from outside: the constants behind its answers are found again."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from calibrate.servers.client import Answer, Server
from calibrate.servers.design import Phase, closed_phases, poisson_phases
from calibrate.servers.observe import Observed, Observer, save_observation
from costmodels.engines.calibration import load_api_server
from scenarios.build.replica import Replica
from scenarios.build.resolve import resolve
from scenarios.calibration import observed
from scenarios.calibration.observed import fit_observation
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import parse_scenario
from scenarios.schema import Scenario
from sim.errors import ScenarioError
from sim.fleet.cluster import run_cluster
from sim.request_table import UNLIMITED, request_table
from tests.calibrate.servers.fake_server import running
from tests.calibrate.servers.timed_engine import TimedEngine

HOST, COMPUTE, MEMORY, FIXED, REQUEST, PROMPT_TOKEN, PART = 1.4, 0.8, 0.75, 1.2, 2.0, 1.5, 1.0


def scenario_of(**engine: object) -> Scenario:
    """Return a scenario of one engine on an H200, whose workload does not matter."""
    return parse_scenario(
        {
            "model": "meta-llama/Llama-3.1-8B",
            "hardware": {"gpu": "H200"},
            "engine": engine,
            "workload": ANY_WORKLOAD,
        }
    )


def other_machine() -> Replica:
    """Return the engine with its constants multiplied."""
    factors = np.array([HOST, COMPUTE, MEMORY, FIXED, REQUEST, PROMPT_TOKEN, PART])
    return observed._changed(observed._replica(scenario_of()), factors)


def answers_of(replica: Replica, phase: Phase) -> Observed:
    """Return how a simulated server answers a phase."""
    lengths = np.array(phase.lengths)
    arrivals_s = np.array(phase.arrivals_s or np.zeros(len(lengths)))
    clients = phase.concurrency or UNLIMITED
    table = request_table(arrivals_s, lengths[:, 0], lengths[:, 1], max_concurrency=clients)
    log = run_cluster(table, observed._pool(replica)).requests
    times = (
        np.frombuffer(column, np.int64) / 1e9
        for column in (log.arrival_ns, log.first_token_ns, log.finished_ns)
    )
    answers = [
        Answer(sent_s=sent, prompt_tokens=prompt, output_tokens=output, first_s=first, last_s=last)
        for sent, first, last, (prompt, output) in zip(*times, phase.lengths, strict=True)
    ]
    return Observed(phase=phase, answers=tuple(answers))


def test_the_constants_behind_simulated_answers_are_found_again(tmp_path: Path) -> None:
    machine, draws = other_machine(), random.Random(1)
    phases = closed_phases(8192, 128)
    phases += poisson_phases(20.0, 30.0, [draws.random() for _ in range(3000)])
    found = [answers_of(machine, phase) for phase in phases]
    seen, out = tmp_path / "seen.json", tmp_path / "mine.yaml"
    save_observation(found, {}, seen)
    facts = fit_observation(scenario_of(), found, seen, out)
    factors = {row["what"]: row["factor"] for row in facts["constants"]}
    assert factors["host times"] == pytest.approx(HOST, rel=0.1)
    assert factors["compute of prompts"] == pytest.approx(COMPUTE, rel=0.05)
    assert factors["bandwidth of decodes"] == pytest.approx(MEMORY, rel=0.05)
    assert factors["API server, a request"] == pytest.approx(REQUEST, rel=0.15)
    errors = {(row["what"], row["statistic"]): row for row in facts["errors"]}
    for statistic in ("TTFT p50", "TPOT p50"):
        row = errors["all", statistic]
        assert row["before"] > 0.15
        assert row["after"] < row["before"] / 5
    again = resolve(scenario_of(profile=str(out), api_server_count=1))
    before = resolve(scenario_of()).fitted.gemm_memory
    assert again.fitted.gemm_memory == pytest.approx(before * MEMORY, rel=0.05)
    assert load_api_server(str(out)).evidence.label == "fitted"


def test_a_server_over_http_is_predicted_better_where_nothing_was_fitted(tmp_path: Path) -> None:
    # Much slower than the built-in constants say, because a busy machine sleeps too long.
    factors = np.array([2.0, 0.4, 0.4, 1.0, 1.0, 1.0, 1.0])
    synchronous = scenario_of(async_scheduling=False)
    machine = observed._changed(observed._replica(synchronous), factors)
    engine = TimedEngine(machine, request_s=0.008)
    say = lambda text: None  # noqa: E731
    with running(engine) as url, engine.working():
        observer = Observer(Server(url=url, model="tiny"), 128_256, seed=0, say=say)
        phases = (
            Phase(name="prompt_512", concurrency=1, lengths=((512, 1),) * 4),
            Phase(name="prompt_4096", concurrency=1, lengths=((4096, 1),) * 4),
            Phase(name="prompt_2048", concurrency=1, lengths=((2048, 1),) * 4, held_out=True),
            Phase(name="batch_4", concurrency=4, lengths=((256, 40),) * 8),
            Phase(name="batch_8", concurrency=8, lengths=((256, 40),) * 16, held_out=True),
        )
        found = [observer._send(phase) for phase in phases]
    seen = tmp_path / "seen.json"
    save_observation(found, {}, seen)
    facts = fit_observation(synchronous, found, seen, tmp_path / "mine.yaml")
    errors = {(row["what"], row["statistic"]): row for row in facts["errors"]}
    for statistic in ("TTFT p50", "TPOT p50"):
        row = errors["all", statistic]
        assert row["after"] < row["before"] / 2, facts


def test_a_fleet_is_not_one_server(tmp_path: Path) -> None:
    fleet = scenario_of().model_copy(update={"pool": scenario_of().pool.model_copy()})
    fleet = parse_scenario({**fleet.model_dump(exclude_unset=True), "pool": {"replicas": 2}})
    with pytest.raises(ScenarioError, match="one replica"):
        fit_observation(fleet, [], tmp_path / "seen.json", tmp_path / "mine.yaml")


def test_all_phases_fitted_leaves_none_to_judge_by(tmp_path: Path) -> None:
    one = answers_of(other_machine(), closed_phases(8192, 1)[0])
    with pytest.raises(ScenarioError, match="judge by others"):
        fit_observation(scenario_of(), [one], tmp_path / "seen.json", tmp_path / "mine.yaml")
