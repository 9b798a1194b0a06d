"""Input that a stranger wrote: it runs no code, costs bounded time and memory, and is refused in
words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from reports.folder import read_summary
from scenarios.build.plugins import load_attribute, resolve
from scenarios.files.identity import result_address
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.files.trusted import PLUGINS, trust_plugins
from scenarios.files.yaml_text import parse_yaml
from scenarios.run.result_folder import replaced, write_files
from scenarios.run.simulate import simulate
from sim.errors import FleetcastError, ScenarioError, TraceError
from tests.properties.scenarios import small, write
from workloads.readers.rows import open_text

_ANYTHING = ["subprocess:Popen", "os:system", "builtins:exec", "pathlib:Path", "sys:exit"]
_FIELDS: list[tuple[str, str]] = [
    ("engine", "scheduler"),
    ("kv", "eviction"),
    ("pool", "router"),
    ("", "admission"),
]


@pytest.mark.parametrize(("section", "field"), _FIELDS)
@pytest.mark.parametrize("target", _ANYTHING)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_scenario_imports_nothing(
    section: str,
    field: str,
    target: str,
    trusted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PLUGINS, str(tmp_path) if trusted else "")
    policy = {"name": target, "args": "touch here"}
    values: dict[str, Any] = small(num_requests=2)
    (values.setdefault(section, {}) if section else values)[field] = policy
    with pytest.raises(ScenarioError, match="--plugins"):
        simulate(parse_scenario(values))


def test_a_trusted_module_lends_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from subprocess import Popen\nimport os\nsystem = os.system\n"
    )
    monkeypatch.setenv(PLUGINS, str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("Popen", "system", "os"):
        with pytest.raises(ScenarioError):
            resolve(f"mine:{name}", {}, "scheduler")
    with pytest.raises(ScenarioError, match="is not a folder"):
        trust_plugins([tmp_path / "none"])


def test_running_is_watched(tmp_path: Path) -> None:
    """No process, no connection, and no file outside the result folder."""
    path = write(tmp_path / "s.yaml", small())
    events: list[tuple[str, Any]] = []
    watching = [True]
    # An audit hook cannot be taken away again: it is silenced.
    sys.addaudithook(lambda name, args: events.append((name, args)) if watching[0] else None)
    simulate(load_scenario(path)).write(tmp_path / "out")
    watching[0] = False
    names = {name for name, _ in events}
    assert not names & {"subprocess.Popen", "os.system", "os.exec", "socket.connect", "os.fork"}
    written = [
        Path(args[0])
        for name, args in events
        if name == "open" and isinstance(args[0], str) and set(str(args[1])) & set("wax+")
    ]
    assert written
    outside = {path for path in written if not path.is_relative_to(tmp_path / "out")}
    assert not {path for path in outside if path.parent.name != "__pycache__"}


@given(width=st.integers(2, 9), depth=st.integers(7, 12), kind=st.sampled_from("lmg"))
def test_aliases_do_not_multiply_without_bound(width: int, depth: int, kind: str) -> None:
    lines = [f"a0: &a0 {'[x]' if kind == 'l' else '{k: x}'}"]
    for level in range(1, depth * 3):
        of_last = f"*a{level - 1}"
        if kind == "l":
            lines.append(f"a{level}: &a{level} [{', '.join([of_last] * width)}]")
        else:
            pairs = ", ".join(f"k{place}: {of_last}" for place in range(width))
            lines.append(f"a{level}: &a{level} {{{pairs}}}")
    with pytest.raises(ScenarioError, match="aliases stand for more than"):
        parse_yaml("\n".join(lines), "here")


@given(st.sampled_from(["12:30", "1:00:00", "-3:20"]))
def test_base_60_is_refused(number: str) -> None:
    with pytest.raises(ScenarioError, match="base 60"):
        parse_yaml(f"kv: {{block_size: {number}}}", "here")


@given(st.text(alphabet="ab\x07\x1b\x7f\x9b", min_size=1, max_size=8))
def test_control_characters_reach_no_one(text: str) -> None:
    document = yaml.safe_dump({"name": text})
    if set(text) <= set("ab"):
        assert parse_yaml(document, "here")[0] == {"name": text}
    else:
        with pytest.raises(ScenarioError):
            parse_yaml(document, "here")


@given(value=st.sampled_from([float("nan"), float("inf"), 1e308, 1e-300, -1.0, 0.0, "fast"]))
def test_numbers_of_a_gpu_are_checked(
    value: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("gpu") / "mine.yaml"
    row: dict[str, Any] = {"name": "mine", "label": "datasheet", "source": "own"}
    row |= {"bf16_flop_per_s": 1e15, "hbm_bytes": 80e9, "hbm_bytes_per_s": value}
    path.write_text(yaml.safe_dump(row))
    with pytest.raises(FleetcastError):
        load_gpu(str(path))


def test_a_line_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("wb") as file:
        file.truncate(80 << 20)
    with pytest.raises(TraceError, match="longer than 64 MiB"), open_text(path) as text:
        text.readline()


def test_files_of_two_runs_are_refused(tmp_path: Path) -> None:
    for name, rate in (("a", 5), ("b", 6)):
        simulate(parse_scenario(small(rate_per_s=rate))).write(tmp_path / name)
    read_summary(tmp_path / "a")
    for file in ("requests.parquet", "scenario.yaml"):
        kept = (tmp_path / "a" / file).read_bytes()
        (tmp_path / "a" / file).write_bytes((tmp_path / "b" / file).read_bytes())
        with pytest.raises(ScenarioError, match="of another run"):
            read_summary(tmp_path / "a")
        (tmp_path / "a" / file).write_bytes(kept)


def test_a_folder_is_whole_or_as_it_was(tmp_path: Path) -> None:
    write_files(tmp_path, {"one.txt": "1", "last.json": "{}"})

    def broken() -> None:
        with replaced(tmp_path, "last.json") as part:
            (part / "one.txt").write_text("2")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert (tmp_path / "one.txt").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.json", "one.txt"]


def test_the_file_beside_a_trace_counts(tmp_path: Path) -> None:
    """Half of a ServeGen trace stands in another file, which decides results as well."""
    rates = "model,client,bin,rate,cv,pat,shape\nm,c,0,1,1,g,1\n"
    (tmp_path / "x_rates.csv").write_text(rates)
    (tmp_path / "x_length_hist.csv").write_text("one\n")
    values = small() | {"workload": {"trace": {"path": str(tmp_path / "x_rates.csv")}}}
    before = result_address(parse_scenario(values))
    (tmp_path / "x_length_hist.csv").write_text("another\n")
    assert result_address(parse_scenario(values)) != before


def test_built_in_policies_are_where_their_table_says() -> None:
    assert load_attribute("policies.fcfs:fcfs").__name__ == "fcfs"
