"""``import scenarios``: every answer of the command line, as a function."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import yaml

import scenarios
from tests.properties.checkout import CHECKOUT
from tests.properties.scenarios import small, write
from tests.scenarios.experiments.plan.samples import PLAN
from tests.scenarios.experiments.sweep.samples import RATES, write_sweep_file


def test_every_answer_has_a_function(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", small(num_requests=200) | {"slo": {"ttft_s": 0.5}})
    scenario = scenarios.load(file, ["seed=3"])
    assert scenario.seed == 3
    assert scenarios.simulate(scenario).figure("ttft", "p99") is not None
    answer = scenarios.whatif(file, ["engine.tensor_parallel_size=2"], jobs=1)
    assert [variant["name"] for variant in answer.content["variants"]] == ["tensor_parallel_size=2"]
    found = scenarios.capacity(scenario, precision=0.2, bands=False, jobs=1)
    assert found["answer"]["capacity"] > 0
    frame = scenarios.sweep(write_sweep_file(tmp_path, RATES), out=tmp_path / "sweep", jobs=1)
    assert len(frame) == 3
    question = deepcopy(PLAN) | {"options": {}, "num_requests": 60, "gpus": PLAN["gpus"][:1]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(question, sort_keys=False))
    assert scenarios.plan(tmp_path / "plan.yaml", jobs=1)["ranked"]


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import scenarios, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert not {"numpy", "pandas", "pydantic", "simpy", "yaml"} & set(done.stdout.split())
