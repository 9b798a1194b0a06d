"""The first question of a new user, answered in three commands: what takes twice the load? (The
other one, a bad p99, is in `tests.scenarios.experiments.diagnosis`.)"""

from __future__ import annotations

import json
import time
from pathlib import Path

from typer.testing import CliRunner

from scenarios.commands import app

PLAN = """\
scenario: service.yaml
demand: {now: 16}
fleet: {gpu: H100, tensor_parallel_size: 4, replicas: 1}
targets:
  - {metric: ttft, percentile: 99, within_s: 2}
  - {metric: tpot, percentile: 95, within_s: 0.05}
gpus:
  - {gpu: H100, usd_per_gpu_h: 2.6}
layouts:
  - tensor_parallel_size: [2, 4]
options:
  engine.quantization: [null, fp8]
confidence: 0.75
num_requests: 300
"""


def run(*arguments: str) -> str:
    begun_s = time.process_time()
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    assert time.process_time() - begun_s < 60, arguments[0]
    return result.output


def test_what_takes_twice_the_load_of_a_service_on_four_gpus(tmp_path: Path) -> None:
    service, plan, out = (tmp_path / name for name in ("service.yaml", "plan.yaml", "out"))
    load = [
        "--rate",
        "8",
        "--input-tokens",
        "1500",
        "--output-tokens",
        "250",
        "--num-requests",
        "500",
    ]
    slo = ["--slo-ttft", "2", "--slo-tpot", "0.05"]
    command = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4"
    into = ["--gpu", "H100", *load, *slo, "--out", str(service)]
    _ = run("scenario", "from-vllm", command, *into)
    twice = run("whatif", str(service), "--set", "workload.rate_per_s=16", "--replications", "1")
    assert "rate_per_s" in twice
    plan.write_text(PLAN)
    text = " ".join(run("plan", str(plan), "--jobs", "1", "--out", str(out)).split())
    content = json.loads((out / "plan.json").read_text())
    assert (out / "plan.html").stat().st_size > 10_000
    assert content["ranked"]
    assert content["today"]["planned"]["level"] == 16
    assert not content["today"]["planned"]["kept"]
    assert "Today's fleet, 4 \N{MULTIPLICATION SIGN} H100" in text
    assert "fp8" in text
    assert "a month" in text
