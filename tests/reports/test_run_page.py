"""The report page is complete, valid in structure, reproducible, and safe to open."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from reports.folder import read_requests
from reports.run.figures import latency_distributions, latency_over_time
from reports.run.report import write_run_page
from reports.svg import WIDE
from sim.errors import ScenarioError
from tests.reports.html_page import Page, check_figures, page_of
from tests.reports.sample import write_sample, write_summary


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sample"), requests=600, replicas=2)


@pytest.fixture(scope="module")
def drawn(sample: Path) -> tuple[str, Page]:
    return page_of(sample)


def test_structure(drawn: tuple[str, Page]) -> None:
    html, page = drawn
    assert html.startswith("<!DOCTYPE html>")
    assert not page.open
    assert page.all("html")[0]["lang"] == "en"
    assert page.text["title"][:1] == [
        "Llama-3.1-8B on 2 \N{MULTIPLICATION SIGN} H200: capacity report"
    ]
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_every_figure_has_a_caption_and_a_text_alternative(drawn: tuple[str, Page]) -> None:
    html, page = drawn
    assert check_figures(page) == 4
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        assert len(svg) < 150_000


def test_nothing_is_fetched(drawn: tuple[str, Page]) -> None:
    html, page = drawn
    assert page.all("script") == [{}]
    assert not page.all("link")
    for _, attrs in page.elements:
        for name in ("src", "href", "xlink:href"):
            assert attrs.get(name, "#").startswith("#")
    assert "@import" not in html
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", html))


def test_references_inside_the_figures_hold(drawn: tuple[str, Page]) -> None:
    html, page = drawn
    ids = {attrs["id"] for _, attrs in page.elements if "id" in attrs}
    used = re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"', html)
    assert used
    assert {first or second for first, second in used} <= ids


def test_the_answer_and_its_evidence(drawn: tuple[str, Page]) -> None:
    html, page = drawn
    text = " ".join(" ".join(part for parts in page.text.values() for part in parts).split())
    assert re.search(r"\d+\.\d% of requests meet the SLO \(TTFT ≤ 250 ms, TPOT ≤ 16 ms\)", text)
    assert "16,060,522,496" in text
    assert "580 finished requests" in text
    assert "https://example.org/calibration/h200" in text
    assert "datasheet" in text
    assert html.index("of requests meet the SLO") < html.index("<h2")
    order = ["slo", "latency", "load", "time", "memory", "warnings", "conditions", "scenario"]
    places = [html.index(f'id="{name}"') for name in order]
    assert places == sorted(places)


def test_two_writes_give_equal_bytes(sample: Path, tmp_path: Path) -> None:
    shutil.copytree(sample, tmp_path / "copy")
    assert write_run_page(sample).read_bytes() == write_run_page(tmp_path / "copy").read_bytes()


def test_text_of_the_user_is_escaped(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, requests=20, rejected=0)
    summary = json.loads((folder / "summary.json").read_text())
    nasty = "<b>&\"'</style><script>alert(1)</script>"
    summary["conditions"] |= {"workload": nasty, "model": nasty, nasty: nasty, "notes": [nasty]}
    summary["warnings"] = [{"code": nasty, "text": nasty}]
    summary["sources"] = [{"what": nasty, "value": nasty, "label": nasty, "source": nasty}]
    summary["e2e_accounts_s"][nasty] = 1.0
    summary["figures"][0]["evidence"] = nasty
    summary["figures"].append({"name": nasty, "value": 1, "unit": nasty, "population": nasty})
    write_summary(folder, summary)
    (folder / "scenario.yaml").write_text(nasty)
    html, page = page_of(folder)
    assert page.all("script") == [{}]
    assert "alert(1)" not in " ".join(page.text["script"])
    assert all(nasty not in attrs for _, attrs in page.elements)
    assert "<b>&" not in html
    assert html.count("</style>") == 1
    assert "&lt;b&gt;&amp;" in html


def test_no_finished_request(tmp_path: Path) -> None:
    html, page = page_of(write_sample(tmp_path, requests=8, rejected=8))
    assert "No request finished" in html
    assert len(page.all("figure")) == 2  # the engines and their time


def test_requests_before_the_measured_window_are_greyed(tmp_path: Path) -> None:
    requests = read_requests(write_sample(tmp_path, requests=400, rejected=0))
    plain = latency_over_time(requests, {}, WIDE)
    assert plain is not None
    assert "not measured" not in plain.caption
    requests["measured"] = requests["arrival_s"] > 10
    marked = latency_over_time(requests, {}, WIDE)
    shares = latency_distributions(requests, {}, WIDE)
    assert marked is not None
    assert shares is not None
    assert "Grey: the first 10" in marked.caption
    assert f"TTFT {requests['measured'].sum()}, " in shares.caption


@pytest.mark.parametrize(("requests", "replicas"), [(0, 1), (1, 1), (300, 9)])
def test_few_requests_and_many_replicas(tmp_path: Path, requests: int, replicas: int) -> None:
    html, page = page_of(write_sample(tmp_path, requests=requests, replicas=replicas, rejected=0))
    assert not page.open
    assert len(page.all("h1")) == 1
    assert not re.search(r">\s*(nan|None)\s*<", html)


def test_nulls_everywhere(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, requests=6, rejected=6)
    summary = json.loads((folder / "summary.json").read_text())
    figures = [figure | {"value": None, "unit": None} for figure in summary["figures"]]
    bare = {key: None for key in summary if key != "schema"}
    write_summary(folder, summary | bare | {"figures": figures})
    html, page = page_of(folder)
    assert page.text["title"][:1] == ["unnamed system: capacity report"]
    assert not re.search(r">\s*(nan|None)\s*<", html)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, requests=6, rejected=0)
    (folder / "steps.parquet").unlink()
    with pytest.raises(ScenarioError, match=r"steps\.parquet: missing"):
        write_run_page(folder)
