"""`fleetcast scenario init` writes a valid scenario, even with each commented field enabled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, Field, ValidationError
from typer.testing import CliRunner, Result

from scenarios.commands import app
from scenarios.commands.starter import starting_scenario
from scenarios.files.load import load_scenario
from scenarios.files.schema_yaml import scenario_lines, section_of
from scenarios.files.yaml_lines import WIDTH, render
from scenarios.schema import Scenario
from scenarios.schema.fields import Section

TEXT = starting_scenario({})
_ROW = re.compile(r"(?P<indent>[ #]*?)(?P<dash>- )?(?P<key>[a-z][a-z0-9_]*):(?: |$)")


@dataclass(frozen=True)
class Row:
    """A field's line. ``depth``: of its key, without comment signs."""

    number: int
    key: str
    depth: int
    marks: int
    """Comment signs in front of it: 0 is live."""
    parent: int | None
    has_dash: bool


def rows_of(text: str) -> dict[int, Row]:
    rows: dict[int, Row] = {}
    around: list[Row] = []
    for number, line in enumerate(text.splitlines()):
        match = _ROW.match(line)
        if match is None:
            continue
        indent = match["indent"].replace("# ", "")
        dash = match["dash"] is not None
        depth = len(indent) + 2 * dash
        while around and around[-1].depth >= depth:
            around.pop()
        parent = around[-1].number if around else None
        row = Row(number, match["key"], depth, match["indent"].count("#"), parent, dash)
        rows[number] = row
        around.append(row)
    return rows


ROWS = rows_of(TEXT)
COMMENTED = [row for row in ROWS.values() if row.marks and row.key != "base"]


def dotted(row: Row) -> str:
    names = [row.key]
    while row.parent is not None:
        row = ROWS[row.parent]
        names.append(row.key)
    return ".".join(reversed(names))


def opened(row: Row) -> set[int]:
    """Lines to uncomment for a field: itself, the blocks around, and what is live in these."""
    inside = [r for r in ROWS.values() if r.parent == row.number]
    if inside and all(r.marks > row.marks for r in inside):
        return opened(inside[0])  # a section of nothing but defaults: with its first field
    lines = {row.number}
    blocks = [row]
    while row.parent is not None:
        row = ROWS[row.parent]
        blocks.append(row)
    for block in blocks:
        lines.add(block.number)
        lines |= {r.number for r in ROWS.values() if _is_live_in(r, block)}
    return {n for n in lines if ROWS[n].marks}


def _is_live_in(row: Row, block: Row) -> bool:
    """Whether a line belongs to a block and has no comment sign more than its head."""
    inside: Row | None = row
    while inside is not None and inside.number != block.number:
        inside = None if inside.parent is None else ROWS[inside.parent]
    return inside is not None and row.marks == block.marks


def uncommented(lines: Set[int], dropped: Set[int] = frozenset()) -> Any:
    text = [
        line.replace("# ", "", ROWS[n].marks) if n in lines else "" if n in dropped else line
        for n, line in enumerate(TEXT.splitlines())
    ]
    return yaml.safe_load("\n".join(text))


def subtree(row: Row) -> set[int]:
    return {row.number} | {
        n for child in ROWS.values() if child.parent == row.number for n in subtree(child)
    }


def run(*args: object) -> Result:
    result = CliRunner().invoke(app, ["scenario", "init", *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# What it writes


def test_what_is_written_loads_and_says_how_to_run_it(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    assert str(file) in run(file).stdout
    scenario = load_scenario(file)
    assert scenario.workload.preset == "azure-conv"
    last = file.read_text().splitlines()[-2:]
    assert last[0].startswith(f"# Run it:      fleetcast simulate {file}")
    assert last[1].startswith("# Change it:   fleetcast simulate")


def test_without_a_file_it_is_printed() -> None:
    assert run().stdout == TEXT


def test_the_base_it_shows_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(starting_scenario({"--gpu": "L4"}))
    file = tmp_path / "new.yaml"
    file.write_text(TEXT.replace("# base: ", "base: ", 1))
    assert yaml.safe_load(file.read_text())["base"] == "other.yaml"
    assert load_scenario(file).hardware.gpu == "H200"


def test_every_field_of_the_schema_is_there() -> None:
    """Live or commented out, nested ones included; so fields to come appear by themselves."""
    shown = {dotted(row) for row in ROWS.values()}
    missing = [path for path in schema_paths(Scenario) if path not in shown]
    # An item of a list shares fields with the section around, which are not shown twice.
    for items, around in (("workload.classes.", "workload."), ("pools.", "")):
        tops = {path.removeprefix(items).partition(".")[0] for path in missing if items in path}
        assert tops <= {row.key for row in ROWS.values() if dotted(row) == f"{around}{row.key}"}
        missing = [path for path in missing if not path.startswith(items)]
    assert not missing


def schema_paths(section: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{path}{name}"
        inner = section_of(field.annotation)
        if inner is not None:
            yield from schema_paths(inner, f"{path}{name}.")


def test_commented_defaults_are_the_defaults() -> None:
    """Covers every commented field whose section is valid with its defaults alone."""
    for name, field in Scenario.model_fields.items():
        inner = section_of(field.annotation)
        if inner is None or name == "workload":
            continue
        for row in COMMENTED:
            if dotted(row) == f"{name}.{row.key}":
                section = uncommented(opened(row))[name]
                value = (section[0] if isinstance(section, list) else section)[row.key]
                known = inner.model_fields[row.key]
                if section_of(known.annotation) is None and not known.is_required():
                    assert value == known.get_default(call_default_factory=True)


@pytest.mark.parametrize("row", COMMENTED, ids=dotted)
def test_every_commented_field_can_be_set(row: Row) -> None:
    """One at a time. Where a rule of the schema has it exclude others, without these."""
    lines = opened(row)
    faults = faults_of(uncommented(lines))
    if not faults:
        return
    assert {kind for kind, _ in faults} == {"value_error"}, faults
    chain = [row]
    while chain[-1].parent is not None:
        chain.append(ROWS[chain[-1].parent])
    rivals = [
        other
        for step in chain
        for other in ROWS.values()
        if other.parent == step.parent and other.number != step.number
        if not other.marks or other.number in lines
    ]
    drops = (set().union(*map(subtree, some)) for n in (1, 2) for some in combinations(rivals, n))
    assert any(not faults_of(uncommented(lines - drop, drop)) for drop in drops), faults


def faults_of(values: Any) -> list[tuple[str, str]]:
    try:
        Scenario.model_validate(values)
    except ValidationError as error:
        return [(item["type"], str(item["loc"])) for item in error.errors()]
    return []


def test_all_fields_that_go_together_can_be_set_at_once() -> None:
    together = [row for row in COMMENTED if not dotted(row).startswith("workload.")]
    values = uncommented({n for row in together for n in opened(row)})
    assert not faults_of(values)
    assert set(values["engine"]) == set(Scenario.model_fields["engine"].default.model_dump())


def test_a_block_can_be_uncommented_by_an_editor() -> None:
    """Taking the first comment sign of each line away leaves YAML: no prose becomes a value."""
    lines = TEXT.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("  # generator:"))
    end = next(n for n in range(start, len(lines)) if lines[n].startswith("  # duration_s"))
    block = [line.replace("# ", "", 1) for line in lines[start:end]]
    generator = yaml.safe_load("\n".join(block))["generator"]
    assert generator["input_tokens"] == {"fixed": 1024}


def test_lines_are_short() -> None:
    assert max(map(len, TEXT.splitlines())) <= WIDTH


# Options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--model", "Qwen/Qwen3-8B", "--gpu", "L4"), {"model": "Qwen/Qwen3-8B"}),
        (("--trace", "my.csv"), {"workload": {"trace": {"path": "my.csv"}}}),
        (
            ("--concurrency", "8"),
            {"workload": {"preset": "azure-conv", "num_requests": 5000, "max_concurrency": 8}},
        ),
        (
            ("--input-tokens", "9", "--output-tokens", "2", "--rate", "3"),
            {
                "workload": {
                    "generator": {"input_tokens": {"fixed": 9}, "output_tokens": {"fixed": 2}},
                    "rate_per_s": 3.0,
                    "num_requests": 5000,
                }
            },
        ),
        (("--set", "kv.block_size=32"), {}),
    ],
)
def test_options_are_set_in_it(options: tuple[str, ...], expected: dict[str, Any]) -> None:
    values = yaml.safe_load(run(*options).stdout)
    assert not faults_of(values)
    assert {key: values[key] for key in expected} == expected
    if "--set" in options:
        assert values["kv"]["block_size"] == 32


def test_a_trace_is_found_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    run("here/s.yaml", "--trace", "here/t.csv")
    assert yaml.safe_load(Path("here/s.yaml").read_text())["workload"]["trace"]["path"] == "t.csv"


def test_a_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("mine")
    result = run(file)
    assert (result.exit_code, file.read_text()) == (2, "mine")
    assert "--force" in result.stderr
    assert run(file, "--force").exit_code == 0
    assert load_scenario(file)


def test_what_cannot_be_is_refused() -> None:
    result = run("--tp", "0")
    assert result.exit_code == 2
    assert "engine.tensor_parallel_size" in result.stderr
    assert run("/nowhere/s.yaml").exit_code == 2


# Fields to come


class Fault(Section):
    """When a replica fails."""

    at_s: Annotated[float, Field(gt=0)]
    kind: Literal["crash", "slow"]
    repair_s: float | None = Field(None, description="until it is back; None: never")


class Faults(Section):
    """The faults that are planned."""

    planned: list[Fault] = Field(default_factory=list)
    is_on: bool = True


class Later(Section):
    """A schema to come."""

    model: str
    faults: Faults = Faults()
    spare: Faults | None = None


def test_a_schema_to_come_is_written_too() -> None:
    text = render(scenario_lines(Later, {"model": "m"}, {}))
    assert yaml.safe_load(text) == {"model": "m"}
    everything = re.sub(r"^[ #]*(?=[a-z-])", _spaces, text, flags=re.MULTILINE)
    values = yaml.safe_load(everything)
    fault = {"at_s": 1, "kind": "crash", "repair_s": None}
    assert values["faults"] == {"planned": [fault], "is_on": True}
    assert Later.model_validate(values)
    assert "# seconds; until it is back; null: never" in text


def _spaces(match: re.Match[str]) -> str:
    """The comment signs in front of a field away."""
    return match[0].replace("# ", "")
