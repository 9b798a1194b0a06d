"""Scenario files: their valid content, and their error messages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.files.load import load_scenario, parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import FleetcastError, ScenarioError
from tests.properties.scenarios import AZURE_HEADER, azure_trace, fault, small, write


@pytest.fixture(autouse=True)
def _own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


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
        ("engine=3", "engine: must be a section with keys of its own (profile, operators, "),
        ("workload.window_s=[5, 2]", "window_s and repeat are for traces"),
        ("workload.duration_s=5", "give num_requests or duration_s, not both"),
        (
            "workload.preset=azure-conv",
            "exactly one of trace, preset, generator, classes; found preset and",
        ),
        ("workload.generator.arrivals=poison", "must be 'poisson', 'gamma', 'weibull'"),
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
    from scenarios.files.load import apply_override, validate
    from scenarios.files.yaml_text import Places

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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "meta-llama/Llama-3.1-9B"}, "did you mean meta-llama/Llama-3.1-8B"),
        ({"model": "none.json"}, "none.json: No such file"),
        ({"hardware": {"gpu": "h200x"}}, "unknown GPU 'h200x'; did you mean H200-SXM"),
        ({"engine": {"profile": "vllm-0.24"}}, "did you mean vllm-0.25"),
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
