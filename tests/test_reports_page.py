"""The report page: whole, valid in structure, the same each time, and safe to open."""

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from reports.page import write_page
from sim.errors import ScenarioError
from tests.reports_sample import write_sample, write_summary

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """What the tests ask of a page: its elements in order, text by element, and its nesting."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.elements if name == tag]


def page_of(folder: Path) -> tuple[str, Page]:
    html = write_page(folder).read_text(encoding="utf-8")
    return html, Page(html)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sample"), requests=600, replicas=2)


def test_structure(sample: Path) -> None:
    html, page = page_of(sample)
    assert html.lstrip().startswith("<!DOCTYPE html>")
    assert not page.open
    assert page.all("html")[0]["lang"] == "en"
    assert page.text["title"] == ["Llama-3.1-8B on 2 \N{MULTIPLICATION SIGN} H200: capacity report"]
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_every_figure_has_a_caption_and_a_text_alternative(sample: Path) -> None:
    html, page = page_of(sample)
    figures = len(page.all("figure"))
    assert figures == 4
    assert len(page.all("figcaption")) == figures
    images = page.all("svg")
    assert len(images) == figures
    for image in images:
        assert image["role"] == "img"
        assert len(image["aria-label"]) > 60
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        assert len(svg) < 150_000


def test_nothing_is_fetched(sample: Path) -> None:
    html, page = page_of(sample)
    assert not page.all("script")
    assert not page.all("link")
    for _, attrs in page.elements:
        for name in ("src", "href", "xlink:href"):
            assert attrs.get(name, "#").startswith("#")
    assert "@import" not in html
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", html))


def test_references_inside_the_figures_hold(sample: Path) -> None:
    html, page = page_of(sample)
    ids = {attrs["id"] for _, attrs in page.elements if "id" in attrs}
    used = re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"', html)
    assert used
    assert {first or second for first, second in used} <= ids


def test_the_answer_and_its_evidence(sample: Path) -> None:
    html, page = page_of(sample)
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
    assert write_page(sample).read_bytes() == write_page(tmp_path / "copy").read_bytes()


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
    assert not page.all("script")
    assert all(nasty not in attrs for _, attrs in page.elements)
    assert "<b>&" not in html
    assert html.count("</style>") == 1
    assert "&lt;b&gt;&amp;" in html


def test_no_finished_request(tmp_path: Path) -> None:
    html, page = page_of(write_sample(tmp_path, requests=8, rejected=8))
    assert "No request finished" in html
    assert len(page.all("figure")) == 1


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
    assert page.text["title"] == ["unnamed system: capacity report"]
    assert not re.search(r">\s*(nan|None)\s*<", html)


def test_bytes_that_do_not_balance_are_shown(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, requests=6, rejected=0)
    summary = json.loads((folder / "summary.json").read_text())
    summary["device_bytes"]["free"] = 0
    write_summary(folder, summary)
    assert "not posted" in page_of(folder)[0]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, requests=6, rejected=0)
    (folder / "steps.parquet").unlink()
    with pytest.raises(ScenarioError, match=r"steps\.parquet: missing"):
        write_page(folder)
