"""Hosts: probed, named, read from files, and what they do to an engine's times."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrate.measure.host import HostRound, probe_host
from costmodels.engines.hosts import fitted_on, load_host, named_hosts, probed_host, save_host
from costmodels.engines.profile import HOST_TERMS
from scenarios.build.builder import build
from scenarios.build.host import host_factor
from scenarios.calibration.host import host_of_rounds
from scenarios.commands import app
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.schema import Scenario
from sim.errors import ScenarioError

VALUES: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": {"preset": "azure-conv", "num_requests": 20, "rate_per_s": 5.0},
}


def scenario(**engine: Any) -> Scenario:
    return parse_scenario(VALUES | {"engine": engine})


def test_a_probe_finds_how_long_python_takes() -> None:
    rounds = probe_host(0.01, device="cpu")
    assert len(rounds) == 1
    assert 1e-9 < rounds[0].python_call_s < 1e-5
    assert rounds[0].launch_s is None


def test_rounds_are_spread_over_the_time_given() -> None:
    assert 2 <= len(probe_host(1.5, device="cpu")) <= 3


def test_launches_are_timed_on_an_idle_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torch: what is timed are launches alone, after the GPU has caught up."""
    calls: list[str] = []
    tensor = SimpleNamespace(add_=lambda value: calls.append("launch"))
    fake = SimpleNamespace(
        cuda=SimpleNamespace(synchronize=lambda: calls.append("wait")),
        zeros=lambda size, device: tensor,
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    (one,) = probe_host(0.01, device="cuda")
    assert calls == 7 * ["wait", *(1000 * ["launch"])]
    assert one.launch_s is not None
    assert 1e-9 < one.launch_s < 1e-4


def test_a_host_is_the_median_of_its_rounds() -> None:
    host = host_of_rounds([HostRound(30e-9, 7e-6), HostRound(60e-9, 9e-6), HostRound(31e-9, 8e-6)])
    assert (host.python_call_s, host.launch_s, host.evidence.label) == (31e-9, 8e-6, "measured")
    assert "slowest over fastest 1.29" in host.evidence.source


@pytest.mark.parametrize("name", ["h200-vm", "h200-vm-fast", "h200-vm-slow"])
def test_launches_that_were_not_measured_follow_from_python(name: str) -> None:
    known = load_host(name)
    host = probed_host("x", "", python_call_s=known.python_call_s, launch_s=None, source="a probe")
    assert host.launch_s == pytest.approx(known.launch_s, rel=0.06)
    assert host.evidence.label == "extrapolated"


def test_a_file_holds_the_host(tmp_path: Path) -> None:
    host = probed_host("mine", "a box", python_call_s=3e-8, launch_s=5e-6, source="a probe")
    save_host(host, tmp_path / "mine.yaml")
    assert load_host(str(tmp_path / "mine.yaml")) == host
    assert host.factor == pytest.approx(5e-6 / fitted_on().launch_s)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format: 1\n", "describes no host"),
        ("- 1\n", "holds no fields"),
        ("{", "flow"),
        ("format: host 1\npython_call_s: 3.0e-8\n", "launch_s is missing"),
        ("format: host 1\npython_call_s: 3.0e-8\nlaunch_s: -1.0\n", "launch_s"),
        ("format: host 1\npython_call_s: 3.0e-8\nlaunch_s: 1.0e-6\nlabel: sure\n", "label"),
    ],
)
def test_a_file_that_is_no_host_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message):
        load_host(str(path))


def test_an_unknown_host_is_named_with_near_ones() -> None:
    with pytest.raises(ScenarioError, match="did you mean bare-metal"):
        build(scenario(host="baremetal"))


def test_a_host_scales_every_host_time_and_says_so() -> None:
    usual, slow = build(scenario()), build(scenario(host="h200-vm-slow"))
    factor = load_host("h200-vm-slow").factor
    for term in HOST_TERMS:
        of_usual = getattr(usual.replica.profile, term)
        assert getattr(slow.replica.profile, term) == pytest.approx(factor * of_usual)
    assert any("host h200-vm-slow" in note for note in slow.notes)
    both = build(scenario(host="h200-vm-slow", host_speed_factor=2.0)).replica.profile
    assert both.driver_s == pytest.approx(2 * factor * usual.replica.profile.driver_s)


def test_the_profiles_own_host_changes_nothing() -> None:
    assert {host.name for host in named_hosts()} >= {"bare-metal", fitted_on().name}
    named = build(scenario(host=fitted_on().name))
    assert named.replica.profile == build(scenario()).replica.profile


def test_a_calibration_has_its_own_host() -> None:
    with pytest.raises(ScenarioError, match=r"engine\.host bare-metal"):
        host_factor(scenario(host="bare-metal", profile="mine.yaml").engine)


def test_the_command_writes_a_host_that_a_scenario_beside_it_names(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    options = ["calibrate", "host", "--device", "cpu", "--seconds", "0.1", "--format", "json"]
    done = CliRunner().invoke(app, [*options, "--out", str(path)])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert [host["name"] for host in facts["hosts"]][:2] == ["this machine", "h200-vm"]
    (tmp_path / "s.yaml").write_text(json.dumps(VALUES | {"engine": {"host": "host.yaml"}}))
    replica = build(load_scenario(tmp_path / "s.yaml")).replica
    factor = facts["hosts"][0]["factor"]
    assert replica.profile.driver_s == pytest.approx(
        factor * build(scenario()).replica.profile.driver_s, rel=1e-3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "tpu"], "neither cuda nor cpu"),
        (["--device", "cpu", "--out", "host.txt"], "must end in .yaml"),
        (
            ["--device", "cpu", "--seconds", "0.1", "--out", "missing/host.yaml"],
            "cannot be written",
        ),
    ],
)
def test_the_command_refuses_what_it_cannot_do(options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["calibrate", "host", *options])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
