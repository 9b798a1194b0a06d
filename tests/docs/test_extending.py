"""Recipes of docs/extending.md, written to the files that it names and run as they stand there."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios import load, simulate
from scenarios.run.result import RunResult
from tests.properties.checkout import CHECKOUT
from tests.reports.html_page import Page
from tests.reports.sample import write_sample

pytestmark = pytest.mark.usefixtures("trusts_tmp_path")

DOCUMENT = CHECKOUT / "docs" / "extending.md"
FILES = dict(
    re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
)
SCENARIOS = [name for name, text in FILES.items() if text.startswith(("base:", "model:"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with all files of the document."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(name: str, *overrides: str) -> RunResult:
    result = simulate(load(name, overrides))
    assert result.summary["requests"]["arrived"] == len(result.requests) > 0
    return result


def finished(result: RunResult) -> int:
    return int((result.requests["status"] == "finished").sum())


def test_every_file_is_part_of_a_recipe() -> None:
    used = [name for name in FILES if any(Path(name).stem in FILES[s] for s in SCENARIOS)]
    assert set(FILES) - set(used) - set(SCENARIOS) == {
        "token_log.py",
        "slowest_report.py",
        "first_step.py",
    }


def test_scheduler(folder: Path) -> None:
    assert (run("tiny.yaml").figure("running", "max") or 0) > 2
    result = run("scheduler.yaml")
    assert result.figure("running", "max") == 2
    assert finished(result) == 40


def test_router(folder: Path) -> None:
    requests = run("router.yaml").requests
    is_long = requests["prompt_tokens"] >= 2500
    assert is_long.any()
    assert ((requests["replica"] == 2) == is_long).all()


def test_eviction_policy(folder: Path) -> None:
    own, lru = run("eviction.yaml"), run("eviction.yaml", "kv.eviction=lru")
    assert finished(own) == 40
    hits = [int(result.requests["cached_tokens"].sum()) for result in (own, lru)]
    assert hits[0] > hits[1] > 0


def test_autoscaler(folder: Path) -> None:
    replicas = run("autoscaler.yaml").summary["service"]["replicas"]
    assert [replica["from_s"] >= 0.5 for replica in replicas] == [False, True, True]


def test_admission_policy(folder: Path) -> None:
    result = run("admission.yaml")
    num_long = int((result.requests["prompt_tokens"] > 2000).sum())
    assert result.summary["requests"]["reject_reasons"] == {"the prompt is too long": num_long}
    assert finished(result) == 40 - num_long


def test_gpu(folder: Path) -> None:
    result = run("gpu.yaml")
    assert result.build.replica.gpu.name == "Example-96GB"
    assert finished(result) == 40


@pytest.mark.parametrize("name", ["config.yaml", "layers.yaml"])
def test_model(folder: Path, name: str) -> None:
    result = run(name)
    assert len(result.build.replica.model.layers) <= 2
    assert finished(result) == 40


def test_trace_format_is_one_file_and_one_line(folder: Path) -> None:
    """The package is copied, so that the file and the line can be added to it."""
    (line,) = re.findall(r"^```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    shutil.copytree(CHECKOUT / "workloads", folder / "workloads")
    readers = folder / "workloads" / "readers"
    shutil.move(folder / "token_log.py", readers)
    text = (readers / "detect.py").read_text()
    (readers / "detect.py").write_text(text.replace("_READERS = (\n", f"_READERS = (\n{line}"))
    command = (
        "from scenarios import load, simulate; "
        "print(simulate(load('trace.yaml')).requests['prompt_tokens'].tolist())"
    )
    path = os.pathsep.join([str(folder), str(CHECKOUT)])
    done = subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | {"PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[512, 1900, 40]"


def test_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(folder / "run", requests=40, rejected=0)
    sys.argv[1:] = ["run"]
    runpy.run_path("slowest_report.py", run_name="__main__")
    text = capsys.readouterr().out
    assert text.startswith("The slowest request takes ")
    assert text.count("request ") == 7
    page = Page((folder / "slowest.html").read_text())
    assert len(page.all("tr")) == 6
    assert not page.open


def test_engine_feature(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("first_step.py", run_name="__main__")
    first_s, last_s = map(float, re.findall(r"([\d.]+) s", capsys.readouterr().out))
    assert 2.0 < first_s < 2.2
    assert last_s < first_s
