"""Terminal text and page of a capacity search, from capacity.json alone."""

from __future__ import annotations

import copy
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reports.capacity.answer import certainty, headline, wanted_lines
from reports.capacity.report import (
    account_table,
    capacity_report,
    curve_table,
    write_capacity_page,
)
from reports.document import Cell
from reports.html import render_page
from reports.numbers import share_text
from reports.terminal import print_report
from scenarios.experiments.capacity.find import find_capacity
from scenarios.experiments.capacity.question import Question
from scenarios.files.load import parse_scenario
from sim.errors import ScenarioError


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    values = {
        "model": "llama-3.1-8b",
        "workload": {
            "generator": {"input_tokens": {"fixed": 800}, "output_tokens": {"fixed": 8}},
            "rate_per_s": 5,
        },
        "slo": {"ttft_s": 0.2, "tpot_s": 0.03},
    }
    question = Question(attainment=0.9, precision=0.2, num_requests=100, load=200)
    found = find_capacity(parse_scenario(values), question, jobs=1)
    loaded: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return loaded


def changed(content: dict[str, Any], **answer: Any) -> dict[str, Any]:
    other = copy.deepcopy(content)
    other["answer"] |= answer
    return other


def printed(content: dict[str, Any], width: int = 100) -> str:
    screen = Console(file=io.StringIO(), width=width, highlight=False)
    print_report(capacity_report(content), screen)
    file = screen.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_answer_comes_first(content: dict[str, Any]) -> None:
    text = printed(content)
    assert text.startswith(f"Up to {content['answer']['capacity']:.1f} requests/s, 90% of requests")
    assert "TTFT ≤ 200 ms, TPOT ≤ 30 ms" in text
    assert "by sampling (95%" in text
    assert "by what the model may be off (90%)" in text
    assert "of saturation" in text
    assert content["binding"]["sentence"][:30] in text


@pytest.mark.parametrize("width", [80, 100])
def test_no_cell_of_the_curve_is_cut(content: dict[str, Any], width: int) -> None:
    text = printed(content, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_what_the_other_answers_say(content: dict[str, Any]) -> None:
    none = {"capacity": None, "interval": None}
    says = {
        "No load keeps 90% of requests": changed(content, limit="none met", **none),
        "No limit was found: at 900 requests/s": changed(
            content, limit="none found", at_least=900, **none
        ),
        "the queue grows for as long": changed(content, limit="stability"),
    }
    for text, other in says.items():
        assert text in headline(other)
        assert text.split(":")[0] in printed(other).replace("\n", " ")
    assert certainty(changed(content, **none)) == ""
    trace = certainty(changed(content, fixed=True))
    assert trace.startswith("For these requests;")


def test_users_are_written_whole(content: dict[str, Any]) -> None:
    users = changed(content, capacity=1234.0, interval=[1200.0, 1260.0])
    users["question"] |= {"vary": "users", "unit": "users"}
    assert headline(users).startswith("Up to 1,234 users, 90% of requests")


def test_wanted_replicas(content: dict[str, Any]) -> None:
    replicas = content["wanted"]["replicas"]
    assert wanted_lines(content)[0].startswith(f"200 requests/s need {replicas} replicas")
    checked = copy.deepcopy(content)
    checked["wanted"]["checks"] = [
        {"replicas": 9, "attainment": 0.7, "interval": [0.6, 0.8], "stable": False, "kept": False}
    ]
    assert wanted_lines(checked)[1] == (
        "Simulated: 9 replicas cannot keep up, 70% of requests (60% to 80%)."
    )


def test_rows_stand_for_every_load_and_account(content: dict[str, Any]) -> None:
    rows = curve_table(content).rows
    assert len(rows) == len(content["curve"])
    first, last = rows[0][2], rows[-1][2]
    assert isinstance(first, Cell)
    assert isinstance(last, Cell)
    assert (first.tone, last.tone) == ("good", "bad")
    assert rows[-1][-1] == "grows"
    names = [name for name, *_ in account_table(content).rows]
    assert "decode weight reads" in names
    assert len(names) == len(set(names))


def test_shares_have_the_digits_of_an_slo() -> None:
    shares = (0, 0.9, 0.99, 0.988431, 0.99999, 1)
    assert [share_text(x) for x in shares] == ["0%", "90%", "99%", "98.84%", "99.99%", "100%"]


def test_the_page_holds_all_it_shows(content: dict[str, Any]) -> None:
    page = render_page(capacity_report(content, "model: llama-3.1-8b\n"))
    assert page.count("<h1>") == 1
    assert headline(content) in page
    assert content["binding"]["sentence"].split("'")[0] in page
    assert not re.search(r'(?:src|href)="(?!#)', page)  # no script, no network
    for name in ("attainment", "latency", "accounts"):
        assert f'<figure id="capacity-{name}-figure">' in page
    assert re.search(
        r'<th scope="row" class="n" data-value="[\d.]+" data-label="requests/s">', page
    )
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert page == render_page(capacity_report(content, "model: llama-3.1-8b\n"))


def test_a_page_without_a_capacity(content: dict[str, Any]) -> None:
    other = changed(content, limit="none met", capacity=None, interval=None, model_error=None)
    other["wanted"] = None
    page = render_page(capacity_report(other))
    assert "No load keeps" in page
    assert 'class="answer bad"' in page


def test_a_folder_is_read_or_refused(content: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no readable capacity search"):
        write_capacity_page(tmp_path)
    (tmp_path / "capacity.json").write_text('{"schema": "other"}')
    with pytest.raises(ScenarioError, match="not of schema"):
        write_capacity_page(tmp_path)
    (tmp_path / "capacity.json").write_text(json.dumps(content))
    (tmp_path / "scenario.yaml").write_text("model: llama-3.1-8b\n")
    assert write_capacity_page(tmp_path).name == "capacity.html"
    (tmp_path / "capacity.json").write_text(json.dumps(content | {"answer": {}}))
    with pytest.raises(ScenarioError, match="lacks '"):
        write_capacity_page(tmp_path)
