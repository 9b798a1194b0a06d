"""Calibrations can be displayed and compared as text, page and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scenarios.calibration.diff import diff_facts
from scenarios.calibration.kernels import import_facts
from scenarios.commands import app
from sim.errors import ScenarioError
from tests.calibrate.kernel_lines import GRIDS, made_lines, write_lines

FAMILIES = ("gemm", "decode_attention", "elementwise", "all_reduce", "kda_chunk")


def imported(folder: Path, *families: str, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = write_lines(folder / "lines.jsonl", made_lines(*families, **changes))
    import_facts([path], out=folder, gpu=None)
    return folder


def invoke(*args: str) -> str:
    result = CliRunner().invoke(app, ["calibrate", *args])
    assert result.exit_code == 0, result.output
    return result.output


def test_show_says_what_kernels_reach_and_how_well_tables_predict(tmp_path: Path) -> None:
    folder = imported(tmp_path / "a", *FAMILIES)
    page = tmp_path / "page.html"
    text = invoke("show", str(folder), "--out", str(page))
    for words in (
        "5 families of kernels on H200-SXM",
        "TFLOP/s",
        "held out",
        "all_reduce, 8 ranks",
    ):
        assert words in text
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") >= 2 + len(FAMILIES)  # roofline, held-out errors, a plot a table
    assert "lines.jsonl" in html
    facts = json.loads(
        invoke("show", str(folder / "gemm-torch-bfloat16.parquet"), "--format", "json")
    )
    (table,) = facts["tables"]
    assert len(table["curves"]) == 8
    shares = [share for curve in table["curves"] for share in curve["share"]]
    assert 0 < min(shares) < max(shares) <= 1
    curve = table["curves"][0]
    at, m = curve["at"], curve["axes"]["m"][3]
    assert curve["flops"][3] == 2 * m * at["n"] * at["k"]


def test_diff_finds_the_ratio_and_whether_it_is_a_factor_or_a_constant(tmp_path: Path) -> None:
    a = imported(tmp_path / "a", "gemm", "decode_attention")
    b = imported(tmp_path / "b", "gemm", "decode_attention", "embedding", scale=0.5)
    facts = diff_facts(str(a), str(b), None)
    assert {pair["family"] for pair in facts["pairs"]} == {"gemm", "decode_attention"}
    for pair in facts["pairs"]:
        assert pair["shapes"] == pair["equal_shapes"]
        assert (pair["p10"], pair["median"], pair["p90"]) == pytest.approx((2, 2, 2))
        assert any("the longest takes 2.00 times as long" in why for why in pair["why"])
    assert facts["only_right"] == ["embedding"]
    text = invoke("diff", str(a), str(b), "--out", str(tmp_path / "d.html"))
    assert "takes 2.00 to 2.00 times as long" in " ".join(text.split())
    assert "Where they part most" in text
    assert "<svg" in (tmp_path / "d.html").read_text(encoding="utf-8")
    same = diff_facts(str(a), str(a), None)
    assert {pair["median"] for pair in same["pairs"]} == {1.0}


def test_calibrations_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    a, b = imported(tmp_path / "a", "gemm"), imported(tmp_path / "b", "embedding")
    with pytest.raises(ScenarioError, match=r"no shape in common: .* has gemm; .* has embedding"):
        diff_facts(str(a), str(b), None)
    with pytest.raises(ScenarioError, match="'nothing' is no calibration: neither ours, aic"):
        diff_facts(str(a), "nothing", None)


@pytest.mark.parametrize("family", GRIDS)
def test_every_family_has_a_figure(family: str, tmp_path: Path) -> None:
    from reports.calibration.figures import table_figure
    from reports.svg import NARROW, WIDE
    from scenarios.calibration.contents import load_named, surface_facts

    facts = surface_facts(load_named(str(imported(tmp_path / "a", family)), None), "a")
    for sheet in (WIDE, NARROW):
        plot = table_figure(facts["tables"][0], 0, sheet)
        assert plot is not None
        assert "<svg" in plot.svg
