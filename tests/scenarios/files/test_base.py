"""Scenario files that extend others: what is merged, what is replaced, and where errors are
located."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.files.load import load_scenario
from scenarios.schema import Scenario
from sim.errors import ScenarioError

BASE = """\
model: llama-3.1-8b
hardware: {gpu: H200}
workload:
  preset: azure-conv
  rate_per_s: 8
  num_requests: 100
slo: {ttft_s: 0.5, tpot_s: 0.02}
"""


def load(folder: Path, text: str, base: str = BASE) -> Scenario:
    (folder / "base.yaml").write_text(base)
    (folder / "mine.yaml").write_text(text)
    return load_scenario(folder / "mine.yaml")


def test_sections_are_merged_key_by_key(tmp_path: Path) -> None:
    scenario = load(tmp_path, "base: base.yaml\nworkload: {rate_per_s: 12}\nslo: {ttft_s: null}\n")
    assert scenario.workload.rate_per_s == 12
    assert scenario.workload.preset == "azure-conv"
    assert scenario.slo.ttft_s is None
    assert scenario.slo.tpot_s == 0.02


def test_another_source_of_requests_replaces_the_bases(tmp_path: Path) -> None:
    text = (
        "base: base.yaml\nworkload:\n  generator: {input_tokens: {fixed: 9}, "
        "output_tokens: {fixed: 3}}\n"
    )
    workload = load(tmp_path, text).workload
    assert workload.preset is None
    assert workload.generator is not None


def test_paths_start_at_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "low.yaml").write_text(
        "model: llama-3.1-8b\nworkload: {trace: {path: t.csv}}\n"
    )
    scenario = load(tmp_path, "base: sub/low.yaml\nworkload: {trace: {skip_bad_rows: true}}\n")
    assert scenario.workload.trace is not None
    assert Path(scenario.workload.trace.path) == tmp_path / "sub" / "t.csv"
    assert scenario.workload.trace.skip_bad_rows


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: mine.yaml\n", "mine.yaml, line 1: base mine.yaml leads back"),
        ("base: 3\n", "expected the path of a scenario file"),
        ("base: gone.yaml\n", "base gone.yaml is not a file"),
        ("base: base.yaml\nworkload: {rate_per_s: -1}\n", "mine.yaml, line 2: workload.rate_per_s"),
        (
            "base: base.yaml\nmodle: x\n",
            "mine.yaml, line 2: modle: unknown key; did you mean 'model'",
        ),
    ],
)
def test_faults_name_the_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value)


def test_a_fault_of_the_base_names_the_base(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"base\.yaml, line 5: workload\.rate_per_s"):
        load(tmp_path, "base: base.yaml\nseed: 3\n", BASE.replace("rate_per_s: 8", "rate_per_s: 0"))
