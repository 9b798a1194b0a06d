"""README and docs are true: their commands run, their Python runs, the files they name exist."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from reports.run.report import run_report
from reports.terminal import print_report
from scenarios import load, simulate
from scenarios.commands import app
from tests.calibrate.kernel_lines import made_lines, write_lines
from tests.calibrate.results.measured_samples import Sample, vllm_bench
from tests.properties.checkout import CHECKOUT
from tests.properties.scenarios import azure_trace, small, write
from tests.scenarios.validation.samples import write_sample

README = CHECKOUT / "README.md"
DOCUMENTS = [README, CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
MINUTES = {"calibration.md", "tools.md"}  # a calibration; a plan and a sweep, as shipped


def blocks(document: Path, language: str) -> list[str]:
    """Return the fenced code blocks of a document in a language."""
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(document: Path) -> list[list[str]]:
    """Return the command lines of a document, split as a shell splits them."""
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the documents take for granted that a reader has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scenarios").symlink_to(CHECKOUT / "scenarios")
    azure_trace(tmp_path / "my_trace.csv", 400)
    example = next(b for b in blocks(README, "python") if "shortest_prompt_first" in b)
    (tmp_path / "my_policies.py").write_text(example)
    write(tmp_path / "mine.yaml", small(num_requests=300) | {"slo": {"ttft_s": 0.5}})
    result = simulate(load(tmp_path / "mine.yaml"))
    result.write(tmp_path / "results" / "mine")
    requests = result.requests
    sample = Sample(
        arrival_s=requests["arrival_s"].to_numpy(),
        prompt_tokens=requests["prompt_tokens"].tolist(),
        ttft_s=requests["ttft_s"].to_numpy(),
        gaps_s=[np.diff(result.token_times_s(i)).tolist() for i in range(len(requests))],
    )
    (tmp_path / "bench.json").write_text(json.dumps(vllm_bench(sample, detailed=True)))
    write_lines(tmp_path / "h200.jsonl", made_lines("gemm", "decode_attention"))
    (tmp_path / "path" / "to").mkdir(parents=True)
    write_sample(tmp_path / "path" / "to" / "measurements")
    return tmp_path


def run(command: list[str], folder: Path) -> None:
    """Carry out one command line of a document."""
    name, *rest = command
    if name == "make":
        makefile = (CHECKOUT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in rest), command
    elif name == "alias":
        assert rest == ["fleetcast=.venv/bin/fleetcast"]
    elif name == "python":  # needs a GPU, or takes minutes: the module is there
        assert rest[0] == "-m"
        assert find_spec(rest[1]) is not None, command
    else:
        assert name == "fleetcast", command
        if {"--save", "init"} & set(rest):
            (folder / "mine.yaml").unlink()  # no command overwrites a scenario
        result = CliRunner().invoke(app, rest, catch_exceptions=False)
        assert result.exit_code == 0, f"{command}: {result.output}"


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(d, id=d.name, marks=[pytest.mark.slow] if d.name in MINUTES else [])
        for d in DOCUMENTS
        if commands(d)
    ],
)
def test_command_lines_run(document: Path, workplace: Path) -> None:
    for command in commands(document):
        run(command, workplace)


def test_the_demo_prints_what_the_readme_shows() -> None:
    result = simulate(load(CHECKOUT / "scenarios" / "demo.yaml"))
    console = Console(width=100, record=True, color_system=None, legacy_windows=False)
    print_report(run_report(result.summary), console)
    printed = [line.rstrip() for line in console.export_text().splitlines()]
    shown = [line.rstrip() for line in blocks(README, "text")[0].splitlines()]
    assert shown == printed


@pytest.mark.parametrize("document", [README, CHECKOUT / "docs" / "scenarios.md"], ids=str)
def test_python_examples_run(
    document: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = (block for block in blocks(document, "python") if "simulate(" in block)
    exec(compile(example, str(document), "exec"), {})
    assert "finished" in capsys.readouterr().out
    assert (workplace / "results" / "mine" / "summary.json").exists()


@pytest.mark.usefixtures("trusts_tmp_path")
def test_the_scheduler_is_twenty_lines_and_changes_the_order(workplace: Path) -> None:
    example = (workplace / "my_policies.py").read_text()
    assert len(example.splitlines()) <= 20
    overrides = ["workload.num_requests=400", "workload.rate_per_s=60"]
    scenario = CHECKOUT / "scenarios" / "demo.yaml"
    fcfs = simulate(load(scenario, overrides))
    own = "engine.scheduler=my_policies:shortest_prompt_first"
    shortest = simulate(load(scenario, [*overrides, own]))
    ours, theirs = (result.figure("ttft", "mean") or 0.0 for result in (shortest, fcfs))
    assert 0 < ours < theirs


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_files_and_links_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_0-9.-]+\.(?:py|yaml))?)`", text)
    named = [name for name in named if not name.startswith(("results/", "path/"))]
    assert [name for name in named if not (CHECKOUT / name).exists()] == []
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_document_is_linked_from_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    assert [d.name for d in DOCUMENTS[1:] if f"({d.relative_to(CHECKOUT)})" not in text] == []


def test_every_file_of_sim_has_its_line() -> None:
    text = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = [file for file in (CHECKOUT / "sim").rglob("*.py") if file.name != "__init__.py"]
    assert [file.name for file in files if file.name not in text] == []
