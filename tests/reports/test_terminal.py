"""The terminal summary: its facts, its width, and limited output streams."""

import io
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from reports.run.report import run_report
from reports.terminal import print_report
from tests.reports.sample import sample_requests, sample_summary


def printed(summary: dict[str, Any], width: int = 90) -> str:
    file = io.StringIO()
    print_report(run_report(summary), Console(file=file, width=width))
    return file.getvalue()


@pytest.fixture
def summary() -> dict[str, Any]:
    return sample_summary(sample_requests(500, 1, 10, 0))


def test_the_answer_stands_first(summary: dict[str, Any]) -> None:
    summary["slo"]["attainment"] = 0.97
    first = printed(summary).splitlines()[0]
    assert first.startswith("97.0% of requests meet the SLO (TTFT ≤ 250 ms")


def test_the_facts(summary: dict[str, Any]) -> None:
    text = " ".join(printed(summary).split())
    for fact in (
        "500 requests arrived: 490 finished and 10 rejected (longer than max_model_len).",
        "mean p50 p90 p95 p99 max evidence",
        "TTFT, E2E and Queue over 490 finished requests",
        "KV occupancy 21.4% max 71.3%",
        "Output 1,034 tokens/s",
        "decode weight reads",
        "55.0%",
        "The p99 of TTFT rests on 20 requests beyond it",
        "evidence: 10% fitted, 90% datasheet",
        "Llama-3.1-8B on 1 \N{MULTIPLICATION SIGN} H200",
    ):
        assert fact in text
    assert "cache load" not in text  # an account without time


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_lines_fit(summary: dict[str, Any], width: int) -> None:
    lines = printed(summary, width).splitlines()
    assert max(map(len, lines)) <= min(width, 100)
    if width >= 80:
        assert sum(line.startswith("TTFT ") for line in lines) == 1


def test_a_pipe_gets_no_colour(summary: dict[str, Any]) -> None:
    assert "\x1b" not in printed(summary)


def test_ascii_where_the_stream_takes_no_more(summary: dict[str, Any]) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    summary["conditions"]["workload"] = "trâce"
    print_report(run_report(summary), Console(file=stream, width=80))
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "TTFT <= 250 ms" in text
    assert "####" in text
    assert "tr?ce" in text


@pytest.mark.parametrize("width", [40, 60, 80])
def test_what_is_cut_is_marked_in_ascii_too(summary: dict[str, Any], width: int) -> None:
    summary["classes"] = [class_facts("interactive-assistants")]
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    print_report(run_report(summary), Console(file=stream, width=width))
    text = raw.getvalue().decode("ascii")
    assert "~" in text
    assert max(map(len, text.splitlines())) <= width


def class_facts(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "arrived": 4801,
        "attainment": 0.233,
        "goodput_per_s": 2.78,
        "targets": {"ttft_s": 0.3, "tpot_s": 0.015},
        "by_target": {"ttft": 0.901, "tpot": 0.24},
        "figures": [
            {"name": metric, "statistic": "p99", "value": value, "unit": "s"}
            for metric, value in (("ttft", 0.528), ("tpot", 0.0472), ("e2e", 13.4))
        ],
    }


@pytest.mark.parametrize("width", [80, 90, 100])
@pytest.mark.parametrize("name", ["chat", "reasoning"])
def test_numbers_of_a_class_stand_on_one_line(
    summary: dict[str, Any], name: str, width: int
) -> None:
    summary["classes"] = [class_facts(name)]
    text = printed(summary, width)
    numbers = ["4,801", "23.3%", "2.78/s", "528", "ms", "47.2", "ms", "13.4", "s"]
    assert any(line.split()[:10] == [name, *numbers] for line in text.splitlines())
    targets = "TTFT ≤ 300 ms: 90.1%, TPOT ≤ 15 ms: 24.0%"
    is_below = name == "reasoning" and width == 80
    assert (f"{name}: {targets}" in text) == is_below
    assert all(part in text for part in ("90.1%", "24.0%"))


def test_text_is_not_markup(summary: dict[str, Any]) -> None:
    summary["conditions"]["workload"] = "[red]burst[/red] :smile:"
    summary["warnings"] = [{"code": "x", "text": "see [bold]"}]
    text = printed(summary)
    assert "[red]burst[/red] :smile:" in " ".join(text.split())
    assert "See [bold]." in text


@pytest.mark.parametrize(("requests", "rejected"), [(0, 0), (1, 0), (4, 4)])
def test_few_requests(requests: int, rejected: int) -> None:
    text = printed(sample_summary(sample_requests(requests, 1, rejected, 0)))
    assert "nan" not in text
    assert "None" not in text


def test_nothing_but_a_schema() -> None:
    text = printed({"schema": "fleetcast.result/1"})
    assert "None" not in text
    assert text.startswith("No SLO is set.")


def test_nulls_everywhere(summary: dict[str, Any]) -> None:
    for figure in summary["figures"]:
        figure.update(value=None, unit=None, population=None, count=None, evidence=None)
    bare = {key: None for key in summary if key not in ("schema", "figures")}
    text = printed(summary | bare)
    assert "None" not in text
    assert "TTFT" in text


def test_needs_no_heavy_import() -> None:
    code = (
        "import sys; from reports.run.report import run_report; "
        "from reports.terminal import print_report; "
        "print_report(run_report({'schema': 'fleetcast.result/1'})); "
        "print([m for m in ('matplotlib', 'pandas', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
