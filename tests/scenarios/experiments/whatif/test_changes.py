"""Changes of a what-if as users write them: options, files, names, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.experiments.whatif.changes import (
    Change,
    all_together,
    changes_from_file,
    changes_from_sets,
    check_changes,
)
from sim.errors import ScenarioError
from tests.properties.scenarios import write


def fault(text: str, folder: Path) -> str:
    """The message that a variants file of this text is refused with."""
    path = write(folder / "variants.yaml", text)
    with pytest.raises(ScenarioError) as caught:
        check_changes(changes_from_file(path))
    return str(caught.value).replace(str(path), "FILE")


def test_every_set_is_a_change_named_by_its_field_and_value() -> None:
    changes = changes_from_sets(
        ["engine.tensor_parallel_size=2", "kv.enable_prefix_caching=no", "engine.quantization="]
    )
    assert [change.name for change in changes] == [
        "tensor_parallel_size=2",
        "enable_prefix_caching=false",
        "quantization=null",
    ]
    assert [dict(change.settings) for change in changes] == [
        {"engine.tensor_parallel_size": 2},
        {"kv.enable_prefix_caching": False},
        {"engine.quantization": None},
    ]
    assert all(change.joins for change in changes)


def test_names_go_to_sets_in_order() -> None:
    changes = changes_from_sets(["pool.replicas=2", "pool.router=x"], ["two"])
    assert [change.name for change in changes] == ["two", "router=x"]
    with pytest.raises(ScenarioError, match="--name two: there is no --set for it"):
        changes_from_sets(["pool.replicas=2"], ["one", "two"])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("pool.replicas", "write it as key=value"),
        ("pool..replicas=2", "write it as key=value"),
        ("pool.replicas=2,kv.cache_dtype=fp8", "give kv.cache_dtype a --set of its own"),
        ("pool.replicas=[1", "not valid YAML"),
    ],
)
def test_a_set_that_cannot_be_read_says_what_would_be_right(override: str, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        changes_from_sets([override])
    assert f"--set {override}" in str(caught.value)
    assert words in str(caught.value)


def test_a_comma_belongs_to_the_value() -> None:
    (change,) = changes_from_sets(["workload.window_s=[0, 60]"])
    assert dict(change.settings) == {"workload.window_s": [0, 60]}


@pytest.mark.parametrize(
    "text",
    [
        "- name: both\n  set: {engine.tensor_parallel_size: 2, kv.cache_dtype: fp8}\n",
        "both:\n  engine.tensor_parallel_size: 2\n  kv.cache_dtype: fp8\n",
        "both:\n  engine: {tensor_parallel_size: 2}\n  kv: {cache_dtype: fp8}\n",
    ],
)
def test_a_file_is_a_list_or_a_mapping_and_its_variants_stand_alone(
    text: str, tmp_path: Path
) -> None:
    (change,) = changes_from_file(write(tmp_path / "variants.yaml", text))
    assert change.name == "both"
    assert dict(change.settings) == {"engine.tensor_parallel_size": 2, "kv.cache_dtype": "fp8"}
    assert not change.joins


def test_files_that_variants_name_are_looked_for_beside_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    text = "trace: {workload.trace.path: a.csv}\npolicy: {engine.scheduler: 'mine:first'}\n"
    trace, policy = changes_from_file(write(tmp_path / "variants.yaml", text))
    assert trace.settings["workload.trace.path"] == str(tmp_path / "a.csv")
    assert policy.settings["engine.scheduler"] == f"{tmp_path / 'mine.py'}:first"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "FILE: variants are a list"),
        ("just words", "FILE: variants are a list"),
        ("- 5\n", "FILE, line 1: a variant is {name: ..., set: {...}}, not 5"),
        ("- name: a\n", "FILE, line 1: set: required, but not given"),
        (
            "- {name: a, set: {pool.replicas: 2}, sett: 1}\n",
            "sett: unknown key; did you mean 'set'",
        ),
        ("- name: a\n  set: 3\n", "FILE, line 2: a: must be settings"),
        ("- name: [a]\n  set: {pool.replicas: 2}\n", "FILE, line 2: name: must be text"),
        ("a:\n  pool..x: 2\n", "FILE, line 2: 'pool..x' is not a field"),
        ("a: {pool.replicas: 2}\na: {pool.replicas: 3}\n", "FILE, line 2: key 'a' is given twice"),
        ("a:\n  seed: 2\n", "FILE, line 2: seed: all variants share"),
        (
            "- {name: a, set: {pool.replicas: 2}}\n- {name: a, set: {pool.replicas: 3}}\n",
            "FILE, line 2: the name 'a' is there twice",
        ),
        ("baseline: {pool.replicas: 2}\n", "FILE, line 1: the name 'baseline' is taken"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, message: str, tmp_path: Path) -> None:
    assert message in fault(text, tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot read variants .*No such file"):
        changes_from_file(tmp_path / "none.yaml")


def test_all_together_is_made_of_the_sets_alone() -> None:
    sets = changes_from_sets(["pool.replicas=2", "kv.block_size=32"])
    alone = Change(name="alone", settings={"pool.replicas": 9}, joins=False)
    together, why = all_together([*sets, alone])
    assert together is not None
    assert dict(together.settings) == {"pool.replicas": 2, "kv.block_size": 32}
    assert why == ""
    assert all_together([*sets[:1], alone]) == (None, "")


@pytest.mark.parametrize(
    "overrides",
    [
        ("pool.replicas=2", "pool.replicas=3"),
        ("workload.generator={}", "workload.generator.cv=2"),
        ("workload.generator.cv=2", "workload.generator={}"),
    ],
)
def test_changes_of_one_field_exclude_each_other(overrides: tuple[str, str]) -> None:
    together, why = all_together(changes_from_sets(overrides))
    assert together is None
    assert "is changed twice" in why
