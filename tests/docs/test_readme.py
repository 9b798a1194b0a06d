"""The README is accurate: its commands run, its Python runs, and its output is the demo's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from reports.run.terminal import print_summary
from scenarios.commands import app
from scenarios.files.load import load_scenario
from scenarios.run.simulate import simulate
from tests.properties.helpers import CHECKOUT
from tests.properties.scenarios import azure_trace

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_demo_prints_what_the_readme_shows() -> None:
    result = simulate(load_scenario(CHECKOUT / "scenarios" / "demo.yaml"))
    console = Console(width=100, record=True, color_system=None, legacy_windows=False)
    print_summary(result.summary, console)
    printed = [line.rstrip() for line in console.export_text().splitlines()]
    shown = [line.rstrip() for line in blocks("text")[0].splitlines()]
    assert shown == printed


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = next(block for block in blocks("python") if "load_scenario" in block)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(CHECKOUT / "scenarios")
    exec(compile(example, "README.md", "exec"), {})
    assert "finished" in capsys.readouterr().out
    assert (tmp_path / "results" / "mine" / "summary.json").exists()


def test_the_scheduler_example_is_twenty_lines_and_changes_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = next(block for block in blocks("python") if "shortest_prompt_first" in block)
    assert len(example.splitlines()) <= 20
    (tmp_path / "my_policies.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    overrides = ["workload.num_requests=400", "workload.rate_per_s=60"]
    scenario = CHECKOUT / "scenarios" / "demo.yaml"
    fcfs = simulate(load_scenario(scenario, overrides))
    shortest = simulate(
        load_scenario(scenario, [*overrides, "engine.scheduler=my_policies:shortest_prompt_first"])
    )
    ours, theirs = (result.figure("ttft", "mean") or 0.0 for result in (shortest, fcfs))
    assert 0 < ours < theirs


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:[a-z]+/)+[a-z_]+\.(?:py|yaml))`", README)))
)
def test_files_it_names_exist(path: str) -> None:
    assert (CHECKOUT / path).exists()


def test_the_first_five_minutes_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands under that heading, one after another, on a small trace of one's own."""
    section = README[README.index("## Five minutes") : README.index("## Workloads")]
    commands = [
        shlex.split(line.removeprefix("$ fleetcast "))
        for line in re.findall(r"^\$ fleetcast .*$", section, re.MULTILINE)
    ]
    assert [command[0] for command in commands] == [
        "trace",
        "simulate",
        "whatif",
        "capacity",
        "scenario",
    ]
    azure_trace(tmp_path / "my_trace.csv", 400)
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    for command in commands:
        if command[0] == "scenario":
            (tmp_path / "mine.yaml").unlink()  # it never overwrites
        result = runner.invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, f"{command}: {result.output}"
    assert (tmp_path / "results" / "mine" / "report.html").exists()
    assert (tmp_path / "results" / "whatif" / "whatif.html").exists()
    assert (tmp_path / "results" / "capacity" / "capacity.html").exists()
