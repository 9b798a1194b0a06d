"""A simulation against results of load tools: exact if they are its own, and the report."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from calibrate.results.detect import read_measured
from calibrate.results.run import LATENCIES
from reports.terminal import print_report
from reports.validation.comparison import comparison_report
from scenarios.commands import app
from scenarios.files.load import load_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from scenarios.validation.compare import (
    Comparison,
    compare,
    read_predicted,
    read_tolerances,
)
from sim.errors import ScenarioError
from tests.calibrate.results.measured_samples import PERCENTILES, Sample, files, vllm_bench
from tests.properties.checkout import CHECKOUT

DEMO = CHECKOUT / "scenarios" / "demo.yaml"
NUM_REQUESTS = 200


@pytest.fixture(scope="module")
def result() -> RunResult:
    return simulate(load_scenario(DEMO, [f"workload.num_requests={NUM_REQUESTS}"]))


@pytest.fixture(scope="module")
def folder(result: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.write(tmp_path_factory.mktemp("compare") / "run")


@pytest.fixture(scope="module")
def sample(result: RunResult) -> Sample:
    """The simulated requests, as a tool would have seen them."""
    requests = result.requests
    gaps = [np.diff(result.token_times_s(i)).tolist() for i in range(len(requests))]
    return Sample(
        arrival_s=requests["arrival_s"].to_numpy(),
        prompt_tokens=requests["prompt_tokens"].tolist(),
        ttft_s=requests["ttft_s"].to_numpy(),
        gaps_s=gaps,
    )


@pytest.fixture(scope="module")
def texts(sample: Sample) -> dict[str, str]:
    """The file of every kind that they make."""
    return files(sample)


@pytest.fixture
def measured(sample: Sample, tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(vllm_bench(sample, detailed=True)))
    return path


def compared(folder: Path, path: Path) -> Comparison:
    return compare(read_predicted(folder), read_measured(path)[0])


def errors(comparison: Comparison) -> dict[tuple[str, str], float]:
    return {(f.metric, f.statistic): f.error for f in comparison.figures}


def run(*args: object) -> Result:
    outcome = CliRunner().invoke(app, ["compare", *map(str, args)])
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
    return outcome


ALL = {"ttft", "tpot", "itl", "e2e", "request_throughput", "output_throughput"}
NO_ITL, NO_RATES = ALL - {"itl"}, ALL - {"request_throughput", "output_throughput"}


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("vllm", ALL),
        ("vllm detailed", ALL),
        ("sglang", ALL),
        ("sglang details", ALL),
        ("guidellm", ALL),
        ("guidellm summary", ALL),
        ("guidellm old", ALL),
        ("aiperf records", ALL),
        ("aiperf summary", ALL),
        ("prometheus", NO_RATES),
        ("csv", NO_ITL),
        ("csv of times", NO_ITL),
    ],
)
def test_own_requests_come_back_without_error(
    folder: Path, texts: dict[str, str], tmp_path: Path, name: str, metrics: set[str]
) -> None:
    path = tmp_path / "results"
    path.write_text(texts[name])
    comparison = compared(folder, path)
    found = errors(comparison)
    assert {metric for metric, _ in found} == metrics
    for (metric, statistic), error in found.items():
        if name == "prometheus" and statistic != "mean":
            continue  # a bucket is as exact as it is
        # Percentiles of gaps in a summary are interpolated, and an engine ends microseconds after
        # its last token.
        exact = 2e-3 if metric == "itl" else 1e-5 if metric not in LATENCIES else 1e-6
        assert abs(error) < exact, (metric, statistic, error)
    latencies = metrics - {"request_throughput", "output_throughput"}
    assert len(found) == len(latencies) * (1 + len(PERCENTILES)) + len(metrics - latencies)
    expected = "percentiles are no more exact" if name == "prometheus" else ""
    allowed = [w for w in comparison.warnings if expected and (expected in w or "since the" in w)]
    assert comparison.warnings == allowed


def test_a_convention_that_differs_would_not_go_unnoticed(
    folder: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "results"
    path.write_text(texts["guidellm summary"])
    figures = {(f.metric, f.statistic): f for f in compared(folder, path).figures}
    ours = read_predicted(folder).figure("tpot", "mean")
    assert ours is not None
    assert figures["tpot", "mean"].measured > 1.01 * ours.value
    assert figures["tpot", "mean"].predicted == pytest.approx(figures["tpot", "mean"].measured)


def test_without_requests_other_conventions_are_left_out(
    folder: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    shutil.copy(folder / "summary.json", tmp_path)
    path = tmp_path / "results"
    path.write_text(texts["guidellm summary"])
    comparison = compared(tmp_path / "summary.json", path)
    assert {figure.metric for figure in comparison.figures} == ALL - {"tpot", "itl"}
    assert [w.partition(":")[0] for w in comparison.warnings] == [
        "tpot is measured, but cannot be predicted alike",
        "itl is measured, but cannot be predicted alike",
    ]


def test_errors_are_signed_and_relative_and_bands_come_along(
    folder: Path, sample: Sample, tmp_path: Path
) -> None:
    path = tmp_path / "results"
    slower = Sample(sample.arrival_s, sample.prompt_tokens, sample.ttft_s * 2, sample.gaps_s)
    path.write_text(json.dumps(vllm_bench(slower, detailed=True)))
    figures = compared(folder, path).figures
    ttft = [figure for figure in figures if figure.metric == "ttft"]
    assert [figure.error for figure in ttft] == pytest.approx([-0.5] * 5)
    assert all(figure.count == NUM_REQUESTS for figure in ttft)
    assert all(figure.band is not None and figure.in_band is False for figure in ttft)
    assert {figure.regime for figure in figures} == {"light"}


@pytest.mark.parametrize(
    ("load", "regime"),
    [(0.49, "light"), (0.5, "busy"), (0.89, "busy"), (0.9, "saturated"), (None, "unknown")],
)
def test_regime_follows_the_share_of_saturation(
    folder: Path, measured: Path, load: float | None, regime: str
) -> None:
    predicted = read_predicted(folder)
    predicted.summary["saturation"] = {"load": load}
    assert {f.regime for f in compare(predicted, read_measured(measured)[0]).figures} == {regime}


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"model_id": "Qwen/Qwen3-8B"}, "the models differ: meta-llama/Llama-3.1-8B simulated, Q"),
        ({"model_id": "/models/llama-3.1-8b/"}, None),
        ({"failed": 1}, "the numbers of requests differ: 200 simulated, 201 measured"),
        ({"total_input_tokens": 10_000}, "mean prompt tokens differ: "),
        ({"total_output_tokens": 10_000}, "mean output tokens differ: "),
        ({"request_rate": 20.0}, "the rates differ: "),
        ({"request_rate": "inf"}, None),
    ],
)
def test_conditions_that_differ_are_warned_of(
    folder: Path, sample: Sample, tmp_path: Path, changes: dict[str, Any], warning: str | None
) -> None:
    path = tmp_path / "results"
    path.write_text(json.dumps(vllm_bench(sample, detailed=False) | changes))
    warnings = compared(folder, path).warnings
    assert bool(warnings) == (warning is not None)
    assert warning is None or any(found.startswith(warning) for found in warnings)


def test_json_output(folder: Path, measured: Path) -> None:
    outcome = run(folder, measured, "--format", "json")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    content = json.loads(outcome.stdout)
    assert list(content) == ["figures", "conditions", "warnings"]
    assert content["figures"][0]["metric"] == "ttft"
    assert content["conditions"]["simulated"]["engine"] == "vllm-0.25"
    assert content["conditions"]["measured"]["tool"] == "vllm bench serve, detailed"
    assert content["conditions"]["compared"]["tpot"].startswith("excludes the first token")


def test_text_output_in_unicode_and_ascii(folder: Path, measured: Path) -> None:
    lines = run(folder, measured).stdout.splitlines()
    assert lines[0] == "Predicted against measured: rate 8, light load"
    assert any(line.split()[:2] == ["TTFT", "mean"] and " ms " in line for line in lines)
    content = json.loads(run(folder, measured, "--format", "json").stdout)
    raw = io.BytesIO()
    screen = Console(file=io.TextIOWrapper(raw, "ascii", write_through=True), width=70)
    content["warnings"] = ["a [bold]warning[/bold] \N{EN DASH} of µs"]
    print_report(comparison_report(content), screen)
    assert "! a [bold]warning[/bold] - of us" in raw.getvalue().decode("ascii")


def test_tolerances_decide_the_exit_code(folder: Path, sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "results"
    slower = Sample(sample.arrival_s, sample.prompt_tokens, sample.ttft_s * 1.2, sample.gaps_s)
    path.write_text(json.dumps(vllm_bench(slower, detailed=True)))
    assert run(folder, path).exit_code == 0
    assert run(folder, path, "--tolerance", "0.2").exit_code == 0
    strict = run(folder, path, "--tolerance", "0.1")
    assert strict.exit_code == 4
    assert strict.stderr.splitlines()[0] == "beyond tolerance: ttft mean -16.7%, allowed 10.0%"
    named = ("--tolerance", "0.1", "--tolerance", "ttft=0.2")
    assert run(folder, path, *named).exit_code == 0
    assert run(folder, path, "--tolerance", "tpot=0.1").exit_code == 0
    assert run(folder, path, "--tolerance", "ttft=0.1", "--format", "json").exit_code == 4


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", "ttft=", "ttft:0.1", "tfft=0.1"])
def test_tolerances_that_are_none(text: str) -> None:
    with pytest.raises(ScenarioError, match=f"--tolerance {text}"):
        read_tolerances([text])


def test_what_is_refused(folder: Path, measured: Path, sample: Sample, tmp_path: Path) -> None:
    several = tmp_path / "several"
    benches = [vllm_bench(sample, detailed=False, request_rate=rate) for rate in (4, 8)]
    several.write_text("\n".join(map(json.dumps, benches)))
    none = tmp_path / "none"
    none.write_text(json.dumps(vllm_bench(sample, detailed=False, completed=0)))
    csv = tmp_path / "some.csv"
    csv.write_text("ttft_s\n1\n")
    for args, message in [
        ((tmp_path / "nowhere", measured), "no such folder"),
        ((measured, measured), "expected a result folder, or the summary.json in one"),
        ((folder, tmp_path / "nowhere"), "cannot be opened"),
        ((folder, folder / "summary.json"), "format not recognised"),
        ((folder, several), "choose one with --run: rate 4, rate 8"),
        ((folder, several, "--run", "rate 5"), "no such run; there are: rate 4, rate 8"),
        ((folder, none), "nothing to compare: 0 completed requests"),
        ((folder, csv, "--tolerance", "e2e=0.1"), "e2e: was not compared; compared were ttft"),
        ((folder, measured, "--measured-format", "csv"), "line 1: no latency in"),
        ((folder, measured, "--format", "xml"), "neither text nor json"),
    ]:
        outcome = run(*args)
        assert (outcome.exit_code, outcome.stdout) == (2, ""), args
        assert message in outcome.stderr
    assert run(folder, several, "--run", "rate 8").exit_code == 0


def test_help_has_the_exit_codes() -> None:
    assert "4 an error is beyond --tolerance" in " ".join(run("--help").stdout.split())
