"""Tables of requests with columns of anybody's: named, or found by well-known names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import TraceError
from sim.request_table import RequestTable
from workloads.readers.columns import parse_columns
from workloads.readers.detect import detect_format, read_recording

START = datetime(2026, 11, 29, 9, 0, 0, tzinfo=UTC)
GAPS_S = [0.0, 1.25, 0.5, 3.0]


def table_of(path: Path, text: str, columns: str | None = None) -> RequestTable:
    path.write_text(text)
    named = None if columns is None else parse_columns(columns)
    return read_recording(path, columns=named).table


def moments() -> list[datetime]:
    times_s = np.cumsum(GAPS_S)
    return [START + timedelta(seconds=float(s)) for s in times_s]


EXPECTED_NS = (np.cumsum(GAPS_S) * 1e9).astype(np.int64).tolist()
TIMES: dict[str, tuple[str, Callable[[datetime], str]]] = {
    "ISO": ("timestamp", lambda t: t.isoformat(timespec="milliseconds")),
    "ISO, Z": ("created_at", lambda t: f"{t:%Y-%m-%dT%H:%M:%S}.{t.microsecond // 1000:03d}Z"),
    "local": ("startTime", lambda t: f"{t:%Y-%m-%d %H:%M:%S}.{t.microsecond:06d}"),
    "another zone": ("time", lambda t: t.astimezone().isoformat()),
    "seconds": ("arrived_at", lambda t: str((t - START).total_seconds())),
    "epoch s": ("timestamp", lambda t: f"{t.timestamp():.3f}"),
    "epoch ms": ("timestamp", lambda t: str(round(t.timestamp() * 1e3))),
    "epoch us": ("ts", lambda t: str(round(t.timestamp() * 1e6))),
    "epoch ns": ("request_time", lambda t: str(round(t.timestamp() * 1e3) * 10**6)),
    "named ms": ("arrival_ms", lambda t: str((t - START).total_seconds() * 1e3)),
    "Kibana": ("@timestamp", lambda t: f'"{t:%b %d, %Y @ %H:%M:%S}.{t.microsecond // 1000:03d}"'),
    "spreadsheet": ("date", lambda t: f"{t:%m/%d/%Y %H:%M:%S}.{t.microsecond // 1000:03d}"),
}


@pytest.mark.parametrize("kind", TIMES)
def test_times_of_every_kind(tmp_path: Path, kind: str) -> None:
    name, write = TIMES[kind]
    rows = "".join(f"{write(t)},{900 + n},{n}\n" for n, t in enumerate(moments()))
    table = table_of(tmp_path / "t.csv", f"{name},prompt_tokens,completion_tokens\n{rows}")
    assert table.arrival_ns.tolist() == EXPECTED_NS
    assert table.prompt_tokens.tolist() == [900, 901, 902, 903]
    assert f"arrival={name}" in table.notes[0]


NAMES = {
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens",
    "OpenAI's usage": "created,usage.prompt_tokens,usage.completion_tokens",
    "LiteLLM": "startTime,prompt_tokens,completion_tokens",
    "Gemini's usage": "time,promptTokenCount,outputTokenCount",
    "a gateway's": "request_created_at,total_prompt_tokens,total_completion_tokens,prompt_cost",
    "OpenTelemetry": "ts,gen_ai.usage.input_tokens,gen_ai.usage.output_tokens",
    "lengths": "arrival_time,ISL,OSL",
    "ours with more": "t_s,input_tokens,output_tokens",
}


@pytest.mark.parametrize("header", NAMES.values(), ids=NAMES)
def test_well_known_names(tmp_path: Path, header: str) -> None:
    path = tmp_path / "t.csv"
    more = ",200" * (header.count(",") - 1)
    table = table_of(path, f"{header},status\n0,10,1{more}\n2,20,2{more}\n")
    assert detect_format(path) == "columns"
    assert table.prompt_tokens.tolist() == [10, 20]
    assert table.output_tokens.tolist() == [1, 2]
    assert table.arrival_ns.tolist() == [0, 2 * 10**9]
    assert any("columns ignored: " in note and "status" in note for note in table.notes)


def test_columns_that_are_named(tmp_path: Path) -> None:
    text = "when;in;out;who;how\n5;10;1;a;x\n5500;20;2;b;y\n6000;30;3;a;x\n"
    named = "arrival=when,unit=ms,input=in,output=out,session=who,class=how"
    table = table_of(tmp_path / "t.csv", text, named)
    assert table.arrival_ns.tolist() == [0, 5_495_000_000, 5_995_000_000]
    assert table.session is not None
    assert table.session.tolist() == [0, 1, 0]
    assert table.class_names == ("x", "y")
    assert table.class_index is not None
    assert table.class_index.tolist() == [0, 1, 0]
    with pytest.raises(TraceError, match=r"--columns arrival=COLUMN"):
        detect_format(tmp_path / "t.csv")


def test_json_lines_and_lists(tmp_path: Path) -> None:
    rows = [
        {"created": 1764406800 + n, "usage": {"prompt_tokens": 9 + n, "completion_tokens": n}}
        | {"prompt": "a, text"}
        for n in range(3)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    for text in (lines, json.dumps(rows), json.dumps({"requests": rows}, indent=1)):
        table = table_of(tmp_path / "t.json", text)
        assert table.prompt_tokens.tolist() == [9, 10, 11]
        assert table.arrival_ns.tolist() == [0, 10**9, 2 * 10**9]


def test_quoted_texts_and_failed_requests(tmp_path: Path) -> None:
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(["timestamp", "prompt", "prompt_tokens", "completion_tokens"])
    rows.writerow(["2026-11-29 09:00:00", 'say "a, b"\nand c', "1,012.0"[:5], "3"])
    rows.writerow(["2026-11-29 09:00:01", "fails", "12", ""])
    rows.writerow(["2026-11-29 09:00:02", "", "7", "nan"])
    table = table_of(tmp_path / "t.csv", out.getvalue())
    assert table.prompt_tokens.tolist() == [1012]
    assert "2 rows without lengths left out, as failed requests" in table.notes


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("time,a,b\n1,2,3\n", None, r"format not recognised.*among .*time, a, b"),
        ("time,a,b\n1,2,3\n", "input=a,output=c", r"output=c: no such column; there are time"),
        ("time,a,b\n1,2,3\n", "in=a", r"expected KEY=COLUMN, KEY being one of arrival, input"),
        ("time,isl,osl\n1,2,3\n1,2,x\n", None, r"line 3: osl is 'x'; expected a whole number"),
        ("time,isl,osl\n1,2,3\nsoon,2,3\n", None, r"line 3: time is 'soon'; expected taken as"),
        ("time,isl,osl\n2026-11-29,2,3\n1,2,3\n", None, r"line 3: time is '1'; expected dates"),
        ("time,isl,osl\n1,0,3\n", None, r"isl is '0'; expected a whole number from 1"),
        ("session,t_s,input_tokens,output_tokens\n", None, "not recognised"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, columns: str | None, message: str) -> None:
    with pytest.raises(TraceError, match=f"(?s){message}"):
        table_of(tmp_path / "t.csv", text, columns)


@given(st.binary(max_size=300), st.sampled_from(["time,isl,osl\n", "[", "{", ""]))
def test_damage_gives_errors_alone(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, start: str
) -> None:
    path = tmp_path_factory.mktemp("columns") / "t"
    path.write_bytes(start.encode() + data)
    with suppress(TraceError):
        read_recording(path, format="columns")
