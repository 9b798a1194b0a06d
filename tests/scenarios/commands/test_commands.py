"""The command line as a user sees it: options, output, exit codes, messages, and imports."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

import scenarios.run.simulate
from scenarios.commands import app
from scenarios.schema import Scenario
from tests.properties.checkout import CHECKOUT

QUICK = (
    *("simulate", "--model", "meta-llama/Llama-3.1-8B", "--rate", "5", "--input-tokens", "100"),
    *("--output-tokens", "5", "--num-requests", "10"),
)
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_ROWS = "".join(f"2023-11-16 18:00:0{i}.0000000,{100 + i},5\n" for i in range(8))


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def run(*args: object) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def fails(*args: object) -> str:
    """The message of a command that must be refused: exit code 2, nothing on stdout."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return str(result.stderr)


def summary_of(*args: object) -> dict[str, Any]:
    result = run(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


def process(
    *args: str, cwd: Path, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as the console script does."""
    code = "from scenarios.commands import main; main()"
    return subprocess.run(
        [sys.executable, *options, "-c", code, *args],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def loaded(stderr: str) -> set[str]:
    """Top-level packages in the output of ``-X importtime``."""
    rows = (line.rpartition("|")[2] for line in stderr.splitlines() if line.startswith("import t"))
    return {row.strip().partition(".")[0] for row in rows}


# What it does


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("fleetcast 0.")
    assert "simulate" in run("--help").stdout
    assert "--slo-ttft" in run("simulate", "--help").stdout
    assert run("nonsense").exit_code == 2


def test_options_make_a_scenario_that_is_saved_and_reproduces_the_run() -> None:
    options = ("--gpu", "H200", "--tp", "1", "--slo-ttft", "0.5", "--slo-tpot", "0.05")
    first = summary_of(*QUICK, *options, "--save", "s.yaml")
    saved = yaml.safe_load(Path("s.yaml").read_text())
    assert saved == {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"gpu": "H200"},
        "engine": {"tensor_parallel_size": 1},
        "workload": {
            "generator": {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 5}},
            "rate_per_s": 5.0,
            "num_requests": 10,
        },
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
    }
    again = summary_of("simulate", "s.yaml")
    for summary in (first, again):
        del summary["run"]["wall_s"]
    assert again == first


def test_text_output_answers_first() -> None:
    lines = run(*QUICK, "--slo-ttft", "0.5").stdout.splitlines()
    assert lines[0].startswith("Every request meets the SLO (TTFT")


def test_result_folder_is_written_and_runs_again() -> None:
    Path("in").mkdir()
    Path("in/trace.csv").write_text(AZURE_HEADER + AZURE_ROWS)
    Path("in/s.yaml").write_text("model: Llama-3.1-8B\nworkload: {trace: {path: trace.csv}}\n")
    written = run("simulate", "in/s.yaml", "--out", "deep/result")
    assert "results in deep/result, report in deep/result/report.html" in written.stdout
    first = json.loads(Path("deep/result/summary.json").read_text())
    again = summary_of("simulate", "deep/result/scenario.yaml")
    assert again["figures"] == first["figures"]
    assert run("report", "deep/result").stdout.strip() == "deep/result/report.html"


def test_trace_option_is_relative_to_the_working_directory() -> None:
    Path("trace.csv").write_text(AZURE_HEADER + AZURE_ROWS)
    model = ("--model", "Llama-3.1-8B")
    summary = summary_of("simulate", *model, "--trace", "trace.csv", "--num-requests", "5")
    assert summary["requests"]["arrived"] == 5


def test_options_replace_the_source_of_a_file() -> None:
    run(*QUICK, "--save", "s.yaml")
    summary = summary_of("simulate", "s.yaml", "--preset", "azure-conv", "--set", "seed=4")
    assert summary["conditions"]["workload"].startswith("10 requests, preset azure-conv")
    assert summary["conditions"]["seed"] == 4
    summary = summary_of("simulate", "s.yaml", "--input-tokens", "7", "--concurrency", "2")
    assert summary["conditions"]["workload"].endswith("at most 2 in flight, 5 requests/s")


def test_closed_loop_needs_no_rate() -> None:
    lengths = ("--input-tokens", "100", "--output-tokens", "20", "--num-requests", "12")
    summary = summary_of("simulate", "--model", "Llama-3.1-8B", *lengths, "--concurrency", "3")
    running = {f["statistic"]: f["value"] for f in summary["figures"] if f["name"] == "running"}
    assert running["max"] == 3


def test_empty_trace_is_a_result() -> None:
    Path("empty.csv").write_text(AZURE_HEADER)
    model = ("--model", "Llama-3.1-8B", "--slo-ttft", "1")
    summary = summary_of("simulate", *model, "--trace", "empty.csv", "--out", "result")
    assert summary["slo"]["attainment"] is None
    assert run("simulate", *model, "--trace", "empty.csv").stdout.startswith("No request arrived")


def test_schema_covers_every_field_and_refuses_others() -> None:
    schema = json.loads(run("schema").stdout)
    assert set(schema["properties"]) == set(Scenario.model_fields)
    sections = [schema, *schema["$defs"].values()]
    assert all(section["additionalProperties"] is False for section in sections)


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("models", "meta-llama/Llama-3.1-8B"),
        ("gpus", "H200-SXM"),
        ("policies", "least_loaded"),
        ("presets", "azure-conv"),
        ("profiles", "vllm-0.25"),
        ("drafters", "eagle"),
    ],
)
def test_list(what: str, name: str) -> None:
    assert name in run("list", what).stdout


def test_exit_code_says_whether_the_slo_was_met() -> None:
    strict = (*QUICK, "--slo-ttft", "0.000001")
    assert run(*QUICK, "--slo-ttft", "1", "--require-attainment", "1").exit_code == 0
    assert run(*strict).exit_code == 0
    assert run(*strict, "--require-attainment", "0.5").exit_code == 3
    assert run(*strict, "--require-attainment", "0").exit_code == 0


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_stderr_when_it_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*QUICK, "--save", "s.yaml")
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    app(["simulate", "s.yaml", "--format", "json"], standalone_mode=False)
    assert "simulating" in terminal.getvalue()
    json.loads(capsys.readouterr().out)  # and nothing of it on stdout


# What it refuses


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "nothing to simulate"),
        (("--gpu", "H200"), "nothing to simulate"),
        (("--model", "Llama-3.1-8B"), "no workload"),
        (("--model", "Llama-3.1-8B", "--rate", "5"), "no workload"),
        (("--model", "Llama-3.1-8B", "--input-tokens", "5"), "go together"),
        (("none.yaml",), "cannot read scenario none.yaml: No such file or directory"),
        ((".",), "cannot read scenario .: Is a directory"),
    ],
)
def test_incomplete_command(args: tuple[str, ...], words: str) -> None:
    assert words in fails("simulate", *args)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--slo-ttft", "-1"), "error: --slo-ttft -1.0: slo.ttft_s: must be greater than 0"),
        (("--slo-ttft", "nan"), "--slo-ttft nan: slo.ttft_s: must be a finite number"),
        (("--rate", "inf"), "--rate inf: workload.rate_per_s: must be a finite number"),
        (("--rate", "fast"), "--rate"),
        (("--seed", "-3"), "--seed -3: seed: must be greater than or equal to 0"),
        (("--tp", "0"), "--tp 0: engine.tensor_parallel_size: must be greater than or equal to 1"),
        (("--tp", "3"), "sizes that do: 1, 2, 4"),
        (("--model", ""), "--model"),
        (("--model", "Llama-3.1-70B"), "smallest tensor_parallel_size that fits: 2"),
        (("--gpu", "H20O"), "did you mean"),
        (("--preset", "azure-conv"), "found preset and generator"),
        (("--set", "engine"), "--set engine: write it as key=value"),
        (("--set", "seed.x=1"), "seed: must be a whole number"),
        (("--set", "model.x=1"), "not a section"),
        (("--set", "slo.ttft=1"), "did you mean 'ttft_s'?"),
        (("--set", "engine.scheduler=none:f"), "there is no 'none'"),
        (("--set", "engine.scheduler=os:system"), "folders that --plugins DIR names"),
        (("--set", "engine.scheduler=os:system", "--plugins", "."), "there is no 'os'"),
        (("--format", "xml"), "'xml' is neither text nor json"),
        (("--require-attainment", "1.5"), "1.5 is not a share from 0 to 1"),
        (("--require-attainment", "nan"), "nan is not a share from 0 to 1"),
        (("--save", "."), "--save .: cannot be written: Is a directory"),
        (("--save", "file/s.yaml"), "cannot be written: Not a directory"),
        (("--save", "none/s.yaml"), "cannot be written: No such file or directory"),
        (("--out", "file"), "cannot write the result folder file: File exists"),
        (("--out", "file/result"), "cannot write the result folder file/result: Not a directory"),
    ],
)
def test_wrong_option(args: tuple[str, ...], words: str) -> None:
    Path("file").write_text("")
    assert words in fails(*QUICK, *args)


def test_wrong_trace() -> None:
    simulate = ("simulate", "--model", "Llama-3.1-8B", "--trace")
    Path("bad.csv").write_text(AZURE_HEADER + AZURE_ROWS + "2023-11-16 18:01:00.0,1,x\n")
    Path("other.csv").write_text("a,b\n1,2\n")
    Path("nothing.csv").write_text("")
    assert "'none.csv' cannot be opened: No such file" in fails(*simulate, "none.csv")
    assert "cannot be opened: Is a directory" in fails(*simulate, ".")
    assert "bad.csv, line 10:" in fails(*simulate, "bad.csv")
    assert "other.csv: format not recognised" in fails(*simulate, "other.csv")
    assert "nothing.csv: the file is empty" in fails(*simulate, "nothing.csv")


def test_wrong_name_to_list_and_wrong_folder_to_report() -> None:
    assert "cannot list 'modles'; did you mean 'models'?" in fails("list", "modles")
    assert "none" in fails("report", "none")


def test_no_result_folder_is_left_by_a_scenario_that_is_refused() -> None:
    fails(*QUICK, "--set", "slo.ttft=1", "--out", "result")
    assert not Path("result").exists()


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scenarios.run.simulate, "simulate", interrupted)
    result = run(*QUICK)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


# In a process of its own


def test_own_policy_from_a_folder_outside_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "my_policy.py").write_text(
        "from sim.engine.batch import Plan\nfrom sim.engine.view import EngineView\n\n\n"
        "def one_at_a_time(view: EngineView) -> Plan:\n"
        "    batch = view.new_batch()\n"
        "    batch.add_running()\n"
        "    if not view.running and view.waiting:\n"
        "        batch.admit(next(iter(view.waiting)))\n"
        "    return batch.plan()\n"
    )
    run(*QUICK, "--rate", "1000", "--save", "s.yaml")
    with Path("s.yaml").open("a") as file:
        file.write("engine:\n  scheduler: my_policy:one_at_a_time\n")
    (tmp_path / "elsewhere").mkdir()
    for cwd, path in ((tmp_path, "s.yaml"), (tmp_path / "elsewhere", "../s.yaml")):
        done = process("simulate", path, "--format", "json", "--plugins", str(tmp_path), cwd=cwd)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        running = [f["value"] for f in summary["figures"] if f["name"] == "running"]
        assert max(running) == 1
        assert summary["conditions"]["scheduler"] == "my_policy.py:one_at_a_time"


def test_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "impatient.py").write_text(
        "import signal\n\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored it\n"
        "\n\ndef policy(view):\n    signal.raise_signal(signal.SIGINT)\n"
    )
    done = process(
        *QUICK, "--set", "engine.scheduler=impatient:policy", "--plugins", ".", cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("args", [("schema",), ("list", "models"), QUICK])
def test_a_reader_that_has_gone_is_no_error(args: tuple[str, ...], tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-c", "from scenarios.commands import main; main()", *args],
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.stderr == b""


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    done = process("--help", cwd=tmp_path, options=("-X", "importtime"))
    assert done.returncode == 0
    heavy = {"numpy", "pandas", "scipy", "matplotlib", "pydantic", "simpy", "torch", "yaml", "rich"}
    assert not loaded(done.stderr) & heavy


def test_text_run_loads_only_what_it_needs(tmp_path: Path) -> None:
    done = process(*QUICK, cwd=tmp_path, options=("-X", "importtime"))
    assert done.returncode == 0
    assert "numpy" in loaded(done.stderr)
    heavy = {"pandas", "scipy", "matplotlib", "pyarrow", "jinja2", "joblib", "torch"}
    assert not loaded(done.stderr) & heavy
