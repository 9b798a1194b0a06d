"""Terminal text and page of a sweep, from its folder alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from reports.sweep.answer import alerts, headline, reason
from reports.sweep.facts import effects, failures, half_widths, over_others, points_table
from reports.sweep.folder import is_sweep, read_sweep
from reports.sweep.plots import default_plots, parse_plot
from reports.sweep.report import sweep_report, write_sweep_page
from reports.sweep.words import axis_label, axis_value, value_text
from reports.terminal import print_report
from scenarios.commands import app
from scenarios.run.replications import t_interval
from sim.errors import ScenarioError
from tests.reports.html_page import Page, check_figures
from tests.scenarios.experiments.sweep import samples
from tests.scenarios.experiments.sweep.samples import SCENARIO, write_sweep_file

AXES = {
    "workload.rate_per_s": [4, 16, 60],
    "engine.max_num_seqs": [2, 64],
    "pool.replicas": [1, 2, 0],
}


def run(file: Path, out: Path) -> pd.DataFrame:
    """Run a sweep, write its page, and return its table."""
    table = samples.run(file, out)
    write_sweep_page(out)
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("sweep")
    values = {
        "scenario": SCENARIO,
        "axes": AXES,
        "zipped": [{"hardware.gpu": ["H200", "H100"], "prices.usd_per_gpu_h": [3.0, 2.0]}],
        "replications": 2,
        "require": "attainment >= 0.9",
        "constraints": ["not (gpu == 'H100' and replicas == 2)"],
    }
    run(write_sweep_file(base, values, "fleet <b>"), base / "out")
    return base / "out"


@pytest.fixture
def read(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    return read_sweep(folder)


def test_points_are_means_over_seeds_with_students_interval(read: Any) -> None:
    content, table = read
    points = points_table(content, table)
    for point, rows in table[table["status"] == "done"].groupby("point"):
        values = rows["ttft.p99"].tolist()
        assert len(values) == 2
        low, high = t_interval(values)
        assert points.loc[point, "ttft.p99"] == pytest.approx((low + high) / 2)
        half = half_widths(table, "ttft.p99")[point]
        assert half == pytest.approx((high - low) / 2)


def test_the_best_is_the_cheapest_that_keeps_what_is_required(read: Any) -> None:
    content, table = read
    points = points_table(content, table)
    assert content["choice"]["best"] == "usd_per_good_request"
    growing = set(table["point"][table["warnings"].str.contains("unstable", na=False)])
    kept = points[(points["attainment"] >= 0.9) & ~points.index.isin(growing)]
    kept = kept.sort_values("usd_per_good_request", kind="stable")
    assert growing
    assert content["choice"]["ranking"] == kept.index.tolist()
    assert 0 < content["choice"]["kept"] < content["choice"]["measured"] == len(points)
    best = kept.iloc[0]
    said = headline(content, points)
    assert said.startswith("Lowest cost of a good request: $")
    assert f"request rate {best['workload.rate_per_s']:g} requests/s" in said
    assert f"GPU {best['hardware.gpu']}" in said
    assert "usd_per_gpu_h" not in said  # the GPU names it
    assert f"{len(kept)} of {len(points)} points keep attainment >= 0.9 " in reason(content, points)


def test_each_value_of_an_axis_has_the_best_that_can_be_had_with_it(read: Any) -> None:
    content, table = read
    points = points_table(content, table)
    kept = points.loc[content["choice"]["ranking"]]
    found = effects(content, points)
    assert {effect.axis for effect in found} == {*AXES, "hardware.gpu"}
    for effect in found:
        chosen = kept[[axis_value(value) == effect.value for value in kept[effect.axis]]]
        lowest = chosen["usd_per_good_request"].min() if len(chosen) else None
        assert effect.best == lowest
        assert effect.kept == len(chosen)


def test_points_that_failed_are_counted_by_what_they_say(read: Any) -> None:
    content, table = read
    (failure,) = failures(content, table)
    assert failure.points == 3 * 2 * 2
    assert "pool.replicas: must be greater than or equal to 1" in failure.message
    assert alerts(content, table) == ["12 of 30 points could not be run; see below."]


def test_other_axes_are_taken_at_their_best(read: Any) -> None:
    content, table = read
    points = points_table(content, table)
    axes = ["workload.rate_per_s"]
    lowest = over_others(content, points, "ttft.p99", axes).set_index(axes[0])["ttft.p99"]
    highest = over_others(content, points, "attainment", axes).set_index(axes[0])["attainment"]
    mean = over_others(content, points, "gpu_busy", axes).set_index(axes[0])["gpu_busy"]
    for rate, rows in points.groupby(axes[0]):
        assert lowest[rate] == rows["ttft.p99"].min()
        assert highest[rate] == rows["attainment"].max()
        assert mean[rate] == pytest.approx(rows["gpu_busy"].mean())


def test_the_page_holds_all_it_shows_and_is_the_same_again(folder: Path, read: Any) -> None:
    content, table = read
    page = (folder / "sweep.html").read_text()
    assert write_sweep_page(folder).read_text() == page
    parsed = Page(page)
    headings = parsed.text["h2"]
    assert headings[0] == "Over the axes"
    assert "Points that could not be run" in headings
    assert headline(content, points_table(content, table)) in parsed.text["p"]
    assert not parsed.open
    assert "http" not in page.replace("http://www.w3.org", "")
    assert parsed.all("script") == [{}]  # the page's own, written into it
    assert any("must be greater than or equal to 1" in text for text in parsed.text["th"])
    assert check_figures(parsed) == len(default_plots(content, points_table(content, table)))


def test_any_two_axes_are_drawn_when_asked(folder: Path, read: Any) -> None:
    content, table = read
    points = points_table(content, table)
    spec = parse_plot(content, points, "ttft.p99,rate_per_s,max_num_seqs")
    assert (spec.x, spec.by) == ("workload.rate_per_s", "engine.max_num_seqs")
    assert spec.facet == "pool.replicas"
    said = CliRunner().invoke(
        app,
        [
            *("report", str(folder)),
            *("--plot", "gpu_busy,rate_per_s"),
            *("--plot", "tpot.p99,hardware.gpu,rate_per_s,heatmap"),
        ],
    )
    assert said.exit_code == 0, said.output
    page = (folder / "sweep.html").read_text()
    assert page.count("<figure") == 2
    assert "TPOT p99 over GPU, by request rate" in page
    assert "GPU busy in time over request rate" in page
    write_sweep_page(folder)


@pytest.mark.parametrize(
    ("plot", "words"),
    [
        ("ttft.p99", "write it as figure,axis"),
        ("ttft.p99,rate,gpu", "no axis 'rate'"),
        ("ttft.p98,rate_per_s", "no figure 'ttft.p98'"),
        ("ttft.p99,rate_per_s,gpu,pie", "write it as figure,axis"),
    ],
)
def test_what_cannot_be_drawn_is_refused(folder: Path, plot: str, words: str) -> None:
    said = CliRunner().invoke(app, ["report", str(folder), "--plot", plot])
    assert said.exit_code == 2
    assert words in said.stderr


def test_plots_of_a_file_and_random_axes_are_drawn(tmp_path: Path) -> None:
    values = {
        "scenario": SCENARIO,
        "random": {
            "draws": 6,
            "axes": {
                "workload.rate_per_s": {"from": 2, "to": 90, "scale": "log"},
                "engine.max_num_seqs": {"from": 4, "to": 64, "whole": True},
            },
        },
        "plots": [
            {"figure": "ttft.p99", "x": "workload.rate_per_s"},
            {"figure": "tpot.p99", "x": "engine.max_num_seqs"},
        ],
    }
    run(write_sweep_file(tmp_path, values), tmp_path / "out")
    page = (tmp_path / "out" / "sweep.html").read_text()
    assert page.count("<figure") == 2
    assert "Each mark is a point." in page
    values["plots"] = []
    run(write_sweep_file(tmp_path, values), tmp_path / "out")
    assert (tmp_path / "out" / "sweep.html").read_text().count("<figure") == 1


def test_none_that_keeps_what_is_required_says_which_is_nearest(tmp_path: Path) -> None:
    values = {
        "scenario": {**SCENARIO, "slo": {"ttft_s": 1e-6}},
        "axes": {"workload.rate_per_s": [4, 8]},
    }
    run(write_sweep_file(tmp_path, values), tmp_path / "out")
    content, table = read_sweep(tmp_path / "out")
    points = points_table(content, table)
    assert headline(content, points) == "None of 2 points keeps attainment >= 0.99."
    assert "The highest SLO attainment is 0%" in reason(content, points)
    page = (tmp_path / "out" / "sweep.html").read_text()
    assert "The points nearest to what is required" in page


def test_a_sweep_without_an_slo_goes_by_the_work_of_a_gpu(tmp_path: Path) -> None:
    scenario = {key: value for key, value in SCENARIO.items() if key != "slo"}
    values = {"scenario": scenario, "axes": {"kv.cache_dtype": ["auto", "fp8"]}}
    table = run(write_sweep_file(tmp_path, values), tmp_path / "out")
    content, _ = read_sweep(tmp_path / "out")
    assert content["choice"]["best"] == "total_throughput_per_gpu"
    assert content["choice"]["require"] is None
    assert content["choice"]["kept"] == 2
    assert table["attainment"].isna().all()


def test_the_terminal_has_the_answer_first_in_any_width_and_alphabet(read: Any) -> None:
    content, table = read
    for width, encoding in ((100, "utf-8"), (50, "utf-8"), (80, "ascii")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        console = Console(file=stream, width=width, highlight=False)
        print_report(sweep_report(content, table), console)
        stream.seek(0)
        text = stream.read()
        assert text.startswith("Lowest cost of a good request")
        assert "12 of 30 points could not be run" in " ".join(text.split())
        assert max(map(len, text.splitlines())) <= width


def test_a_folder_that_is_not_a_sweep_says_so(tmp_path: Path) -> None:
    assert not is_sweep(tmp_path)
    with pytest.raises(ScenarioError, match="no readable sweep"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": "other"}))
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "sweep.parquet")
    with pytest.raises(ScenarioError, match="not of schema"):
        read_sweep(tmp_path)
    said = CliRunner().invoke(app, ["report", str(tmp_path / "none"), "--plot", "a,b"])
    assert said.exit_code == 2
    assert "is no sweep" in said.stderr


def test_values_are_written_as_people_write_them() -> None:
    content = {"columns": {"ttft.p99": {"unit": "s"}, "usd_per_good_request": {"unit": "USD"}}}
    assert value_text(content, "ttft.p99", 0.0443) == "44.3 ms"
    assert value_text(content, "usd_per_good_request", 0.000291) == "$0.291 for 1,000"
    assert value_text(content, "usd_per_good_request", 0.0291) == "$0.0291"
    assert value_text(content, "ttft.p99", float("nan")) == "\N{EN DASH}"
    assert axis_value("{name: sarathi, chunk_tokens: 512}") == "sarathi, chunk_tokens: 512"
    assert axis_label("kv.policy", ["kv.policy", "autoscaler.policy"]) == "kv.policy"
