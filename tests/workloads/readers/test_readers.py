"""Trace readers: good files give the right table, bad files a helpful message."""

import gzip
import json
from pathlib import Path

import pytest

from sim.errors import TraceError
from workloads.readers.detect import FORMATS, detect_format, read_trace

PUBLISHED = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
REDUCED = "t_s,input_tokens,output_tokens\n"


def mooncake_row(timestamp: object = 0, tokens: object = 600, **other: object) -> str:
    row = {"timestamp": timestamp, "input_length": tokens, "output_length": 5, "hash_ids": [0, 1]}
    return json.dumps(row | other) + "\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def test_azure_published_layout_keeps_all_seven_decimals(trace: Path) -> None:
    trace.write_text(
        PUBLISHED
        + "2023-11-16 23:59:59.6805900,374,44\n"
        + "2023-11-17 00:00:00.0000001,396,0\n"
        + "2023-11-17 00:00:01,1,7\r\n"
    )
    table = read_trace(trace)
    assert table.arrival_ns.tolist() == [0, 319_410_100, 1_319_410_000]
    assert table.prompt_tokens.tolist() == [374, 396, 1]
    assert table.output_tokens.tolist() == [44, 0, 7]
    assert table.chains is None
    assert table.source == "trace (azure)"


def test_azure_times_with_an_offset_and_further_columns(trace: Path) -> None:
    trace.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,1,10,1\n"
        "2024-05-10 02:00:01.009930+02:00,0,11,2\n"
    )
    table = read_trace(trace)
    assert table.arrival_ns.tolist() == [0, 1_000_000_000]
    assert table.notes == ("columns ignored: NumImages",)


def test_azure_reduced_layout_counts_from_the_first_request(trace: Path) -> None:
    trace.write_text(REDUCED + "5.5,3,4\n7.0,5,6\n")
    assert read_trace(trace).arrival_ns.tolist() == [0, 1_500_000_000]


def test_quotes_blanks_and_bom_do_not_matter(trace: Path) -> None:
    trace.write_bytes(b'\xef\xbb\xbf"t_s", "input_tokens" ,output_tokens\n\n "0", 3 ,4\n')
    assert read_trace(trace).prompt_tokens.tolist() == [3]


def test_rows_out_of_order_are_sorted_stably_with_a_note(trace: Path) -> None:
    trace.write_text(REDUCED + "2,10,1\n1,11,1\n1,12,1\n0,13,1\n")
    table = read_trace(trace)
    assert table.prompt_tokens.tolist() == [13, 11, 12, 10]
    assert table.arrival_ns.tolist() == [0, 10**9, 10**9, 2 * 10**9]
    assert table.notes == ("sorted by time: 2 rows were earlier than the row before",)


def test_sorting_takes_prefix_chains_along(trace: Path) -> None:
    trace.write_text(
        mooncake_row(9000, 1100, hash_ids=[7, 8, 9]) + mooncake_row(3000, 5, hash_ids=[4])
    )
    chains = read_trace(trace).chains
    assert chains is not None
    assert chains.ids.tolist() == [4, 7, 8, 9]
    assert chains.offsets.tolist() == [0, 1, 4]
    assert chains.tokens.tolist() == [5, 1100]
    assert chains.block_tokens == 512


def test_mooncake_ticks_are_spread_unless_told_otherwise(trace: Path) -> None:
    # Ticks of 3 s, then a silence of 60 s that must stay one.
    times_ms = [0, 0, 3000, 3000, 3000, 6000, 6000, 66000, 66000]
    trace.write_text("".join(mooncake_row(t) for t in times_ms))
    spread = read_trace(trace)
    assert (spread.arrival_ns / 1e9).tolist() == [0, 1.5, 3, 4, 5, 6, 7.5, 66, 67.5]
    assert len(spread.notes) == 1
    as_recorded = read_trace(trace, spread_ticks=False)
    assert (as_recorded.arrival_ns / 1e6).tolist() == times_ms
    assert as_recorded.notes == ()


@pytest.mark.parametrize("times_ms", [[0, 7, 9.5], [4, 4, 4]])
def test_nothing_to_spread(trace: Path, times_ms: list[float]) -> None:
    trace.write_text("".join(mooncake_row(t) for t in times_ms))
    table = read_trace(trace)
    assert (table.arrival_ns / 1e6).tolist() == [t - times_ms[0] for t in times_ms]
    assert table.notes == ()


def test_header_without_rows_is_an_empty_table(trace: Path) -> None:
    for header in (PUBLISHED, REDUCED, REDUCED.strip()):
        trace.write_text(header)
        assert len(read_trace(trace)) == 0


@pytest.mark.parametrize("name", ["azure", "mooncake"])
def test_gzip_is_known_by_its_bytes_not_its_name(trace: Path, name: str) -> None:
    text = {"azure": REDUCED + "0,3,4\n", "mooncake": mooncake_row()}[name]
    trace.write_bytes(gzip.compress(text.encode()))
    assert detect_format(trace) == name
    assert len(read_trace(trace)) == 1


BAD_ROWS = {
    "token word": ("azure", "1,many,4\n", r"line 3: input_tokens is 'many'; expected a whole"),
    "token float": ("azure", "1,3.5,4\n", "input_tokens is '3.5'"),
    "token empty": ("azure", "1,,4\n", "input_tokens is ''"),
    "token negative": ("azure", "1,3,-4\n", "output_tokens is '-4'"),
    "prompt of 0": ("azure", "1,0,4\n", "input_tokens is 0; expected a whole number from 1"),
    "token absurd": ("azure", "1,3,999999999999\n", "output_tokens is 999999999999"),
    "token endless": ("azure", f"1,{'9' * 9000},4\n", "input_tokens is '999"),
    "time nan": ("azure", "nan,3,4\n", "t_s is 'nan'; expected seconds"),
    "time inf": ("azure", "inf,3,4\n", "t_s is 'inf'"),
    "time negative": ("azure", "-1,3,4\n", "t_s is '-1'"),
    "time absurd": ("azure", "1e300,3,4\n", "t_s is '1e300'"),
    "time far off": ("azure", "9e8,3,4\n", "from the first row's; expected at most"),
    "few fields": ("azure", "1,3\n", "the row has 2 fields; expected 3"),
    "many fields": ("azure", "1,3,4,5\n", "the row has 4 fields; expected 3"),
    "header again": ("azure", REDUCED, "t_s is 't_s'"),
    "not UTF-8": ("azure", "1,3\xff,4\n", r"input_tokens is '3\\\\xff'"),
    "no date": ("published", "2023-13-45 00:00:00,3,4\n", "TIMESTAMP is '2023-13-45 00:00:00'"),
    "not a date": ("published", "12.5,3,4\n", "expected a date and time like"),
    "date absurd": ("published", "9999-01-01 00:00:00,3,4\n", "expected at most"),
    "not JSON": ("mooncake", "{\n", "line 2: not JSON"),
    "JSON depths": ("mooncake", "[" * 100_000 + "\n", "line 2: not JSON"),
    "JSON digits": ("mooncake", "9" * 10_000 + "\n", "line 2: not JSON"),
    "not an object": ("mooncake", "[1, 2]\n", r"found \[1, 2\]; expected an object"),
    "no key": ("mooncake", '{"timestamp": 1}\n', "input_length is missing"),
    "bool tokens": (
        "mooncake",
        mooncake_row(tokens=True),
        "must be a whole number, not True",
    ),
    "text tokens": (
        "mooncake",
        mooncake_row(tokens="600"),
        "input_length must be a whole",
    ),
    "NaN time": (
        "mooncake",
        mooncake_row(float("nan")),
        "timestamp must be mill.*, not nan",
    ),
    "text time": (
        "mooncake",
        mooncake_row("3"),
        "timestamp must be milliseconds from 0 to",
    ),
    "few ids": ("mooncake", mooncake_row(tokens=1025), "hash_ids is 2 ids; expected a list of 3"),
    "no list": ("mooncake", mooncake_row(hash_ids="01"), "hash_ids must be a list, not '01'"),
    "text ids": (
        "mooncake",
        mooncake_row(hash_ids=[0, "1"]),
        r"ids\[1\] must be a whole",
    ),
    "huge id": (
        "mooncake",
        mooncake_row(hash_ids=[0, 2**63]),
        r"ids\[1\] must be less than",
    ),
    "negative id": (
        "mooncake",
        mooncake_row(hash_ids=[-1, 2]),
        r"ids\[0\] must be greater than",
    ),
}


@pytest.mark.parametrize(("start", "bad_row", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_row_is_named_or_counted(trace: Path, start: str, bad_row: str, message: str) -> None:
    good = {
        "azure": REDUCED + "0,3,4\n",
        "published": PUBLISHED + "2023-11-16 18:15:46.6805900,3,4\n",
        "mooncake": mooncake_row(),
    }[start]
    last_row = good.splitlines(keepends=True)[-1]
    trace.write_bytes((good + bad_row + last_row).encode("latin-1"))
    with pytest.raises(TraceError, match=message) as error:
        read_trace(trace)
    assert str(trace) in str(error.value)
    assert len(str(error.value)) < 500
    table = read_trace(trace, skip_bad_rows=True)
    assert (len(table), table.skipped_rows) == (2, 1)


BAD_FILES = {
    "empty": (b"", None, "the file is empty"),
    "empty azure": (b"", "azure", "the file is empty; expected a CSV header"),
    "empty mooncake": (b"", "mooncake", "the file is empty"),
    "blank lines": (b"\n\n", None, "the file is empty"),
    "prose": (b"hello\n", None, "not recognised, the first line is 'hello'"),
    "UTF-16": (REDUCED.encode("utf-16"), None, "not recognised"),
    "missing column": (
        b"TIMESTAMP,ContextTokens\n",
        "azure",
        "line 1: GeneratedTokens missing in",
    ),
    "column twice": (b"t_s,t_s,input_tokens,output_tokens\n", "azure", "'t_s' appears twice"),
    "named clocks": (
        b"session,t_s,input_tokens,output_tokens\n",
        "azure",
        "unexpected columns in 'session,t_s,",
    ),
    "several clocks": (b"session,t_s,input_tokens,output_tokens\n", None, "not recognised"),
    "other unit": (mooncake_row(chat_id=1).encode(), None, "not recognised"),
    "unknown format": (REDUCED.encode(), "burst", "unknown format 'burst'; known formats"),
    "wrong format": (REDUCED.encode(), "mooncake", "line 1: not JSON"),
    "gzip cut short": (
        gzip.compress(REDUCED.encode() + b"0,3,4\n" * 99)[:-9],
        "azure",
        "damaged or cut short",
    ),
    "gzip header only": (b"\x1f\x8b", None, "damaged or cut short"),
}


@pytest.mark.parametrize(("content", "format_", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_file(trace: Path, content: bytes, format_: str | None, message: str) -> None:
    trace.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(trace, format=format_)


def test_unrecognised_file_lists_the_known_formats(trace: Path) -> None:
    trace.write_text("hello\n")
    with pytest.raises(TraceError) as error:
        read_trace(trace)
    assert all(
        f"{name}: {known.description}" in str(error.value) for name, known in FORMATS.items()
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [("nothing.csv", "No such file"), (".", "Is a directory"), ("a\0b", "null byte")],
)
def test_path_that_is_no_file(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(TraceError, match=f"cannot be opened: .*{message}"):
        read_trace(tmp_path / path)
