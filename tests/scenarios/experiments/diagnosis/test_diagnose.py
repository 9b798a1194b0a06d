"""A diagnosis finds what was done to a server: a burst of requests, and time from elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scenarios.commands import app
from scenarios.experiments.diagnosis.windows import verdicts, window_of
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.arrays import Float64
from sim.errors import ScenarioError
from sim.request_table import RequestTable

SERVER = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4"
_SLOWER = 1.1
_STALL_S = 2.5


def measured(path: Path, columns: Sequence[str]) -> Path:
    """Write what a server 10% slower than the model would have measured: 20 requests/s from 300 to
    360 s where 6 are usual, and 2.5 s more before the first token from 600 to 630 s."""
    rng = np.random.default_rng(3)
    counts = rng.poisson([20 if 300 <= second < 360 else 6 for second in range(900)])
    arrival_s = np.repeat(np.arange(900), counts) + rng.random(int(counts.sum()))
    arrival_s = np.sort(arrival_s)
    table = RequestTable(
        arrival_ns=(arrival_s * 1e9).astype(np.int64),
        prompt_tokens=rng.integers(500, 3000, len(arrival_s)),
        output_tokens=rng.integers(100, 400, len(arrival_s)),
        priority=np.zeros(len(arrival_s), np.int64),
    )
    server = {
        "model": "Qwen/Qwen3-32B",
        "hardware": {"gpu": "H100"},
        "engine": {"tensor_parallel_size": 4},
        "workload": ANY_WORKLOAD,
        "bands": False,
    }
    metrics = simulate(parse_scenario(server), table=table).metrics
    stall_s = np.where((arrival_s >= 600) & (arrival_s < 630), _STALL_S, 0.0)
    values: dict[str, Any] = {
        "arrival_s": 1.7e9 + arrival_s,
        "prompt_tokens": table.prompt_tokens,
        "output_tokens": table.output_tokens,
        "ttft_s": metrics.ttft_s * _SLOWER + stall_s,
        "e2e_s": metrics.e2e_s * _SLOWER + stall_s,
    }
    rows = zip(*(values[name] for name in columns), strict=True)
    lines = [
        ",".join(columns),
        *(",".join(f"{v:.6f}".rstrip("0").rstrip(".") for v in row) for row in rows),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


ALL = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["diagnose", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_bad_p99_is_explained_in_one_command(tmp_path: Path) -> None:
    """The question of a new user: a bad p99, with the server's command and a CSV."""
    file = measured(tmp_path / "requests.csv", ALL)
    begun_s = time.process_time()
    text = run(
        SERVER, str(file), "--gpu", "H100", "--window", "30s", "--out", str(tmp_path / "out")
    )
    assert time.process_time() - begun_s < 60
    content = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert (tmp_path / "out" / "diagnosis.html").stat().st_size > 10_000
    by_start = {window["start_s"]: window for window in content["windows"]}
    assert content["metric"] == "ttft"
    assert content["bias"] == pytest.approx(_SLOWER, rel=0.02)
    assert by_start[330]["verdict"] == "traffic"
    assert by_start[330]["explained"] == pytest.approx(1, abs=0.1)
    assert by_start[600]["verdict"] == "not traffic"
    assert by_start[90]["verdict"] == "as usual"
    assert content["accounts"][0]["account"] == "queue"
    assert content["changes"][0]["name"] == "one replica more"
    assert content["changes"][0]["after_s"] < content["changes"][0]["before_s"] / 3
    assert len(content["requests"]) == 10
    told = " ".join(text.split())
    assert "what rose is queue" in told
    assert "TPOT stayed as it was, so look before the first token" in told
    assert "one replica more helps most" in told


def test_without_token_counts_it_says_what_can_be_said(tmp_path: Path) -> None:
    file = measured(tmp_path / "requests.csv", ("arrival_s", "ttft_s", "e2e_s"))
    content = json.loads(run(SERVER, str(file), "--gpu", "H100", "--format", "json"))
    assert not content["is_replayed"]
    assert {window["verdict"] for window in content["windows"]} == {"as usual", "raised"}
    assert "Without token counts" in " ".join(run(SERVER, str(file), "--gpu", "H100").split())
    # With a workload to take them from, the requests are replayed all the same.
    more = ["--gpu", "H100", "--input-tokens", "1750", "--output-tokens", "250"]
    more += ["--rate", "6", "--num-requests", "100", "--no-what-if", "--format", "json"]
    content = json.loads(run(SERVER, str(file), *more))
    assert content["is_replayed"]
    assert any("assumed" in note for note in content["notes"])


METRICS = """\
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{model_name="q",le="0.1"} 10
vllm:time_to_first_token_seconds_bucket{model_name="q",le="1.0"} 90
vllm:time_to_first_token_seconds_bucket{model_name="q",le="+Inf"} 100
vllm:time_to_first_token_seconds_sum{model_name="q"} 60
vllm:time_to_first_token_seconds_count{model_name="q"} 100
vllm:num_preemptions_total{model_name="q"} 3
vllm:request_success_total{model_name="q",finished_reason="stop"} 100
"""


def test_a_scrape_is_compared_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.txt"
    file.write_text(METRICS)
    text = " ".join(run(SERVER, str(file), "--gpu", "H100").split())
    assert "only the whole can be looked at" in text
    assert "preempted 3 times" in text
    load = ["--input-tokens", "1750", "--output-tokens", "250", "--rate", "6"]
    more = [*load, "--num-requests", "100", "--format", "json"]
    content = json.loads(run(SERVER, str(file), "--gpu", "H100", *more))
    mean = next(row for row in content["whole"] if row["statistic"] == "mean")
    assert mean["measured_s"] == pytest.approx(0.6)
    assert 0 < mean["replayed_s"] < 0.6


def test_what_cannot_be_diagnosed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s,output_tokens,ttft_s\n,20,1.0\n,20,2.0\n")
    result = CliRunner().invoke(app, ["diagnose", SERVER, str(file), "--gpu", "H100"])
    assert result.exit_code == 2
    assert "no times" in result.output
    result = CliRunner().invoke(app, ["diagnose", "nowhere.yaml", str(file)])
    assert result.exit_code == 2
    assert "no such file" in result.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("5min", 300), ("30s", 30), ("1h", 3600), ("2 minutes", 120), ("45", 45)]
)
def test_windows_are_read(text: str, seconds: float) -> None:
    assert window_of(text, 100.0) == seconds
    assert window_of(None, 1200.0) == 30


@pytest.mark.parametrize("text", ["", "0s", "soon", "5 parsecs"])
def test_a_wrong_window_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="write it as 5min"):
        _ = window_of(text, 100.0)


def array(*values: float) -> Float64:
    return np.array(values, np.float64)


def test_what_the_replay_has_is_explained() -> None:
    measured_s = array(1, 1, 1, 1, 5, 5, 5)
    expected_s = array(1, 1, 1, 1, 5, 2.6, 1)
    found = verdicts(measured_s, expected_s)
    assert [word for word, _ in found[4:]] == ["traffic", "traffic in part", "not traffic"]
    assert [share for _, share in found[4:]] == pytest.approx([1, 0.4, 0])
    assert found[0] == ("as usual", None)
