"""`fleetcast trace inspect`: its findings, text and figures, for every kind of trace."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from reports.document import cell
from reports.html import render_page
from reports.terminal import print_report
from reports.trace.answer import answer, span, tokens
from reports.trace.report import arrival_facts, lru_table, trace_report, write_trace_page
from scenarios.commands import app
from scenarios.inspection.trace_facts import read_trace, trace_facts
from sim.errors import ScenarioError, TraceError
from sim.request_table import RequestTable, request_table
from tests.properties.checkout import SHARED
from tests.properties.tables import chains_of
from tests.reports.html_page import Page, check_figures
from workloads.readers.recording import Clock, Recording

TRACES = SHARED / "data" / "traces"
BLOCK_TOKENS = 100


def run(*args: object) -> Result:
    result = CliRunner().invoke(app, ["trace", "inspect", *(str(arg) for arg in args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def fails(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return str(result.stderr)


def public(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{name} (shared/data/traces) is not here")
    return path


def conversations(n: int = 300, seed: int = 3) -> RequestTable:
    """Poisson arrivals; sessions of three requests, each going on where the last one ended."""
    rng = np.random.default_rng(seed)
    session = np.arange(n) % (n // 3)
    turn = np.arange(n) // (n // 3)
    blocks = 2 + 3 * turn
    prompt_tokens = blocks * BLOCK_TOKENS - rng.integers(0, BLOCK_TOKENS, n)
    chains = []
    for row in range(n):
        own = 1000 * (1 + row % (n // 3))
        chains.append([0, *range(own, own + int(blocks[row]) - 1)])
    return request_table(
        np.cumsum(rng.exponential(2.0, n)),
        prompt_tokens,
        rng.integers(0, 50, n),
        chains=chains_of(chains, prompt_tokens.tolist(), BLOCK_TOKENS),
        session=session,
        source="conversations.jsonl (mooncake)",
    )


def facts_of(table: RequestTable, clock: Clock = "trace", **options: Any) -> dict[str, Any]:
    recording = Recording(table=table, clock=clock)
    return trace_facts(recording, file="conversations.jsonl", **options)


def text_of(facts: dict[str, Any], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_report(trace_report(facts), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


KV_CACHE = {"model": "some/Model-7B", "dtype": "bfloat16", "bytes_per_token": 2**17}


# Facts


def test_facts_of_conversations() -> None:
    facts = facts_of(conversations(), kv_cache=KV_CACHE)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["num_requests"] == 300
    assert facts["sessions"]["turns_mean"] == 3
    assert facts["reuse"]["requests_with_hit_fraction"] == pytest.approx(299 / 300)
    rows = facts["lru"]["by_capacity"]
    hits = [row["hit_fraction"] for row in rows]
    assert hits == sorted(hits)
    assert rows[0]["capacity_tokens"] >= 8 * BLOCK_TOKENS  # the longest request fits
    assert rows[-1]["share_of_possible"] >= 0.995
    assert rows[0]["capacity_bytes"] == rows[0]["capacity_tokens"] * 2**17
    shares = {row["share_of_possible"]: row["capacity_tokens"] for row in facts["lru"]["for_share"]}
    assert shares[0.5] <= shares[0.9] <= shares[1.0]


def test_hits_after_the_warm_up_are_those_of_a_warm_cache() -> None:
    table = conversations()
    cold, warm = facts_of(table), facts_of(table, warmup_s=300.0)
    assert warm["reuse"]["prefix_hit_fraction"] > cold["reuse"]["prefix_hit_fraction"]
    assert any("empty cache" in text for text in cold["warnings"])
    assert not any("empty cache" in text for text in warm["warnings"])


# Every kind of trace


def bare(table: RequestTable) -> RequestTable:
    return request_table(
        table.arrival_ns / 1e9, table.prompt_tokens, table.output_tokens, source="bare.csv"
    )


KINDS: dict[str, tuple[RequestTable, Clock]] = {
    "no-prefixes": (bare(conversations()), "trace"),
    "no-times": (request_table(np.zeros(9), np.arange(1, 10), np.arange(9)), "none"),
    "own-clocks": (conversations(), "session"),
    "one-request": (conversations(3), "trace"),
    "two-requests": (bare(conversations(6)), "trace"),
    "all-alike": (request_table(np.arange(90.0), np.full(90, 7), np.full(90, 1)), "trace"),
    "no-output": (request_table(np.arange(90.0), np.full(90, 7), np.zeros(90, int)), "trace"),
    "nothing-repeats": (
        request_table(
            np.arange(3.0),
            np.full(3, 100),
            np.full(3, 1),
            chains=chains_of([[1], [2], [3]], [100, 100, 100], 100),
        ),
        "trace",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_trace_can_be_told_and_drawn(kind: str) -> None:
    table, clock = KINDS[kind]
    facts = facts_of(table, clock)
    text, html = text_of(facts), render_page(trace_report(facts))
    assert text.splitlines()[0].strip()
    for output in (text, html):
        assert not re.search(r"\bnan\b|\bNone\b|\binf\b", output)
    assert ("no prefix ids" in text) == (table.chains is None)
    assert ("no times" in text) == (clock == "none")
    assert ("a clock of its own" in text) == (clock == "session")
    assert facts["lru"] is None or clock != "session"


def test_the_answer_comes_first() -> None:
    facts = facts_of(conversations(), kv_cache=KV_CACHE)
    said = answer(facts)
    rate = facts["arrivals"]["requests_per_s"]
    assert said.sentence.startswith(f"{rate:.3f} requests/s over ")
    assert "much like a Poisson process" in said.reasons[0]
    room = r"finds 90% of that with room for [\d.,]+ tokens \(.* GiB for Model-7B\)"
    assert re.search(room, said.reasons[1])
    assert "100 sessions have 3.00 requests on average" in said.reasons[2]
    paragraphs = " ".join(text_of(facts).partition("\n\n")[0].split())
    assert paragraphs == " ".join((said.sentence, *said.reasons))


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        ("even", "more evenly than a Poisson process"),
        ("poisson", "much like a Poisson process"),
        ("bursts", "in strong bursts"),
        ("drift", "but the rate drifts"),
    ],
)
def test_burstiness_in_words(gaps: str, words: str) -> None:
    rng = np.random.default_rng(0)
    gaps_s = {
        "even": rng.uniform(0.9, 1.1, 3000),
        "poisson": rng.exponential(1.0, 3000),
        "bursts": np.where(np.arange(4000) % 40, 0.01, 30.0),
        "drift": rng.exponential(np.repeat([2.0, 0.2], [400, 4000])),
    }[gaps]
    ones = np.ones(len(gaps_s), np.int64)
    facts = facts_of(request_table(np.cumsum(gaps_s), ones, ones))
    assert words in answer(facts).reasons[0]


def test_bars_shrink_and_go_rather_than_lie() -> None:
    facts = facts_of(conversations(), kv_cache=KV_CACHE)
    for width, has_bars in ((100, True), (70, True), (56, False)):
        text = text_of(facts, width)
        assert ("█" in text) == has_bars
        for row in lru_table(facts).rows:
            label, share = (cell(row[place]).text for place in (0, 3))
            assert re.search(rf"^{re.escape(label)} .*{re.escape(share)}", text, re.MULTILINE)


def test_ascii_where_the_stream_takes_no_more() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=90, highlight=False)
    print_report(trace_report(facts_of(conversations())), console)
    file.flush()


@pytest.mark.parametrize(
    ("value", "text"), [(512, "512"), (45_300, "45,300"), (1e6, "1 M"), (16_094_720, "16.1 M")]
)
def test_tokens_in_words(value: float, text: str) -> None:
    assert tokens(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500 ms"), (60, "60 s"), (3539.6, "59 min"), (7200, "2 h"), (604_603, "7 days")],
)
def test_spans_in_words(seconds: float, text: str) -> None:
    assert span(seconds) == text


# The page


def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    facts = facts_of(conversations(), kv_cache=KV_CACHE)
    html = write_trace_page(facts, tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(html)
    assert not page.open
    assert len(page.all("figure")) == len(page.all("figcaption")) == 6
    assert check_figures(page) == 6
    assert page.all("script") == [{}]  # the page's own, written into it
    assert not page.all("link")
    for _, attrs in page.elements:
        assert attrs.get("xlink:href", attrs.get("href", "#")).startswith("#")
    assert "KV cache (GiB)" in html
    assert len(html) < 250_000


def test_a_folder_gets_the_same_page(tmp_path: Path) -> None:
    facts = facts_of(*KINDS["no-times"])
    page = write_trace_page(facts, tmp_path / "folder")
    assert page == tmp_path / "folder" / "trace.html"
    assert page.read_bytes() == write_trace_page(facts, tmp_path / "page.htm").read_bytes()


def test_names_are_escaped() -> None:
    nasty = "<script>alert(1)</script>"
    facts = facts_of(*KINDS["no-times"]) | {"file": nasty, "source": nasty, "notes": [nasty]}
    assert Page(render_page(trace_report(facts))).all("script") == [{}]


# The command


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{i // 60:02}:{i % 60:02}.0,{100 + i},5\n" for i in range(300)
)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("azure.csv").write_text(AZURE)
    assert run("azure.csv").stdout.startswith("1.00 requests/s over 5 min")
    result = run("azure.csv", "--format", "json", "--out", "out", "--window", "10", "20")
    facts = json.loads(result.stdout)
    assert facts["num_requests"] == 10
    assert facts["notes"] == ["window from 10 to 20 s"]
    assert Path("out/trace.html").exists()
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run("azure.csv", "--open").stdout.endswith("page in azure.html\n")
    assert opened == [Path("azure.html").resolve().as_uri()]
    assert run("azure.csv", "--trace-format", "azure").exit_code == 0


def test_wrong_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("azure.csv").write_text(AZURE)
    Path("other.csv").write_text("a,b\n1,2\n")
    Path("lengths.csv").write_text("input_tokens,output_tokens\n7,8\n")
    for args, words in (
        (("none.csv",), "'none.csv' cannot be opened: No such file"),
        (("other.csv",), "format not recognised"),
        (("azure.csv", "--trace-format", "xml"), "unknown format 'xml'"),
        (("azure.csv", "--format", "xml"), "'xml' is neither text nor json"),
        (("azure.csv", "--window", "9", "3"), "expected 0 <= start < end"),
        (("azure.csv", "--window", "900", "999"), "azure.csv: no request to describe"),
        (("azure.csv", "--warmup", "300"), "--warmup 300: expected 0 up to 299 s"),
        (("azure.csv", "--warmup", "-1"), "--warmup -1: expected 0 up to"),
        (("azure.csv", "--warmup", "nan"), "--warmup nan: expected 0 up to"),
        (("azure.csv", "--model", "lama"), "did you mean"),
        (("azure.csv", "--sessions-per-hour", "9"), "this trace has one clock for all requests"),
        (("azure.csv", "--block-tokens", "16"), "--block-tokens 16: this trace has no prefix ids"),
        (("azure.csv", "--block-tokens", "0"), "--block-tokens"),
        (("lengths.csv", "--window", "0", "9"), "this trace has no times"),
        (("lengths.csv", "--sessions-per-hour", "9"), "this trace has no times"),
        (("azure.csv", "--duration", "9"), "--duration goes with --sessions-per-hour"),
        (("azure.csv", "--out", "azure.csv/x"), "cannot write the page azure.csv/x/trace.html"),
    ):
        assert words in fails(*args), args


# Public traces


def test_conversation_trace_in_words() -> None:
    facts = trace_facts(read_trace(public("mooncake_conversation.jsonl.gz")), file="mooncake")
    assert "12,035 input and 343 output tokens" in answer(facts).sentence
    assert "37.4% of input tokens" in answer(facts).reasons[1]
    at_10m = next(r for r in facts["lru"]["by_capacity"] if r["capacity_tokens"] == 10_000_000)
    assert 0.2157 < at_10m["hit_fraction"] < 0.2935  # between table 3.1's 10k and 20k blocks
    labels = [label for label, *_ in arrival_facts(facts)]
    assert "CV of gaps, in all" not in labels  # the clock's ticks were spread
    assert facts["series"]["gaps"] is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sharegpt8k_lengths.csv.gz", "they have no times"),
        pytest.param(
            "ragpulse_requests.jsonl.gz",
            "3,990 sessions have 1.78 requests on average",
            marks=pytest.mark.slow,
        ),
        ("azure_conv_2023.csv.gz", "the variance of counts per minute is 16.1 times"),
    ],
)
def test_public_traces_in_words(name: str, words: str) -> None:
    text = run(public(name)).stdout
    assert words in " ".join(text.split())


def test_sessions_without_a_common_clock_need_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Recording(table=conversations(), clock="session")
    monkeypatch.setattr("scenarios.inspection.trace_facts.read_recording", lambda *a, **k: own)
    placed = read_trace(
        Path("x"), trace_format="agentic", sessions_per_h=600, duration_s=1800, seed=1
    )
    facts = trace_facts(placed, file="x")
    assert facts["lru"] is not None
    assert facts["arrivals"]["span_s"] < 1800
    assert 200 < facts["sessions"]["num_sessions"] < 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit_s"), [("mooncake_conversation.jsonl.gz", 3.0), ("azure_conv_2023.csv.gz", 2.5)]
)
def test_inspecting_is_fast(name: str, limit_s: float, tmp_path: Path) -> None:
    """Read, describe, print and draw each figure twice, beside starting Python and loading
    matplotlib."""
    path = public(name)
    render_page(trace_report(facts_of(conversations())))  # matplotlib is loaded
    started_s = process_time()
    run(path, "--out", tmp_path)
    assert process_time() - started_s < limit_s


def test_client_rates_are_drawn_before_they_are_described() -> None:
    rates = SHARED / "data" / "traces" / "servegen_rates.csv.gz"
    if not rates.exists():
        pytest.skip("ServeGen's client rates (shared/data/traces) are not here")
    recording = read_trace(rates, subset="deepseek-r1", window_s=(0.0, 1200.0))
    facts = trace_facts(recording, file=rates.name)
    assert facts["arrivals"]["requests_per_s"] == pytest.approx(16, rel=0.5)
    with pytest.raises(TraceError, match="--subset"):
        read_trace(rates)
    azure = SHARED / "data" / "traces" / "azure_conv_2023.csv.gz"
    with pytest.raises(ScenarioError, match="has no parts to choose"):
        read_trace(azure, subset="m-large")
