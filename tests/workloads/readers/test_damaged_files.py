"""Damaged trace files give either a table or a `TraceError`."""

import gzip
import random
from pathlib import Path

import pytest

from sim.errors import ScenarioError, TraceError
from sim.request_table import RequestTable
from tests.workloads.readers.trace_samples import SAMPLES
from workloads.readers.detect import detect_format, read_trace
from workloads.readers.servegen_files import read_client_rates
from workloads.servegen import draw_requests

ODD_VALUES = [
    "",
    "null",
    "true",
    "-1",
    "1e999",
    "NaN",
    '"x"',
    "[]",
    "{}",
    "9" * 30,
    "0x1f",
    "\uff11",
]


def flip_bytes(good: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(good)
    for _ in range(rng.choice([1, 3, 30])):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


def truncate(good: bytes, rng: random.Random) -> bytes:
    return good[: rng.randrange(len(good))]


def insert_bytes(good: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(good))
    return good[:at] + rng.randbytes(rng.choice([1, 5, 500])) + good[at:]


def swap_rows(good: bytes, rng: random.Random) -> bytes:
    lines = good.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def delete_fields(good: bytes, rng: random.Random) -> bytes:
    fields = good.split(b",")
    for _ in range(rng.choice([1, 5])):
        if len(fields) > 1:
            del fields[rng.randrange(len(fields))]
    return b",".join(fields)


def delete_a_column(good: bytes, rng: random.Random) -> bytes:
    rows = [line.split(b",") for line in good.splitlines()]
    column = rng.randrange(len(rows[0]))
    return b"\n".join(b",".join(row[:column] + row[column + 1 :]) for row in rows)


def swap_types(good: bytes, rng: random.Random) -> bytes:
    fields = good.split(b",")
    for _ in range(rng.choice([1, 5])):
        at = rng.randrange(len(fields))
        key, colon, _ = fields[at].partition(b": ")
        fields[at] = (key + colon if colon else b"") + rng.choice(ODD_VALUES).encode()
    return b",".join(fields)


def scale_numbers(good: bytes, rng: random.Random) -> bytes:
    digits = [at for at, byte in enumerate(good) if 48 <= byte < 58]
    at = rng.choice(digits)
    return good[:at] + b"9" * rng.choice([1, 4, 9]) + good[at:]


DAMAGES = [
    flip_bytes,
    truncate,
    insert_bytes,
    swap_rows,
    delete_fields,
    delete_a_column,
    swap_types,
    scale_numbers,
]


def read(path: Path, name: str | None, skip_bad_rows: bool) -> RequestTable:
    found = detect_format(path) if name is None else name
    if found != "servegen":
        return read_trace(path, format=found, skip_bad_rows=skip_bad_rows)
    rates = read_client_rates(path, "big", skip_bad_rows=skip_bad_rows)
    return draw_requests(rates, num_requests=50, requests_per_s=1)


def assert_table_or_error(path: Path, name: str | None) -> None:
    for skip_bad_rows in (False, True):
        try:
            table = read(path, name, skip_bad_rows)
        except TraceError:
            continue
        except ScenarioError:
            if path.name != "rates.csv":
                raise
            continue  # rates that make no sense; of the other formats nothing is drawn
        assert len(table) + table.skipped_rows < 2000
        assert table.skipped_rows == 0 or skip_bad_rows


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    for case in range(150):
        rng = random.Random(case)
        files = {file: text.encode() for file, text in SAMPLES[name].items()}
        damaged = rng.choice(list(files))  # the trace, or what stands beside it
        files[damaged] = rng.choice(DAMAGES)(files[damaged], rng)
        for file, content in files.items():
            (tmp_path / file).write_bytes(gzip.compress(content, 1) if case % 4 else content)
        assert_table_or_error(tmp_path / next(iter(files)), name if case % 2 else None)


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_gzip_files(tmp_path: Path, name: str) -> None:
    for file, text in SAMPLES[name].items():
        (tmp_path / file).write_text(text)
    path = tmp_path / next(iter(SAMPLES[name]))
    good = gzip.compress(path.read_bytes(), mtime=0)
    for case in range(50):
        rng = random.Random(case)
        path.write_bytes(rng.choice([flip_bytes, truncate, insert_bytes])(good, rng))
        assert_table_or_error(path, name if case % 2 else None)
