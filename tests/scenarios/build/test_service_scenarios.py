"""Scenarios with admission, clients, faults, an autoscaler and prices, as users see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.hardware.gpus import load_gpu
from scenarios.files.dump import dump_scenario
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from sim.accounts import TIME_ACCOUNTS
from sim.errors import PolicyError, ScenarioError
from sim.request import Status
from tests.properties.checkout import CHECKOUT

pytestmark = pytest.mark.usefixtures("trusts_tmp_path")

SHIPPED = CHECKOUT / "scenarios"
BASE: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "workload": {
        "generator": {"input_tokens": {"fixed": 512}, "output_tokens": {"fixed": 64}},
        "rate_per_s": 20,
        "num_requests": 400,
    },
    "bands": False,
}


def run(**sections: Any) -> RunResult:
    return simulate(parse_scenario({**BASE, **sections}))


def share_good(result: RunResult, start_s: float, stop_s: float) -> float:
    arrival_s, good = result.metrics.arrival_s, result.metrics.good
    return float(good[(arrival_s >= start_s) & (arrival_s < stop_s)].mean())


def codes(result: RunResult) -> set[str]:
    return {warning["code"] for warning in result.summary["warnings"]}


def test_retries_without_a_budget_turn_a_blip_into_an_outage() -> None:
    shorter = ["bands=false", "workload.num_requests=2800"]  # the shipped ones last 600 s
    storm = simulate(load_scenario(SHIPPED / "retry_storm.yaml", shorter))
    assert share_good(storm, 0, 100) > 0.99
    assert share_good(storm, 250, 350) == 0.0  # the node was slow from 120 s to 150 s
    warning = storm.summary["warnings"][0]
    assert warning["code"] == "retry_storm"
    assert "over at 150 s" in warning["text"]
    assert "retry_budget" in warning["text"]
    assert storm.summary["service"]["attempts_per_request"] > 5

    budget = simulate(load_scenario(SHIPPED / "retry_budget.yaml", shorter))
    assert share_good(budget, 240, 350) > 0.99
    assert "retry_storm" not in codes(budget)
    assert budget.summary["service"]["attempts_per_request"] < 1.1


def test_nothing_changes_for_those_who_ask_for_nothing() -> None:
    plain = run()
    patient = run(clients={}, faults={}, startup={"process_s": 1})
    for name in ("first_token_ns", "finished_ns", "first_row", "cached_tokens"):
        assert getattr(plain.log.requests, name) == getattr(patient.log.requests, name)
    assert plain.summary["figures"] == patient.summary["figures"]
    assert "service" not in plain.summary
    assert patient.summary["service"]["attempts"] == 400


def test_a_crash_costs_its_requests_and_the_time_until_weights_are_loaded() -> None:
    fault = {"at_s": 5, "kind": "engine_crash", "replica": 0}
    startup = {"process_s": 2, "load_bytes_per_s": 16e9}
    result = run(
        faults={"schedule": [fault], "detection_s": 1, "proxy_retries": 3},
        startup=startup,
        pool={"replicas": 2, "router": "least_loaded"},
    )
    outage = result.summary["service"]["outages"][0]
    weights_s = result.build.replica.memory.weight_bytes / 16e9
    assert outage["detected_s"] == 6
    assert outage["up_s"] == pytest.approx(6 + 2 + weights_s)
    assert set(result.log.requests.status) == {Status.FINISHED}
    rework = result.books.e2e_ns[:, TIME_ACCOUNTS.index("failure_rework")]
    sent_again = result.requests["attempts"] == 2  # others met the engine when it was down
    assert (rework > 0).sum() == sent_again.sum() > 0
    assert result.summary["service"]["proxy_retries"] > sent_again.sum()
    text = " ".join(result.summary["conditions"]["notes"])
    assert "an engine serves" in text


def test_a_pool_can_fail_as_a_whole() -> None:
    pools = [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 1}]
    fault = {"at_s": 5, "kind": "engine_crash", "pool": "a"}
    result = run(pools=pools, faults={"schedule": [fault], "detection_s": 0, "proxy_retries": 1})
    assert [outage["replica"] for outage in result.summary["service"]["outages"]] == [0, 1]
    after = result.metrics.arrival_s > 5
    assert set(np.frombuffer(result.log.requests.replica, np.int32)[after].tolist()) == {2}


def test_a_fleet_that_scales_pays_for_what_it_has() -> None:
    result = run(
        pool={"replicas": 4, "router": "least_loaded"},
        engine={"max_num_seqs": 8},
        autoscaler={
            "policy": {"name": "queue_threshold", "max_waiting": 2, "cooldown_s": 10},
            "interval_s": 1,
        },
        startup={"process_s": 1, "load_bytes_per_s": 16e9, "provision_s": 1},
        prices={"usd_per_gpu_h": 3.6, "date": "2026-05", "source": "a list"},
    )
    service = result.summary["service"]
    assert 1 < len(service["replicas"]) <= 4
    window = result.metrics.window
    paid_s = sum(
        min(r["to_s"] or window.end_ns / 1e9, window.end_ns / 1e9)
        - max(r["from_s"], window.start_ns / 1e9)
        for r in service["replicas"]
    )
    gpu_hours = result.figure("gpu_hours")
    assert gpu_hours == pytest.approx(paid_s / 3600)
    assert result.figure("cost") == pytest.approx(paid_s * 3.6 / 3600)
    assert gpu_hours is not None
    assert gpu_hours < 4 * window.length_s / 3600


def test_money_and_energy_are_functions_of_the_run() -> None:
    result = run(
        prices={"usd_per_gpu_h": 3.0, "date": "2026-05", "source": "a list", "idle_w": 100},
        slo={"ttft_s": 10},
    )
    window_s = result.metrics.window.length_s
    hours = window_s / 3600
    assert result.figure("cost") == pytest.approx(3.0 * hours)
    assert result.figure("usd_per_good_request") == pytest.approx(3.0 * hours / 400)
    inputs, outputs = 400 * 512 / 1e6, 400 * 64 / 1e6
    assert result.figure("usd_per_million_tokens") == pytest.approx(3 * hours / (inputs + outputs))
    split = [result.figure(f"usd_per_million_{way}_tokens") for way in ("input", "output")]
    assert split[0] * inputs + split[1] * outputs == pytest.approx(3.0 * hours)  # type: ignore[operator]
    tdp_w, busy = load_gpu("H200").tdp_w, result.figure("gpu_busy")
    assert tdp_w is not None
    assert busy is not None
    joules = 100 * window_s + (tdp_w - 100) * busy * window_s
    assert result.figure("energy") == pytest.approx(joules / 3.6e6)
    evidence = {f["name"]: f["evidence"] for f in result.summary["figures"]}
    assert evidence["cost"] == "reported"
    assert evidence["energy"] == "assumed"
    assert run(prices={"usd_per_gpu_h": 3.0}).summary["figures"][-1]["evidence"] == "assumed"
    with pytest.raises(KeyError):
        run().figure("cost")


def test_a_pool_without_a_price_has_no_cost() -> None:
    pools = [{"name": "a"}, {"name": "b"}]
    with pytest.raises(KeyError):
        run(pools=pools, prices={"by_pool": {"a": 2.0}}).figure("cost")
    both = run(pools=pools, prices={"by_pool": {"a": 2.0}, "usd_per_gpu_h": 4.0})
    assert both.figure("usd_per_hour") == pytest.approx(6.0)


def test_own_admission_policies_are_found_and_checked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Odd:\n"
        "    def __init__(self, view, *, every=2): self.every = every\n"
        "    def admit(self, request):\n"
        "        return None if request.index % self.every else 'not today'\n"
        "    def left(self, request): pass\n"
        "class Wrong(Odd):\n"
        "    def admit(self, request): return True\n"
        "class Half:\n"
        "    def __init__(self, view): pass\n"
        "    def admit(self, request): return None\n"
    )
    mine = str(tmp_path / "mine.py")
    result = run(admission={"name": f"{mine}:Odd", "every": 4})
    assert result.summary["requests"]["reject_reasons"] == {"not today": 100}
    with pytest.raises(PolicyError, match="Wrong returned a bool"):
        run(admission=f"{mine}:Wrong")
    with pytest.raises(PolicyError, match="Half has no method left"):
        run(admission=f"{mine}:Half")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"admission": "queue_kap"}, "unknown admission 'queue_kap'; did you mean"),
        ({"admission": {"name": "queue_cap", "max_wating": 3}}, "max_wating"),
        ({"autoscaler": {"policy": "kv_threshold", "role": "decode"}}, "no pool decodes"),
        ({"faults": {"schedule": [{"at_s": 1, "kind": "fire"}]}}, "faults.schedule"),
        (
            {"faults": {"schedule": [{"at_s": 1, "kind": "gpu_lost", "pool": "x"}]}},
            "no pool 'x'",
        ),
        ({"clients": {"retry_budget": -1}}, "clients.retry_budget"),
        (
            {"clients": {"ttft_timeout_s": 5, "e2e_timeout_s": 3}},
            "cannot be there before its first token",
        ),
    ],
)
def test_what_cannot_be_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        run(**sections)


def test_a_scenario_with_a_service_reads_as_it_was_written(tmp_path: Path) -> None:
    scenario = load_scenario(SHIPPED / "retry_budget.yaml")
    (tmp_path / "again.yaml").write_text(dump_scenario(scenario))
    assert load_scenario(tmp_path / "again.yaml") == scenario
