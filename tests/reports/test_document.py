"""A report made by hand, as the terminal and the page show it."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from reports import html
from reports.document import (
    Beside,
    Block,
    Cell,
    Code,
    Column,
    Details,
    Fact,
    Facts,
    Figure,
    Report,
    Row,
    Section,
    Table,
    Text,
    Tile,
    Warnings,
    evidence_section,
    numbers,
)
from reports.svg import NARROW, Plot, Sheet
from reports.terminal import print_report
from sim.errors import ScenarioError
from tests.reports.html_page import Page

COLUMNS = [
    Column("GPU", terminal="gpu"),
    Column("Price", "number"),
    Column("Memory", "number", drop=1),
    Column("Place", on="page"),
    Column("Evidence", "evidence", terminal="evidence"),
]
ROWS: list[Row] = [
    ("H200", Cell("$9.50", "bad", "dear", ("±5%",)), "141 GiB", "here", "assumed"),
    ("B200", "$1,007", "900 MiB", "there", ""),
]


def report(*blocks: Block) -> Report:
    sections = [Section("cost", "What it costs", blocks)]
    return Report("Capacity", "8B on H200", "It fits.", sections, "0")


def printed(one: Report, width: int = 80) -> str:
    file = io.StringIO()
    print_report(one, Console(file=file, width=width))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def page(one: Report) -> str:
    return re.sub(r"\s+", " ", html.render_page(one))


def test_a_table_on_a_terminal() -> None:
    lines = printed(report(Table(COLUMNS, ROWS, total=("all", "9", "", "", "")))).splitlines()
    assert lines[:3] == ["It fits.", "", "What it costs"]
    assert lines[3].split() == ["gpu", "price", "memory", "evidence"]
    assert [line.split() for line in lines[5:9]] == [
        ["H200", "$9.50", "141", "GiB", "assumed"],
        ["±5%"],
        ["B200", "$1,007", "900", "MiB"],
        ["all", "9"],
    ]


def test_a_narrow_terminal_leaves_out_what_may_be_dropped() -> None:
    assert "memory" in printed(report(Table(COLUMNS, ROWS)), 34)
    assert "memory" not in printed(report(Table(COLUMNS, ROWS)), 33)


def test_bars_take_the_room_that_is_left() -> None:
    columns = [Column("Account"), *numbers("Share"), Column("", "bar")]
    rows = [("wait", "75%", Cell("", share=0.75)), ("work", "25%", Cell("", share=0.25))]
    bars = [line.count("█") for line in printed(report(Table(columns, rows)), 34).splitlines()[5:]]
    assert bars[:2] == [12, 4]
    assert "█" not in printed(report(Table(columns, rows)), 24)


def test_a_block_may_be_for_some_widths_only() -> None:
    wide, narrow = (
        Table(COLUMNS, ROWS, "Wide", widths=(60, 200)),
        Text("Narrow.", widths=(0, 59)),
    )
    assert "Narrow" not in printed(report(wide, narrow), 60)
    assert "Wide" not in printed(report(wide, narrow), 59)


def test_a_wide_table_is_split_into_parts() -> None:
    columns = [Column("Figure"), Column("base", "number")]
    columns += [Column(f"max_num_seqs={n}", "number") for n in (8, 16, 32)]
    rows: list[Row] = [["TTFT", "5 ms", *(Cell(f"{n} ms", "good", f"-{n}%") for n in (1, 2, 3))]]
    text = printed(report(Table(columns, rows, lead=2)), 60)
    assert [line for line in text.splitlines() if line.startswith("TTFT")] == [
        "TTFT    5 ms   1 ms -1%         2 ms -2%",
        "TTFT    5 ms   3 ms -3%",
    ]


def test_a_table_on_the_page() -> None:
    text = page(report(Table(COLUMNS, ROWS, "Prices", total=("all", "9", "", "", ""))))
    assert '<table class="cards"> <caption>Prices</caption>' in text
    assert '<th scope="col" class="n">Price</th>' in text
    assert '<th scope="row">H200</th>' in text
    price = '<td class="n bad" data-value="9.5" data-label="Price">'
    assert f"{price}$9.50<small>dear</small><small>±5%</small></td>" in text
    assert '<span class="tag">assumed</span>' in text
    assert '<td class="tags" data-label="Evidence"></td>' in text
    assert '</tbody> <tfoot> <tr class="total"><th scope="row">all</th>' in text


def test_headings_above_headings() -> None:
    columns = [Column("Run"), *(Column(name, "number", group="p50") for name in ("here", "there"))]
    text = page(report(Table(columns, [("a", "1", "2")])))
    assert '<th scope="colgroup" colspan="2" class="n">p50</th>' in text
    assert 'data-label="p50 there"' in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("36.1 ms", 0.0361),
        ("≤ 20 ms", 0.02),
        ("1.55 s", 1.55),
        ("16,060,522,496", 16060522496),
        ("1.5 GiB", 1.5 * 2**30),
        ("68.7 G", 68.7e9),
        ("4.8 TB/s", 4.8e12),
        ("-40.3%", -40.3),
        ("$1,240", 1240),
        ("<0.1%", 0.1),
        ("7.98 requests/s", 7.98),
        ("\N{EN DASH}", None),
    ],
)
def test_numbers_sort_by_their_size_in_one_unit(text: str, value: float | None) -> None:
    assert html.sort_value(text) == (None if value is None else pytest.approx(value))


def drawing(sheet: Sheet) -> Plot | None:
    with sheet.drawing(1.0) as figure:
        sheet.panels(figure, 2)
        return sheet.plot(figure, "drawn", "Drawn", "Two panels.", "In seconds.")


def test_a_figure_is_drawn_for_both_widths() -> None:
    text = html.render_page(report(Figure(drawing, {"assumed": "prices", "fitted": "time"})))
    shown = Page(text)
    ids = [attrs["id"] for _, attrs in shown.elements if "id" in attrs]
    assert {"drawn-title", "drawn-desc", "drawn-narrow-title", "drawn-narrow-desc"} <= set(ids)
    assert len(ids) == len(set(ids))
    assert shown.text["desc"] == ["Two panels."] * 2
    assert '<span class="tag">assumed</span> prices, <span class="tag">fitted</span> time.' in text
    heights = [float(one["viewbox"].split()[3]) for one in shown.all("svg")]
    assert heights == [72, 72]
    assert float(shown.all("svg")[1]["viewbox"].split()[2]) == pytest.approx(NARROW.width_in * 72)


def test_a_figure_without_data_says_so() -> None:
    text = page(report(Figure(lambda _: None, absent="Nothing to draw.")))
    assert "<figure" not in text
    assert "<p>Nothing to draw.</p>" in text


def test_blocks_without_content_are_not_shown() -> None:
    empty = report(Table(COLUMNS, []), Facts([]), Warnings([]), Text(""), Code(""), Beside([]))
    assert printed(empty) == "It fits."
    assert "<section" not in page(empty)


def test_other_blocks() -> None:
    facts = Facts([Fact("Load", "9%", "of all", "±1%")], "Facts")
    warnings = Warnings(["one < two", Cell("Gone.", "good")])
    blocks = facts, warnings, Text("For the page.", on="page"), Details("More", [Code("x: 1")])
    text = page(report(*blocks))
    assert "<h3>Facts</h3>" in text
    assert "<dt>Load</dt><dd>9% <small>±1% of all</small></dd>" in text
    assert '<li>one &lt; two</li> <li class="good">Gone.</li>' in text
    assert "<details> <summary>More</summary> <pre><code>x: 1</code></pre> </details>" in text
    lines = printed(report(*blocks)).splitlines()
    assert lines[3:] == ["", "Facts", "Load 9% ±1% of all", "! one < two", "+ Gone."]


def test_the_head_of_a_page() -> None:
    given = replace(
        report(Text("Why.")),
        tone="bad",
        alerts=["Grows."],
        sentences=["Because.", ""],
        tiles=[Tile("Load", "9%", "of all")],
        footer=["3 runs"],
    )
    text = page(given)
    parts = ('"answer bad"', "Grows.", "Because.", "<dt>Load</dt>", '<a href="#cost">', "· 3 runs")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "<title>8B on H200: capacity</title>" in text
    assert '<section id="cost" aria-labelledby="cost-heading">' in text


def test_evidence_lists_its_sources() -> None:
    source = {"what": "hbm_bytes_per_s", "value": 4.8e12, "label": "datasheet", "source": "NVIDIA"}
    section = evidence_section([("fitted", 0.98), ("assumed", 0.02)], [source])
    text = page(replace(report(), sections=[section]))
    assert "98% fitted, 2% assumed" in text
    assert "1 numbers the simulation rests on" in text
    assert "4.8 TB/s" in text


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="Is a directory"):
        html.write_page(report(), tmp_path)
