"""Damaged trace files give a table or a TraceError, and nothing else."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.errors import TraceError
from workloads.detect import FORMATS, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{s:02d}.6805900,{300 + s},{s}\n" for s in range(40)
)
MOONCAKE = "".join(
    json.dumps(
        {"timestamp": 3000 * (i // 3), "input_length": 700, "output_length": i, "hash_ids": [0, i]}
    )
    + "\n"
    for i in range(40)
)
GOOD = {"azure": AZURE.encode(), "mooncake": MOONCAKE.encode()}
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
        del fields[rng.randrange(len(fields))]
    return b",".join(fields)


def delete_a_column(good: bytes, rng: random.Random) -> bytes:
    column = rng.randrange(3)
    rows = [line.split(b",") for line in good.splitlines()]
    return b"\n".join(b",".join(row[:column] + row[column + 1 :]) for row in rows)


def swap_types(good: bytes, rng: random.Random) -> bytes:
    fields = good.split(b",")
    for _ in range(rng.choice([1, 5])):
        at = rng.randrange(len(fields))
        key, colon, _ = fields[at].partition(b": ")
        fields[at] = (key + colon if colon else b"") + rng.choice(ODD_VALUES).encode()
    return b",".join(fields)


DAMAGES = [
    flip_bytes,
    truncate,
    insert_bytes,
    swap_rows,
    delete_fields,
    delete_a_column,
    swap_types,
]


def assert_table_or_trace_error(path: Path, format_: str | None) -> None:
    for skip_bad_rows in (False, True):
        try:
            table = read_trace(path, format=format_, skip_bad_rows=skip_bad_rows)
        except TraceError:
            continue
        assert len(table) + table.skipped_rows < 1000
        assert table.skipped_rows == 0 or skip_bad_rows


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "then gzip"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_text(
    tmp_path: Path, name: str, damage: Callable[[bytes, random.Random], bytes], compressed: bool
) -> None:
    path = tmp_path / "damaged"
    for case in range(100):
        damaged = damage(GOOD[name], random.Random(case))
        path.write_bytes(gzip.compress(damaged, 1) if compressed else damaged)
        assert_table_or_trace_error(path, name if case % 2 else None)


@pytest.mark.parametrize("damage", [flip_bytes, truncate, insert_bytes])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_gzip(
    tmp_path: Path, name: str, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    path = tmp_path / "damaged.gz"
    for case in range(200):
        path.write_bytes(damage(gzip.compress(GOOD[name], mtime=0), random.Random(case)))
        assert_table_or_trace_error(path, name if case % 2 else None)
