"""Validating fleetcast's own results finds no error, and a damaged folder is named."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scenarios.commands import app
from scenarios.validation.validate import validate
from sim.errors import ScenarioError
from tests.scenarios.validation.samples import LLAMA, write_sample

TIMES = {"ms_median": 5.0, "ms_min": 4.0, "ms_max": 6.0}
MIXED = {"kind": "mixed", "P": 64, "D": 4, "L": 8, **TIMES}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured") / "sample"
    write_sample(folder, "x1")
    return write_sample(folder, "x2", zipped=False, async_scheduling=False)


def test_it_predicts_itself_exactly(sample: Path) -> None:
    content = validate(sample).content
    assert content["warnings"] == []
    points = [p for p in content["step_points"] if "chunk" not in p["parameters"]]
    assert len(points) == 10
    assert max(abs(point["error"]) for point in points) < 1e-12
    assert [score["equal"] for score in content["conformance"]] == [1.0] * 4
    assert [score["cached_equal"] for score in content["conformance"]] == [1.0] * 4
    errors = {
        (f["run"], f["metric"], f["statistic"]): f["error"]
        for f in content["figures"]
        if f["metric"] != "num_gpu_blocks"
    }
    assert len(errors) == 4 * (12 + 2 + 1 + 2)
    assert {name: error for name, error in errors.items() if abs(error) > 1e-6} == {}
    assert content["conditions"]["x1"]["runs"]["mt"]["loop"].startswith("closed")


def test_chunks_of_a_long_prompt_become_points(sample: Path) -> None:
    points = validate(sample, only=["x1"], skip=["runs", "conformance"]).content["step_points"]
    chunks = {p["parameters"]["chunk"]: p for p in points if "chunk" in p["parameters"]}
    assert chunks[1]["measured_ms"] == pytest.approx(10)
    assert chunks[2]["measured_ms"] == pytest.approx(6)
    assert {p["repeats"] for p in chunks.values()} == {2}  # the first of three warms up


def test_absent_files_and_skipped_parts_leave_their_rows_out(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "a_info.json").write_text((sample / "x1_info.json").read_text())
    content = validate(tmp_path).content
    assert len(content["step_points"]) == 5
    assert content["conformance"] == content["warnings"] == []
    assert {f["metric"] for f in content["figures"]} == {"num_gpu_blocks"}
    content = validate(sample, only=["x2"], skip=["steps", "conformance", "runs"]).content
    assert list(content["conditions"]) == ["x2"]
    assert content["steps"] == content["step_points"] == content["conformance"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hf_config": None}, "field hf_config is missing"),
        ({"hf_config": LLAMA | {"model_type": "rwkv7"}}, "rwkv7"),
        ({"gpu": "Tesla P100-SXM2-16GB, 16384 MiB"}, "field gpu is 'Tesla P100-SXM2-16GB'"),
        ({"gpu": None}, "field gpu is missing"),
        ({"block_size": "many"}, "field block_size must be a positive integer"),
        ({"num_gpu_blocks": None}, "field num_gpu_blocks is missing"),
        ({"async_scheduling": "maybe"}, "field async_scheduling must be true or false"),
        ({"engine_args": {"quantization": "awq"}}, "field quantization is 'awq'"),
        ({"engine_args": {"pipeline_parallel_size": "2"}}, "pipeline_parallel_size is 2"),
        ({"engine_args": {"dtype": "float32"}}, "field dtype is 'float32'"),
        ({"engine_args": []}, None),
        ({"engine_args": ["x"]}, "field engine_args must be an object"),
        ({"compilation": {"sizes": "all"}}, "field compilation.sizes"),
        ({"e1": [{"kind": "decode", "B": 1, "L": 8}]}, r"field e1\[0\].ms_median"),
        ({"e1": {"kind": "decode"}}, "field e1 must be a list"),
        ({"e1": [{"kind": "warp"}]}, "kind 'warp' are not known"),
        ({"e1": [MIXED | {"D": 512}]}, "512 decodes leave no token"),
        ({"e1": [MIXED | {"D": 65}]}, "outside the compiled range"),
        ({"vllm": "9.9"}, "vLLM 9.9 has no profile"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is int4"),
        ({"policy": "priority"}, "policy is priority"),
        ({"long_prefill_token_threshold": 128}, "long_prefill_token_threshold is 128"),
        ({"compilation": {"cudagraph_mode": "PIECEWISE"}}, "cudagraph_mode PIECEWISE"),
    ],
)
def test_what_cannot_be_modelled_is_said_and_the_others_go_on(
    sample: Path, tmp_path: Path, changes: dict[str, Any], message: str | None
) -> None:
    info = json.loads((sample / "x1_info.json").read_text())
    (tmp_path / "good_info.json").write_text(json.dumps(info))
    (tmp_path / "odd_info.json").write_text(json.dumps(info | changes))
    content = validate(tmp_path).content
    assert "good" in content["conditions"]
    warnings = "\n".join(content["warnings"])
    if message is None:
        assert warnings == ""
    else:
        assert warnings.startswith("odd: ")
        assert re.search(message, warnings), warnings


def _garble(text: str) -> str:
    return text.replace('"prompt": ', '"prompt": "x", "was": ', 1)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("x2_info.json", lambda text: text[:-9], "x2_info.json: "),
        ("x2_info.json", lambda text: "[]", "expected an object"),
        ("x2_requests.jsonl", _garble, "line 1: field prompt must be a whole number, not 'x'"),
        (
            "x2_requests.jsonl",
            lambda text: text.replace('"first"', '"1st"'),
            "field first is missing",
        ),
        ("x2_requests.jsonl", lambda text: text.replace("s0/c0/t0", "first one"), "group is"),
        ("x2_steps.csv", lambda text: text.replace("running", "ran"), "missing columns running"),
        ("x2_steps.csv", lambda text: text.replace("p20,0.", "p20,?0.", 1), "line 2: t_sched is"),
        ("x2_e1_steps.csv", lambda text: text.replace("512", "nan"), "is 'nan', not a number"),
    ],
)
def test_a_damaged_file_is_named(
    sample: Path, tmp_path: Path, name: str, damage: Callable[[str], str], message: str
) -> None:
    for path in sample.iterdir():
        if path.suffix != ".gz":
            (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / name).write_text(damage((tmp_path / name).read_text()))
    content = validate(tmp_path).content
    assert any(message in line for line in content["warnings"]), content["warnings"]
    assert "x1" in content["conditions"]


def test_a_truncated_archive_is_named(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "x1_info.json").write_text((sample / "x1_info.json").read_text())
    whole = (sample / "x1_steps.csv.gz").read_bytes()
    (tmp_path / "x1_steps.csv.gz").write_bytes(whole[: len(whole) // 2])
    (warning,) = validate(tmp_path).content["warnings"]
    assert "x1_steps.csv.gz" in warning
    assert gzip.decompress(whole)


def test_a_wrong_schedule_is_found(sample: Path, tmp_path: Path) -> None:
    for path in sample.glob("x2_*"):
        (tmp_path / path.name).write_text(path.read_text())
    info = json.loads((tmp_path / "x2_info.json").read_text())
    (tmp_path / "x2_info.json").write_text(json.dumps(info | {"max_num_seqs": 3}))
    score = validate(tmp_path, skip=["steps", "runs"]).content["conformance"][0]
    assert score["equal"] < 0.9
    assert score["by_column"]["running"] < 1
    first = score["first_differing"][0]
    assert first["composed"]["running"] == 3 < first["recorded"]["running"]


def test_a_log_without_its_requests_is_scored_all_the_same(sample: Path, tmp_path: Path) -> None:
    for path in sample.glob("x2_*"):
        (tmp_path / path.name).write_text(path.read_text())
    requests = (tmp_path / "x2_requests.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "x2_requests.jsonl").write_text("".join(requests[:20]))
    content = validate(tmp_path, skip=["steps"]).content
    assert 0 < content["conformance"][0]["equal"] < 0.5
    assert content["warnings"] == []


def test_requests_that_do_not_fit_are_counted(sample: Path, tmp_path: Path) -> None:
    for path in sample.glob("x2_*"):
        (tmp_path / path.name).write_text(path.read_text())
    info = json.loads((tmp_path / "x2_info.json").read_text())
    info["engine_args"]["max_model_len"] = "16"
    (tmp_path / "x2_info.json").write_text(json.dumps(info))
    content = validate(tmp_path, skip=["steps", "conformance"]).content
    assert content["warnings"][0] == "x2:p20: 200 of 200 requests are refused"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such/folder"], "no such folder"),
        (["."], "no KEY_info.json"),
        (["SAMPLE", "--only", "x9"], "nothing was recorded as x9; there are x1, x2"),
        (["SAMPLE", "--skip", "all"], "--skip all: there are steps"),
    ],
)
def test_unusable_input_is_one_message(sample: Path, arguments: list[str], message: str) -> None:
    arguments = [str(sample) if a == "SAMPLE" else a for a in arguments]
    result = CliRunner().invoke(app, ["validate", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_nothing_to_score_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x_info.json").write_text("{}")
    with pytest.raises(ScenarioError, match="nothing can be scored"):
        validate(tmp_path)


def test_the_command_prints_and_writes(sample: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    text = runner.invoke(app, ["validate", str(sample), "--out", str(tmp_path / "out")])
    assert text.exit_code == 0, text.output
    for words in ("Controlled steps", "x1:p20", "x2:mt", "KV blocks", "vLLM 0.25.1"):
        assert words in text.output
    page = (tmp_path / "out" / "validation.html").read_text()
    assert page.count("<figure") == 3
    assert "x2:mt" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("https://www.w3.org", "")
    written = json.loads((tmp_path / "out" / "accuracy.json").read_text())
    plain = runner.invoke(app, ["validate", str(sample), "--format", "json"])
    assert json.loads(plain.output) == written


def test_the_page_of_a_folder_with_only_an_info_file(sample: Path, tmp_path: Path) -> None:
    info = json.loads((sample / "x1_info.json").read_text()) | {"e1": []}
    (tmp_path / "a_info.json").write_text(json.dumps(info))
    result = CliRunner().invoke(app, ["validate", str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "Only the KV blocks were scored." in (tmp_path / "out" / "validation.html").read_text()
