"""Every trace format, read from a small file, with the requests computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.errors import TraceError
from sim.request_table import RequestTable
from tests.properties.tables import chain_lists
from tests.workloads.readers import trace_samples as samples
from tests.workloads.readers.trace_samples import SAMPLES, write_sample
from workloads.readers import detect
from workloads.readers.detect import FORMATS, detect_format, read_recording, read_trace

S, MS = 10**9, 10**6


def shared_blocks(table: RequestTable, one: int, other: int) -> int:
    """How many leading block ids two requests have in common."""
    chains = chain_lists(table)
    same = [a == b for a, b in zip(chains[one], chains[other], strict=False)]
    return same.index(False) if False in same else len(same)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def test_there_is_a_sample_of_every_format() -> None:
    assert set(SAMPLES) == set(FORMATS)


@pytest.mark.parametrize("name", SAMPLES)
def test_formats_are_recognised(tmp_path: Path, name: str) -> None:
    path = write_sample(tmp_path, name)
    found = detect_format(path)
    assert found == {"mooncake-delta": "mooncake"}.get(name, name)  # these two look alike


@pytest.mark.parametrize("name", SAMPLES)
def test_formats_are_told_apart_whatever_their_order(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sample(tmp_path, name)
    found = detect_format(path)
    monkeypatch.setattr(detect, "FORMATS", dict(reversed(FORMATS.items())))
    assert detect_format(path) == found


@pytest.mark.parametrize("name", [n for n in SAMPLES if n != "servegen"])
def test_recordings_are_in_order_and_say_where_they_are_from(tmp_path: Path, name: str) -> None:
    path = write_sample(tmp_path, name)
    table = read_recording(path, format=name).table
    assert (np.diff(table.arrival_ns) >= 0).all()
    assert table.source == f"{path.name} ({name})"
    if table.chains is not None:
        assert (table.chains.tokens <= table.prompt_tokens + table.output_tokens).all()


def test_burstgpt(trace: Path) -> None:
    trace.write_text(samples.BURSTGPT)
    recording = read_recording(trace)
    table = recording.table
    assert recording.thinks
    assert (table.arrival_ns / S).tolist() == [0, 2, 20, 21, 22]
    assert table.prompt_tokens.tolist() == [906, 36, 1400, 300, 1500]
    assert table.output_tokens.tolist() == [446, 29, 20, 7, 30]
    assert table.session is not None
    assert table.after is not None
    assert table.think_ns is not None
    assert table.session.tolist() == [0, 1, 0, 2, 0]  # the API log has no sessions
    assert table.after.tolist() == [-1, -1, 0, -1, 2]
    # Answered after 4 s, the next turn at 20 s; that one still runs when the next comes.
    assert (table.think_ns / S).tolist() == [0, 0, 16, 0, 0]
    assert table.notes == ("1 failed requests (no response tokens) dropped",)


def test_burstgpt_without_sessions(trace: Path) -> None:
    trace.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
    )
    table = read_recording(trace).table
    assert (table.arrival_ns / S).tolist() == [0, 40]
    assert table.session is None


def test_mooncake_sessions_with_delays(trace: Path) -> None:
    trace.write_text(samples.MOONCAKE_SESSIONS)
    recording = read_recording(trace)
    table = recording.table
    assert recording.thinks
    assert not recording.times
    assert table.prompt_tokens.tolist() == [600, 512, 513, 1100]
    assert (table.arrival_ns / MS).tolist() == [0, 200, 240.5, 250]  # the earliest possible
    assert table.after is not None
    assert table.think_ns is not None
    assert table.after.tolist() == [-1, -1, 1, 0]
    assert table.think_ns[2:].tolist() == [40_500_000, 250_000_000]
    assert chain_lists(table) == [[1, 2], [9], [9, 10], [1, 2, 3]]
    assert table.notes == ("text_input of 1 rows ignored: only lengths count",)


def test_agentic_mooncake_follows_what_it_waits_for(trace: Path) -> None:
    trace.write_text(samples.MOONCAKE_AGENTIC)
    table = read_recording(trace).table
    assert table.prompt_tokens.tolist() == [512, 600, 601, 602]
    assert table.after is not None
    assert table.think_ns is not None
    assert table.after.tolist() == [-1, 0, 0, 2]
    assert (table.think_ns[1:] / MS).tolist() == [15, 20, 30]
    assert "1 rows wait for several requests: they follow the last one named" in table.notes


def test_mooncake_delta_adds_up_prompts(trace: Path) -> None:
    trace.write_text(samples.MOONCAKE_DELTA)
    table = read_recording(trace, format="mooncake-delta").table
    assert table.prompt_tokens.tolist() == [530, 550, 540]
    assert table.chains is not None
    assert table.chains.block_tokens == 16
    # 550 tokens hold 34 whole blocks, of which the 33 of the first turn's 530 are its own ones.
    assert [len(chain) for chain in chain_lists(table)] == [33, 34, 33]
    assert shared_blocks(table, 0, 1) == 33
    assert shared_blocks(table, 0, 2) == 32  # another session shares the first 512 tokens


def test_other_block_sizes_must_be_said(trace: Path) -> None:
    trace.write_text(
        '{"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [1, 2]}'
    )
    with pytest.raises(TraceError, match="hash_ids is 2 ids; expected a list of 1 ids"):
        read_trace(trace)
    table = read_trace(trace, block_tokens=64)
    assert table.chains is not None
    assert table.chains.block_tokens == 64


def test_bailian_chats_follow_their_parents(trace: Path) -> None:
    trace.write_text(samples.BAILIAN)
    recording = read_recording(trace)
    table = recording.table
    assert not recording.thinks
    assert recording.times
    assert (table.arrival_ns / S).tolist() == [0, 0.5, 14.25, 15, 19]
    assert table.chains is not None
    assert table.chains.block_tokens == 16
    assert table.chains.tokens.tolist() == [40, 16, 70, 17, 41]
    assert table.session is not None
    assert table.after is not None
    assert table.session.tolist() == [0, 1, 0, 1, 0]
    assert table.after.tolist() == [-1, -1, 0, 1, 0]


def test_agentic_ids_links_and_think_times(trace: Path) -> None:
    trace.write_text(samples.AGENTIC)
    recording = read_recording(trace)
    table = recording.table
    assert (recording.clock, recording.thinks, recording.times) == ("session", True, True)
    assert (table.arrival_ns / S).tolist() == [0, 0, 3.25, 5, 7.5, 9.5, 20]
    by_output = {output: row for row, output in enumerate(table.output_tokens.tolist())}
    chains = chain_lists(table)
    assert chains[by_output[10]] == list(range(10))
    assert chains[by_output[11]] == [*range(9), 10]
    assert chains[by_output[12]] == [11, 12]
    assert chains[by_output[13]] == [11, 12, 13]
    assert chains[by_output[14]] == [*range(9), 10, 14, 15, 16, 17]
    assert set(chains[by_output[15]]).isdisjoint(range(18))  # ids are a session's own
    assert shared_blocks(table, by_output[15], by_output[16]) == 1
    assert table.after is not None
    assert table.think_ns is not None
    before = {
        output: int(table.output_tokens[table.after[row]])
        for output, row in by_output.items()
        if table.after[row] >= 0
    }
    # The sub-agent branched from the first request: the second had no answer yet at 7.5 s.
    assert before == {11: 10, 12: 10, 13: 12, 14: 11, 16: 15}
    think_s = {output: table.think_ns[row] / S for output, row in by_output.items()}
    assert think_s == {10: 0, 11: 3, 12: 5.5, 13: 1, 14: 11, 15: 0, 16: 2.25}


def test_agentic_rows_in_any_order_are_the_same(trace: Path) -> None:
    header, *rows = samples.AGENTIC.splitlines(keepends=True)
    trace.write_text(samples.AGENTIC)
    table = read_trace(trace)
    trace.write_text(header + "".join(reversed(rows)))
    assert chain_lists(read_trace(trace)) == chain_lists(table)


def test_ragpulse_prompts_share_their_common_leading_chunks(tmp_path: Path) -> None:
    table = read_trace(write_sample(tmp_path, "ragpulse"))
    assert table.prompt_tokens.tolist() == [170, 200, 100, 170]
    assert table.chains is not None
    assert table.chains.block_tokens == 16
    # Chunks end at 40, 60, 160 and 167; 40, 60, 160, 190 and 197; 40, 60, 90 and 97 tokens.
    assert [len(chain) for chain in chain_lists(table)] == [10, 12, 6, 10]
    assert shared_blocks(table, 0, 1) == 160 // 16
    assert shared_blocks(table, 0, 2) == 60 // 16
    assert shared_blocks(table, 0, 3) == 10
    assert table.after is not None
    assert table.after.tolist() == [-1, -1, 0, -1]


def test_length_files_have_no_times(trace: Path) -> None:
    trace.write_text(samples.LENGTHS)
    recording = read_recording(trace)
    assert recording.clock == "none"
    assert recording.table.prompt_tokens[:3].tolist() == [700, 701, 702]


def test_sglang_token_ids_are_prefixes(trace: Path) -> None:
    trace.write_text(samples.SGLANG)
    table = read_trace(trace)
    assert (table.arrival_ns[:3] / MS).tolist() == [0, 1000, 2000]
    assert shared_blocks(table, 3, 15) == 1
    assert shared_blocks(table, 13, 19) == 2


def test_aiperf(trace: Path) -> None:
    trace.write_text(samples.AIPERF)
    table = read_trace(trace, format="aiperf")
    assert (table.arrival_ns / MS).tolist() == [0, 10, 30]
    assert chain_lists(table) == [[], [1, 2], []]
    assert table.after is not None
    assert table.after.tolist() == [-1, -1, 0]
    trace.write_text(samples.AIPERF_TURNS)
    recording = read_recording(trace)
    assert (recording.clock, recording.times) == ("session", False)
    assert recording.table.after is not None
    assert recording.table.after.tolist() == [-1] * 5 + [0, 1, 2, 3, 4]


def test_llmservingsim(trace: Path) -> None:
    trace.write_text(samples.LLMSERVINGSIM)
    table = read_trace(trace)
    assert table.arrival_ns.tolist() == [0, 999_999_993, 1_000_000_693]
    assert [len(chain) for chain in chain_lists(table)] == [2, 0, 0]
    assert table.after is not None
    assert table.think_ns is not None
    assert table.after.tolist() == [-1, -1, 1]
    assert table.think_ns.tolist() == [0, 0, 700]


def test_apex(trace: Path) -> None:
    trace.write_text(samples.APEX)
    table = read_trace(trace)
    assert table.arrival_ns[:2].tolist() == [0, S]
    assert table.prompt_tokens[:2].tolist() == [100, 101]


def test_trie_prompts_grow_by_answers_and_tool_outputs(trace: Path) -> None:
    trace.write_text(samples.TRIE)
    recording = read_recording(trace)
    table = recording.table
    assert (recording.clock, recording.times) == ("session", False)
    assert table.session is not None
    assert table.think_ns is not None
    rows = np.flatnonzero(table.session == 0)
    assert table.prompt_tokens[rows].tolist() == [30, 54, 86]
    assert table.output_tokens[rows].tolist() == [16, 20, 64]
    assert (table.think_ns[rows] / S).tolist() == [0, 1.5, 0.25]
    assert table.chains is not None
    assert table.chains.covers_output
    first, second, third = (chain_lists(table)[row] for row in rows.tolist())
    assert (len(first), len(second), len(third)) == (46 // 16, 74 // 16, 150 // 16)
    assert third[: len(second)] == second
    assert second[: len(first)] == first


def test_blis(trace: Path) -> None:
    trace.write_text(samples.BLIS)
    table = read_trace(trace)
    assert table.prompt_tokens.tolist() == [74, 94, 98]
    assert (table.arrival_ns / MS).tolist() == [0, 20, 40]
    assert shared_blocks(table, 0, 1) == 4
    assert shared_blocks(table, 0, 2) == 0
    assert table.after is not None
    assert table.after.tolist() == [-1, 0, -1]
    assert table.notes[0] == "1 requests that failed dropped"


def test_azure_multimodal_images_are_ignored_with_a_note(trace: Path) -> None:
    trace.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:01.5,2,900,7\n"
    )
    assert read_trace(trace).notes == ("columns ignored: NumImages",)


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": "hello", "output_tokens": 5}',
        '{"text": "hi"}',
        '{"session_id": "a", "turns": [{"text": "hi"}]}',
        '{"conversations": [{"from": "human", "value": "hi"}]}',
    ],
)
def test_texts_alone_are_refused_with_what_would_do(trace: Path, row: str) -> None:
    trace.write_text(row + "\n")
    message = "has texts without token counts .* write input_length and output_length"
    with pytest.raises(TraceError, match=message):
        read_trace(trace)


@pytest.mark.parametrize(
    ("name", "file"), [("ragpulse", "chunks.csv"), ("servegen", "length_hist.csv")]
)
def test_companions_are_not_traces(tmp_path: Path, name: str, file: str) -> None:
    write_sample(tmp_path, name)
    with pytest.raises(TraceError, match="stands beside a trace; give that one"):
        detect_format(tmp_path / file)


def test_a_missing_companion_is_named(trace: Path, tmp_path: Path) -> None:
    trace.write_text(samples.RAGPULSE)
    with pytest.raises(TraceError, match="expected a name with 'requests' in it"):
        read_trace(trace)
    path = write_sample(tmp_path, "ragpulse")
    (tmp_path / "chunks.csv").unlink()
    with pytest.raises(TraceError, match=r"needs chunks\.csv \(or chunks\.csv\.gz\) beside it"):
        read_trace(path)


# Rows that are wrong in a way only their format knows: (sample, what to replace, by what, message).
BAD = {
    "no such parent": (
        "agentic",
        "9.5,1,4,200,13,2,2,3",
        "9.5,1,4,200,13,9,2,3",
        "line 5: parent is 9",
    ),
    "parent later": ("agentic", "900,14,1,10,14", "900,14,4,10,14", "line 6: parent is 4"),
    "more in common than there is": (
        "agentic",
        "900,14,1,10,14",
        "900,14,1,11,14",
        "line 6: lcp_blocks is 11",
    ),
    "other block size": (
        "agentic",
        "900,14,1,10,14",
        "900,14,1,10,57",
        "blocks is 57; expected 14",
    ),
    "twice": ("agentic", "4,1,3.25", "4,0,3.25", "line 8: idx 0 appears twice in session 4"),
    "back in time": ("agentic", "1,4,20.0", "1,4,2.0", r"line 6: t_s is 2\.0; expected"),
    "parent -2": ("agentic", "640,10,-1", "640,10,-2", "line 2: parent is '-2'"),
    "chat twice": ("bailian", '"chat_id": 12,', '"chat_id": 11,', "line 2: chat_id 11 appears"),
    "16-token blocks": (
        "bailian",
        "[1, 9]",
        "[1]",
        "line 4: hash_ids is 1 ids; expected a list of 2",
    ),
    "unknown chunk": ("ragpulse", '"psg": [6]', '"psg": [7]', "line 3: psg names chunk 7"),
    "burst time": (
        "burstgpt",
        "19440112.0",
        "soon",
        "line 3: Timestamp is 'soon'; expected seconds",
    ),
    "prompt ids": ("sglang", "[0, 1, 2,", "[1, 2,", "line 1: prompt has 19 token ids; expected"),
    "no start": (
        "aiperf",
        '"timestamp": 10, ',
        "",
        "its first request has a time and line 1 has not",
    ),
    "no list": ("trie", "[16, 20]", "[16]", "line 1: assistant_response_length has 1 entries"),
    "no delay": ("mooncake-delta", '"delay": 5, ', "", "timestamp is missing|neither a time nor"),
    "no session": ("mooncake-delta", '"session_id": "t", ', "", "line 3: session_id is missing"),
}


@pytest.mark.parametrize(("name", "old", "new", "message"), BAD.values(), ids=BAD)
def test_bad_row_is_named_or_counted(
    tmp_path: Path, name: str, old: str, new: str, message: str
) -> None:
    path = write_sample(tmp_path, name)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(TraceError, match=message):
        read_trace(path, format=name)
    table = read_trace(path, format=name, skip_bad_rows=True)
    assert table.skipped_rows >= 1
    assert len(table) >= 1


@pytest.mark.parametrize("name", ["azure", "burstgpt", "agentic", "lengths", "blis"])
def test_csv_read_at_once_is_what_it_is_row_by_row(tmp_path: Path, name: str) -> None:
    path = write_sample(tmp_path, name)
    at_once = read_trace(path)
    header, *rows = path.read_text().splitlines()
    quoted = [",".join(f'"{field}"' for field in row.split(",")) for row in rows]
    path.write_text("\n".join([header, *quoted]))
    row_by_row = read_trace(path)
    for column in ("arrival_ns", "prompt_tokens", "output_tokens", "after", "think_ns", "session"):
        one, other = getattr(at_once, column), getattr(row_by_row, column)
        assert (one is None) == (other is None)
        assert one is None or one.tolist() == other.tolist()
