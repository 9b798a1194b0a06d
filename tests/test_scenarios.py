"""Scenarios: what they may say, what their errors say, how they are saved, what runs warn of."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.dump import dump_scenario, save_scenario
from scenarios.load import load_scenario, parse_scenario
from scenarios.schema import Scenario
from scenarios.simulate import RunResult, simulate
from sim.errors import FleetcastError, PolicyError, ScenarioError

SHIPPED = sorted((Path(__file__).resolve().parents[1] / "scenarios").glob("*.yaml"))
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture(autouse=True)
def _own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def small(**workload: Any) -> dict[str, Any]:
    """A scenario of ten short requests a run of milliseconds answers."""
    generator = {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 5}}
    base = {"generator": generator, "rate_per_s": 5, "num_requests": 10}
    return {"model": "meta-llama/Llama-3.1-8B", "workload": base | workload}


def write(path: Path, values: object) -> Path:
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values, sort_keys=False))
    return path


def azure_trace(path: Path, rows: int, gap_s: float = 0.5) -> Path:
    at = pd.Timestamp("2023-11-16 18:00:00") + pd.to_timedelta(np.arange(rows) * gap_s, unit="s")
    lines = [f"{time:%Y-%m-%d %H:%M:%S.%f}0,{300 + i},{20 + i % 7}\n" for i, time in enumerate(at)]
    return write(path, AZURE_HEADER + "".join(lines))


def results(result: RunResult) -> dict[str, Any]:
    """All of a summary but how long the computer took."""
    summary = json.loads(json.dumps(result.summary))
    del summary["run"]["wall_s"]
    return dict(summary)


def fault(path: Path, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    return str(caught.value)


def codes(result: RunResult) -> list[str]:
    return [warning["code"] for warning in result.summary["warnings"]]


# Files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["is empty", "`model` and `workload`"]),
        (b"# only a comment\n", ["is empty"]),
        (b"- a\n- b\n", ["a mapping of fields", "not a list"]),
        (b"hello\n", ["a mapping of fields", "not a piece of text"]),
        (b"\xff\xfe\x00\x80", ["it is not a text file"]),
        (b"\x00abc", ["it has control characters"]),
        (b"model: x\nslo: {ttft_s: [1\nkv: 2\n", ["line 3, column 3", "not valid YAML", "kv: 2"]),
        (b"model: x\n\tseed: 1\n", ["line 2, column 1", "not valid YAML", "\\t"]),
        (b"model: *nothing\n", ["line 1, column 8", "undefined alias 'nothing'"]),
        (b"a: &a\n  b: *a\n", ["refers to itself"]),
        (b"[" * 1500, ["nested too deeply"]),
        (b"seed: 2026-13-45\n", ["a value cannot be read", "month"]),
        (b"? [a]\n: 1\n", ["line 1", "not valid YAML"]),
        (b"seed: 1\nmodel: a\nseed: 2\n", ["line 3", "'seed' is given twice", "line 1"]),
        (b"kv:\n  block_size: 1\n  block_size: 2\n", ["line 3", "'block_size' is given twice"]),
    ],
)
def test_unreadable_file(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "chat.yaml"
    path.write_bytes(content)
    message = fault(path)
    assert message.count(str(path)) >= 1
    for word in words:
        assert word in message


def test_no_such_file(tmp_path: Path) -> None:
    assert fault(tmp_path / "none.yaml").endswith("none.yaml: No such file or directory")
    assert "Is a directory" in fault(tmp_path)


def test_byte_order_mark_and_empty_sections_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    text = yaml.safe_dump(small()) + "slo:\n  # ttft_s: 1\nkv:\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_scenario(path).slo.ttft_s is None


# Fields


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: a", ["line 1: modle: unknown key; did you mean 'model'?"]),
        ("model: a\nslo:\n  ttft: 1", ["line 3: slo.ttft: unknown key; did you mean 'ttft_s'?"]),
        ("model: a\nzzz: 1", ["line 2: zzz: unknown key; known: model, hardware, engine"]),
        ("model: a", ["workload: required, but not given"]),
        ("model: a\nworkload: 3", ["line 2: workload: must be a section", "preset", "not 3"]),
        (
            "model: a\nworkload:\n  generator:\n    input_tokens:\n      lognormal:\n"
            "        - {mu: 5, sigma: 1}\n        - mu: 5\n          sgima: 1\n"
            "    output_tokens: {fixd: 3}\n",
            [
                "line 8: workload.generator.input_tokens.lognormal[1].sgima: unknown key; did you",
                "line 7: workload.generator.input_tokens.lognormal[1].sigma: required",
                "line 9: workload.generator.output_tokens.fixd: unknown key; did you mean 'fixed'?",
            ],
        ),
        ("model: a\n3: b", ["scenario: keys must be names, not 3"]),
    ],
)
def test_wrong_key_is_named_with_line_and_nearest(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    message = fault(write(tmp_path / "chat.yaml", text))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("seed=abc", "seed: must be a whole number, not 'abc'"),
        ("seed=1.5", "seed: must be a whole number, not 1.5"),
        ("seed=-1", "seed: must be greater than or equal to 0, not -1"),
        ("seed=", "seed: must be a whole number, but is empty"),
        ("seed=[1]", "seed: must be a whole number, not [1]"),
        ("pool.replicas=yes", "pool.replicas: must be a number, not true"),
        ("pool.replicas=0", "pool.replicas: must be greater than or equal to 1, not 0"),
        ("pool.replicas=100000", "pool.replicas: must be less than or equal to 10000"),
        ("slo.ttft_s=.nan", "slo.ttft_s: must be a finite number, not nan"),
        ("slo.ttft_s=.inf", "slo.ttft_s: must be a finite number, not inf"),
        ("slo.ttft_s=-0.5", "slo.ttft_s: must be greater than 0, not -0.5"),
        ("slo.ttft_s=fast", "slo.ttft_s: must be a number, not 'fast'"),
        ("horizon_s=1e-12", "horizon_s: must be greater than or equal to 0.000000001"),
        ("model=3", "model: must be text, not 3"),
        ("kv.enable_prefix_caching=maybe", "must be true or false, not 'maybe'"),
        ("kv.gpu_memory_utilization=1.1", "must be less than or equal to 1, not 1.1"),
        ("engine=3", "engine: must be a section with keys of its own (profile, tensor_parallel"),
        ("workload.window_s=[5, 2]", "window_s and repeat are for traces"),
        ("workload.duration_s=5", "give num_requests or duration_s, not both"),
        ("workload.preset=azure-conv", "exactly one of trace, preset, generator; found preset and"),
        ("workload.generator.arrivals=poison", "must be 'poisson', 'gamma', 'constant' or 'all-at"),
        ("workload.generator.arrivals=all-at-once", "all-at-once arrivals have no rate_per_s"),
        ("workload.generator.input_tokens.fixed=0", "input_tokens must be at least 1"),
        ("workload.generator.input_tokens.max=5", "a fixed length has none"),
        (
            "workload.generator.input_tokens={min: 9, max: 3, lognormal: [{mu: 1, sigma: 1}]}",
            "min 9",
        ),
        ("workload.generator.input_tokens={lognormal: [{mu: 1, sigma: 1, weight: 3}]}", "sum to 1"),
        ("workload.generator.input_tokens={}", "give either fixed or lognormal"),
        ("model.x=3", "model is 'meta-llama/Llama-3.1-8B', not a section; it has no 'x'"),
        ("workload.rate_per_s.x=3", "workload.rate_per_s is 5, not a section"),
        ("engin.tensor_parallel_size=3", "engin: unknown key; did you mean 'engine'?"),
        ("foo", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("a..b=3", "write it as key=value"),
        ("seed=[", "not valid YAML"),
        ("seed={a: 1, a: 2}", "'a' is given twice"),
    ],
)
def test_wrong_setting_is_named(tmp_path: Path, setting: str, words: str) -> None:
    message = fault(write(tmp_path / "chat.yaml", small()), setting)
    assert words in message
    if "workload" not in setting:  # faults between several fields stand at their section
        assert message.startswith(f"--set {setting}")


def test_settings_win_and_reach_into_lists(tmp_path: Path) -> None:
    values = small()
    lognormal = [{"mu": 5.0, "sigma": 1.0}]
    values["workload"]["generator"]["input_tokens"] = {"lognormal": lognormal}
    path = write(tmp_path / "chat.yaml", values)
    key = "workload.generator.input_tokens.lognormal"
    scenario = load_scenario(path, [f"{key}.0.mu=3", "slo.e2e_s=1e1", "slo.e2e_s=2"])
    assert scenario.workload.generator is not None
    assert scenario.workload.generator.input_tokens.lognormal[0].mu == 3
    assert scenario.slo.e2e_s == 2
    for position in ("1", "x", "-1"):
        assert "is a list of 1; name an item by its position" in fault(
            path, f"{key}.{position}.mu=3"
        )


def test_setting_one_of_two_that_share_a_yaml_anchor(tmp_path: Path) -> None:
    text = (
        "model: llama\nworkload:\n  rate_per_s: 1\n  generator:\n"
        "    input_tokens: &length {fixed: 7}\n    output_tokens: *length\n"
    )
    path = write(tmp_path / "chat.yaml", text)
    generator = load_scenario(path, ["workload.generator.input_tokens.fixed=5"]).workload.generator
    assert generator is not None
    assert (generator.input_tokens.fixed, generator.output_tokens.fixed) == (5, 7)


@pytest.mark.parametrize("window", [[2, 1], [1, 1], [-1, 3]])
def test_window_must_be_one(tmp_path: Path, window: list[int]) -> None:
    trace = azure_trace(tmp_path / "trace.csv", 3)
    values = {"model": "m", "workload": {"trace": {"path": str(trace)}, "window_s": window}}
    assert "[start, end] with 0 <= start < end" in fault(write(tmp_path / "s.yaml", values))


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)))
def test_no_file_makes_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError):
        load_scenario(path)


_KEYS = st.sampled_from(
    ["model", "workload", "generator", "input_tokens", "lognormal", "window_s", "slo", "0", "x", ""]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_KEYS, min_size=1, max_size=5), _VALUES)
def test_no_setting_makes_a_traceback(keys: list[str], value: Any) -> None:
    from scenarios.load import apply_override, validate
    from scenarios.yaml_text import Places

    values, places = small(), Places({(): "here"})
    try:
        apply_override(values, places, f"{'.'.join(keys)}={json.dumps(value)}")
        validate(values, places)
    except ScenarioError:
        pass


def _fields() -> list[str]:
    fields = [
        f"{section}.{key}" if key else section
        for section, field in Scenario.model_fields.items()
        for key in getattr(field.annotation, "model_fields", [None])
    ]
    lengths = ("fixed", "min", "max", "lognormal")
    fields += [f"workload.generator.{key}" for key in ("arrivals", "cv", "input_tokens")]
    return fields + [f"workload.generator.output_tokens.{key}" for key in lengths]


@pytest.mark.parametrize("field", _fields())
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_no_field_makes_a_traceback(tmp_path: Path, field: str) -> None:
    """Every field takes each of these, or says why not, all the way through a run."""
    path = write(tmp_path / "small.yaml", small())
    for value in (
        "",
        "x",
        "x:y",
        "-1",
        "0",
        "1",
        "2",
        "1e308",
        "1e-308",
        f"{10**30}",
        ".nan",
        "{}",
    ):
        try:
            result = simulate(load_scenario(path, [f"{field}={value}"]))
        except FleetcastError:
            continue
        json.dumps(result.summary, allow_nan=False)


# What cannot be built


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "meta-llama/Llama-3.1-9B"}, "did you mean meta-llama/Llama-3.1-8B"),
        ({"model": "none.json"}, "none.json: cannot be read"),
        ({"hardware": {"gpu": "h200x"}}, "unknown GPU 'h200x'; did you mean H200-SXM"),
        ({"engine": {"profile": "vllm-0.24"}}, "did you mean vllm-0.25?"),
        ({"engine": {"scheduler": "fcsf"}}, "unknown scheduler 'fcsf'; did you mean 'fcfs'?"),
        ({"pool": {"router": "least_load"}}, "unknown router 'least_load'; did you mean 'least_lo"),
        ({"engine": {"tensor_parallel_size": 3}}, "32 attention heads are not a multiple of 3"),
        ({"model": "meta-llama/Llama-3.1-70B"}, "smallest tensor_parallel_size that fits: 2"),
        ({"engine": {"max_model_len": 200_000}}, "beyond the 131,072 positions"),
        (
            {"engine": {"max_model_len": 100_000}, "kv": {"num_gpu_blocks": 100}},
            "more than the 1,584 tokens the KV pool holds",
        ),
        ({"engine": {"max_num_seqs": 9000}}, "at most max_num_batched_tokens 8192"),
        ({"workload": {"preset": "azure-con"}}, "did you mean azure-conv?"),
        (
            {"workload": {"trace": {"path": "none.csv"}}},
            "'none.csv' cannot be opened: No such file",
        ),
        ({"workload": small(rate_per_s=None)["workload"]}, "poisson arrivals need a rate"),
        (
            {"workload": small(rate_per_s=None, max_concurrency=2, num_requests=None)["workload"]},
            "--num-requests",
        ),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FleetcastError) as caught:
        simulate(parse_scenario(small() | changes))
    assert words in str(caught.value)


def test_malformed_trace_names_file_and_line(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.csv", AZURE_HEADER + "2023-11-16 18:00:00.0000000,oops,3\n")
    with pytest.raises(FleetcastError, match=r"t\.csv, line 2: .*oops"):
        simulate(
            parse_scenario({"model": "Llama-3.1-8B", "workload": {"trace": {"path": str(trace)}}})
        )


# Saving


def test_saved_scenario_says_only_what_was_given_and_reproduces_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "given.yaml", small() | {"seed": 3, "slo": {"ttft_s": 0.5}})
    scenario = load_scenario(path, ["pool.replicas=2"])
    save_scenario(scenario, tmp_path / "saved.yaml")
    saved = yaml.safe_load((tmp_path / "saved.yaml").read_text())
    assert saved == small() | {"seed": 3, "slo": {"ttft_s": 0.5}, "pool": {"replicas": 2}}
    again = load_scenario(tmp_path / "saved.yaml")
    assert again == scenario
    assert results(simulate(again)) == results(simulate(scenario))


def test_paths_hold_wherever_the_scenario_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the file when read; absolute in a result folder; relative when saved beside."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    azure_trace(tmp_path / "a" / "trace.csv", 20)
    write(tmp_path / "a" / "mine.py", "from policies.fcfs import fcfs as my_fcfs\n")
    values = {
        "model": "meta-llama/Llama-3.1-8B",
        "workload": {"trace": {"path": "trace.csv"}},
        "engine": {"scheduler": "mine:my_fcfs"},
    }
    write(tmp_path / "a" / "s.yaml", values)
    monkeypatch.chdir(tmp_path)
    first = simulate(load_scenario("a/s.yaml"))
    first.write("result")
    save_scenario(first.scenario, Path("a/saved.yaml"))
    save_scenario(first.scenario, Path("b/saved.yaml"))
    monkeypatch.chdir(tmp_path / "b")
    for path in ("../result/scenario.yaml", "../a/saved.yaml", "saved.yaml"):
        again = simulate(load_scenario(path))
        assert again.summary["figures"] == first.summary["figures"]
        assert again.summary["conditions"]["scheduler"].endswith(":my_fcfs")
        pd.testing.assert_frame_equal(again.requests, first.requests)
    assert yaml.safe_load((tmp_path / "a" / "saved.yaml").read_text()) == values


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_scenario_runs_and_its_dump_says_the_same(path: Path) -> None:
    scenario = load_scenario(path, ["workload.num_requests=30"])
    assert simulate(scenario).summary["requests"]["finished"] == 30
    assert parse_scenario(yaml.safe_load(dump_scenario(scenario))) == scenario


# Results


def test_result_in_python() -> None:
    result = simulate(parse_scenario(small() | {"slo": {"ttft_s": 1}}))
    assert result.requests["status"].eq("finished").all()
    assert result.steps["steps"].sum() == result.summary["run"]["steps"]
    assert result.figure("ttft", "p50") == pytest.approx(
        result.requests["ttft_s"].quantile(0.5), 0.2
    )
    assert len(result.token_times_s(0)) == 5
    assert result.summary["slo"]["attainment"] == 1
    with pytest.raises(KeyError, match="no figure ttft p12"):
        result.figure("ttft", "p12")


def test_count_is_of_the_population() -> None:
    result = simulate(parse_scenario(small() | {"kv": {"num_gpu_blocks": 8}, "horizon_s": 1.5}))
    requests = result.summary["requests"]
    assert requests["arrived"] > requests["finished"] or requests["finished"] < 10
    for figure in result.summary["figures"]:
        population, count = figure["population"], figure["count"]
        if population.startswith(("measured window", "time ")):
            assert count is None, figure["name"]
        elif population in ("arrived requests", "all requests"):
            assert count == requests["arrived"]
        elif population in ("prompts of finished requests", "finished requests"):
            assert count == requests["finished"]
        else:
            assert population == "gaps between tokens of finished requests"
            assert count == 4 * requests["finished"]


def is_empty(result: RunResult) -> bool:
    """No request arrived: everything is defined, and nothing is made up."""
    summary = json.loads(json.dumps(result.summary, allow_nan=False))
    values = {f["value"] for f in summary["figures"] if not f["population"].startswith("prompts")}
    assert values <= {None, 0}
    assert summary["slo"] == {
        "attainment": None,
        "goodput_per_s": None,
        "by_target": {"ttft": None},
    }
    assert summary["saturation"] is None
    assert summary["warnings"] == []
    assert result.figure("gpu_busy") is None
    assert len(result.steps) == 0
    return bool(summary["requests"]["arrived"] == 0)


def test_no_requests(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.csv", AZURE_HEADER)
    some = azure_trace(tmp_path / "some.csv", 5)
    base = {"model": "Llama-3.1-8B", "slo": {"ttft_s": 1}}
    for workload in (
        {"trace": {"path": str(empty)}},
        {"trace": {"path": str(empty)}, "rate_per_s": 3, "repeat": 2, "num_requests": 4},
        {"trace": {"path": str(some)}, "window_s": [100, 200], "max_concurrency": 2},
    ):
        result = simulate(parse_scenario(base | {"workload": workload}))
        assert is_empty(result)
        result.write(tmp_path / "result")


@pytest.mark.parametrize("num_requests", [10, 100])
def test_horizon_before_the_first_arrival(num_requests: int) -> None:
    scenario = small(num_requests=num_requests) | {"horizon_s": 1e-4, "slo": {"ttft_s": 1}}
    assert is_empty(simulate(parse_scenario(scenario)))


# Warnings: each fires when it should, and only then


def demo(rate_per_s: float, num_requests: int) -> RunResult:
    workload = {"preset": "azure-conv", "rate_per_s": rate_per_s, "num_requests": num_requests}
    return simulate(parse_scenario({"model": "meta-llama/Llama-3.1-8B", "workload": workload}))


@pytest.mark.parametrize(
    ("num_requests", "which"),
    [(999, "p90 and above rest"), (1000, "p95 and above rest"), (9999, "p99 rests"), (10_000, "")],
)
def test_few_samples(num_requests: int, which: str) -> None:
    result = simulate(parse_scenario(small(num_requests=num_requests, rate_per_s=50)))
    texts = [warning["text"] for warning in result.summary["warnings"]]
    # A stable run with samples enough warns of nothing at all.
    assert [text.startswith(which) for text in texts] == ([True] if which else [])


@pytest.mark.parametrize(
    ("rate_per_s", "num_requests", "expected"),
    [
        (8.0, 1000, ["few_samples"]),
        (18.0, 1000, ["few_samples"]),
        (23.5, 2000, ["near_saturation", "few_samples"]),
        (30.0, 1000, ["unstable", "near_saturation", "few_samples"]),
        (90.0, 1000, ["unstable", "near_saturation", "few_samples"]),
        (90.0, 49, ["near_saturation", "few_samples"]),
    ],
)
def test_load_warnings(rate_per_s: float, num_requests: int, expected: list[str]) -> None:
    result = demo(rate_per_s, num_requests)
    assert codes(result) == expected
    texts = {warning["code"]: warning["text"] for warning in result.summary["warnings"]}
    if rate_per_s > 25:
        assert "times the estimated saturation rate" in texts["near_saturation"]
    elif rate_per_s > 20:
        assert "% of the estimated saturation rate" in texts["near_saturation"]
    if "unstable" in expected:
        assert texts["unstable"].startswith("the queue grows over the window: ")


def test_a_closed_loop_is_never_unstable() -> None:
    workload = {
        "preset": "azure-conv",
        "rate_per_s": 90,
        "num_requests": 300,
        "max_concurrency": 64,
    }
    result = simulate(parse_scenario({"model": "Llama-3.1-8B", "workload": workload}))
    assert codes(result) == ["few_samples"]


def test_rejected() -> None:
    result = simulate(parse_scenario(small() | {"engine": {"max_model_len": 104}}))
    assert codes(result) == ["nothing_finished", "rejected"]
    rejected = result.summary["warnings"][1]["text"]
    assert rejected.startswith("10 requests were rejected: 10 longer than max_model_len")
    assert "rejected" not in codes(
        simulate(parse_scenario(small() | {"engine": {"max_model_len": 105}}))
    )


def test_unfinished() -> None:
    lengths = {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 400}}
    everything = simulate(parse_scenario(small(generator=lengths)))
    horizon_s = everything.requests["arrival_s"].max() + 0.01
    cut = simulate(parse_scenario(small(generator=lengths) | {"horizon_s": horizon_s}))
    assert "unfinished" not in codes(everything)
    assert "unfinished" in codes(cut)
    count = int(cut.requests["status"].eq("unfinished").sum())
    text = next(w["text"] for w in cut.summary["warnings"] if w["code"] == "unfinished")
    assert text.startswith(
        f"{count} request{'s were' if count > 1 else ' was'} still in the system"
    )


def test_nothing_finished() -> None:
    first_s = simulate(parse_scenario(small())).requests["arrival_s"].min()
    result = simulate(parse_scenario(small() | {"horizon_s": first_s + 1e-4}))
    assert codes(result) == ["nothing_finished", "unfinished"]
    assert math.isnan(result.requests["ttft_s"].min())


# Policies of a user's own

_FAULTY = {
    "raises_on_import": ("1 / 0\n", "ZeroDivisionError: division by zero (mine.py, line 1)"),
    "exits_on_import": ("raise SystemExit(3)\n", "SystemExit: 3 (mine.py, line 1)"),
    "bad_syntax": ("def f(:\n", "SyntaxError: invalid syntax (mine.py, line 1)"),
    "lacks_it": ("def polisy(view): ...\n", "has no 'policy'; did you mean 'polisy'?"),
    "not_callable": ("policy = 3\n", "scheduler mine.py:policy is of type int; it must be"),
    "returns_none": ("def policy(view): ...\n", "returned nothing (None) at 0.0"),
    "returns_a_list": ("def policy(view): return [1]\n", "returned a list ([1]) at"),
    "raises": (
        "def policy(view):\n    x = {}\n    return x['a']\n",
        "scheduler mine.py:policy raised KeyError: 'a' (mine.py, line 3)",
    ),
    "wrong_arguments": ("def policy(): ...\n", "TypeError: policy() takes 0 positional arguments"),
    "needs_arguments": (
        "class policy:\n    def __init__(self, a): ...\n",
        "making scheduler mine.py:policy raised TypeError",
    ),
    "instance_not_callable": ("class policy: ...\n", "is of type policy; it must be a function"),
    "never_plans": ("def policy(view): return view.new_batch().plan()\n", "planned nothing"),
    "bad_order": (
        "class policy:\n    def waiting_order(self, r): return r.nope\n"
        "    def __call__(self, view): ...\n",
        "waiting_order of mine.py:policy raised AttributeError",
    ),
}


@pytest.mark.parametrize("name", _FAULTY)
def test_faulty_scheduler(tmp_path: Path, name: str) -> None:
    source, words = _FAULTY[name]
    write(tmp_path / "mine.py", source)
    path = write(tmp_path / "s.yaml", small() | {"engine": {"scheduler": "mine:policy"}})
    with pytest.raises((ScenarioError, PolicyError)) as caught:
        simulate(load_scenario(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("router = 3\n", "router mine.py:router is of type int"),
        ("def router(): ...\n", "making router mine.py:router for 2 replicas raised TypeError"),
        ("class router:\n    def __init__(self, n): ...\n", "no method choose and no publish"),
        ("{}return 2", "router mine.py:router chose a int (2) for request 0; it must return"),
        ("{}return -1", "chose a int (-1)"),
        ("{}return None", "chose nothing (None)"),
        ("{}return 0.5", "chose a float (0.5)"),
        ("{}return [][0]", "choose of router mine.py:router raised IndexError"),
    ],
)
def test_faulty_router(tmp_path: Path, source: str, words: str) -> None:
    head = (
        "class router:\n    def __init__(self, n): ...\n    def publish(self, replica, load): ...\n"
        "    def choose(self, request): "
    )
    write(tmp_path / "mine.py", source.replace("{}", head))
    pool = {"replicas": 2, "router": "mine:router"}
    path = write(tmp_path / "s.yaml", small() | {"pool": pool})
    with pytest.raises(PolicyError) as caught:
        simulate(load_scenario(path))
    assert words in str(caught.value)


def test_own_policies_may_share_a_module_name(tmp_path: Path) -> None:
    """Each scenario gets the module beside it, in one process too."""
    running = []
    for limit in (1, 2):
        folder = tmp_path / str(limit)
        folder.mkdir()
        write(
            folder / "mine.py",
            "from settings import LIMIT\n"
            "def policy(view):\n"
            "    batch = view.new_batch()\n"
            "    batch.add_running()\n"
            "    for request in list(view.waiting)[: LIMIT - len(view.running)]:\n"
            "        batch.admit(request)\n"
            "    return batch.plan()\n".replace("LIMIT -", f"{limit} -"),
        )
        write(folder / "settings.py", f"LIMIT = {limit}\n")
        values = small(rate_per_s=100) | {"engine": {"scheduler": "mine:policy"}}
        result = simulate(load_scenario(write(folder / "s.yaml", values)))
        running.append(result.figure("running", "max"))
    assert running == [1, 2]


def test_own_priority_scheduler_orders_the_queue(tmp_path: Path) -> None:
    write(
        tmp_path / "mine.py",
        "from policies.fcfs import fcfs\n"
        "class Newest:\n"
        "    def waiting_order(self, request): return -request.arrival_ns\n"
        "    def __call__(self, view): return fcfs(view)\n",
    )
    engine = {"scheduler": "mine:Newest", "max_num_seqs": 1}
    values = small(rate_per_s=1000) | {"engine": engine}
    result = simulate(load_scenario(write(tmp_path / "s.yaml", values)))
    done = (result.requests["arrival_s"] + result.requests["e2e_s"]).to_numpy()
    assert (np.diff(done[1:]) < 0).all()  # all but the first came while it ran
