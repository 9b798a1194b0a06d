"""A measurement file is intact after every line and resumes after being cut anywhere."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrate.measure.run import MeasureError, Record, case_of
from tests.calibrate.measure.measure_modules import lines

COUNT = 8


def write(path: Path) -> bytes:
    path.unlink(missing_ok=True)
    record = Record(path, "made up")
    for line in lines(COUNT):
        record.add(line)
    record.close()
    return path.read_bytes()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)
@given(place=st.floats(0, 1), again=st.floats(0, 1))
def test_a_file_cut_at_any_byte_loses_no_case_and_has_none_twice(
    tmp_path: Path, place: float, again: float
) -> None:
    path = tmp_path / "out.jsonl"
    whole = write(path)
    for fraction in (place, again):
        content = path.read_bytes()
        path.write_bytes(content[: round(fraction * len(content))])
        record = Record(path, "made up")
        for line in lines(COUNT):
            if line["kind"] != "timing" or case_of(line).key not in record.done:
                record.add(line)
        record.close()
    found = [json.loads(text) for text in path.read_text().splitlines()]
    keys = Counter(case_of(line).key for line in found if line["kind"] == "timing")
    expected = [json.loads(text) for text in whole.splitlines()]
    assert keys == Counter(case_of(line).key for line in expected if line["kind"] == "timing")


def test_a_whole_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    whole = write(path)
    record = Record(path, "made up")
    record.close()
    assert path.read_bytes() == whole
    assert len(record.done) == COUNT


def test_the_file_of_another_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write(path)
    with pytest.raises(MeasureError, match="measured on made up, and this is other"):
        Record(path, "other")


@pytest.mark.parametrize("text", ["nonsense", "[1]", '{"kind": "timing"}', "{}"])
def test_what_is_no_measurement_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.jsonl"
    content = write(path).decode()
    path.write_text(content + text + "\n")
    with pytest.raises(MeasureError, match=rf"line {COUNT + 2}: not a line of a measurement file"):
        Record(path, "made up")
    assert path.read_text() == content + text + "\n"


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = Record(path, "made up")
    with pytest.raises(MeasureError, match="another run is writing to it"):
        Record(path, "made up")
    first.close()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        MeasureError, match=r"cannot write .*out\.jsonl: Not a directory|File exists"
    ):
        Record(tmp_path / "file" / "out.jsonl", "made up")
