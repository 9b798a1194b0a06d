"""The frame that all pages share, tested with a short template."""

import re
from typing import Any

import pytest

from reports import templates
from reports.svg import Plot
from reports.templates import Cell, Column, Tile

CHILD = """{% extends "layout.html.j2" %}
{% from "parts.html.j2" import evidence_notes, facts, figure, section, table, warning_list %}
{% block content %}
{% call section("cost", "What it costs") %}
{{ figure(plots.get("absent")) }}
{{ figure(plots.get("drawn"), {"assumed": "prices", "fitted": "time"}) }}
{{ table(columns, rows, total=("all", "9", "")) }}
{{ warning_list(["one < two"]) }}
{{ facts([("GPU", "H200")]) }}
{{ evidence_notes([("fitted", 1.0)]) }}
{% endcall %}
{% endblock %}
"""
FRAME: dict[str, Any] = {
    "title": "t",
    "eyebrow": "Capacity",
    "heading": "8B on H200",
    "answer": "It fits.",
    "version": "0",
}


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> None:
    from jinja2 import ChoiceLoader, DictLoader, Environment

    original = templates.template_environment

    def with_child() -> Environment:
        environment = original()
        assert environment.loader is not None
        environment.loader = ChoiceLoader([DictLoader({"child.j2": CHILD}), environment.loader])
        return environment

    monkeypatch.setattr(templates, "template_environment", with_child)


def page(**more: Any) -> str:
    plot = Plot("drawn", "Drawn", "<svg></svg>", "In seconds.")
    html = templates.render_page(
        "child.j2",
        plots={"drawn": plot},
        columns=[Column("GPU"), Column("Price", "n"), Column("Evidence", "tags")],
        rows=[("H200", Cell("9", "poor", "±5%"), "assumed"), ("B200", "7", "")],
        **(FRAME | more),
    )
    return re.sub(r"\s+", " ", html)


@pytest.mark.usefixtures("child")
def test_a_short_template_makes_a_whole_page() -> None:
    html = page()
    assert html.lstrip().startswith("<!DOCTYPE html>")
    assert "<style> :root {" in html
    assert '<section aria-labelledby="cost"> <h2 id="cost">What it costs</h2>' in html
    assert html.count("<figure") == 1
    assert '<div class="plot"><svg></svg></div>' in html
    assert '<span class="tag">assumed</span> prices, <span class="tag">fitted</span> time.' in html
    assert '<th scope="row">H200</th><td class="n poor">9<small>±5%</small></td>' in html
    assert '<td class="tags"><span class="tag">assumed</span></td>' in html
    assert '<td class="tags"></td>' in html
    assert '<tr class="total"><th scope="row">all</th>' in html
    assert "one &lt; two" in html
    assert '<p class="answer">It fits.</p>' in html
    assert "alerts" not in html[html.index("</style>") :]


@pytest.mark.usefixtures("child")
def test_the_head_of_a_page_takes_more_when_given() -> None:
    html = page(tone="bad", alerts=["Grows."], reason="Why.", tiles=[Tile("Load", "9%", "of all")])
    places = [html.index(part) for part in ('"answer bad"', "Grows.", "Why.", "<dt>Load</dt>")]
    assert places == sorted(places)
