"""Words and tables of the report page, without its figures."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from tests.reports.html_page import page_of
from tests.reports.sample import write_sample, write_summary


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.html.draw", lambda _: [])


def test_a_grave_warning_stands_under_the_answer(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, requests=30)
    summary = json.loads((folder / "summary.json").read_text())
    summary["warnings"] += [
        {"code": "unstable", "text": "the queue grows over the window"},
        {"code": "rejected", "text": "20 requests were rejected"},
    ]
    write_summary(folder, summary)
    html, _ = page_of(folder)
    assert '<p class="answer bad">' in html
    body = html[html.index("</style>") :]
    alerts = body[body.index("alerts") : body.index("</ul>")]
    assert "The queue grows over the window." in alerts
    assert "20 requests were rejected." in alerts
    assert "few" not in alerts
    assert body.index("alerts") < body.index("tiles") < body.index("<h2")
    assert "p99 of TTFT rests on 20 requests" in body[body.index('id="warnings"') :]


def test_engines_stand_side_by_side(tmp_path: Path) -> None:
    html, _ = page_of(write_sample(tmp_path, requests=300, replicas=3, rejected=0))
    table = html[html.index("Engine by engine") : html.index('id="time"')]
    cell = r'<td class="n" data-value="\d+" data-label="Requests">([\d,]+)</td>'
    rows = re.findall(rf'<th scope="row">replica (\d+)</th>{cell}', table)
    assert rows == [("0", "100"), ("1", "100"), ("2", "100")]
    assert "1 would be an even spread" in table


def test_of_many_engines_the_extremes_are_shown(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, requests=300, replicas=20, rejected=0)
    steps = pd.read_parquet(folder / "steps.parquet")
    steps["gpu_s"] *= (steps["replica"] + 1) / 20
    steps.to_parquet(folder / "steps.parquet")
    html, _ = page_of(folder)
    shown = [int(name) for name in re.findall(r'scope="row">replica (\d+)</th>', html)]
    assert shown == [*range(8), *range(12, 20)]
    assert "Of 20 engines, the 8 busiest and the 8 least busy" in html


def test_every_book_balances_in_the_table(tmp_path: Path) -> None:
    html, _ = page_of(write_sample(tmp_path, requests=100))
    table = html[html.index('id="time"') :]
    table = table[: table.index("</table>")]
    heads = re.findall(r'<th scope="colgroup" colspan="2" class="n">([^<]*)</th>', table)
    assert heads == ["GPU time, all steps", "E2E, mean", "TTFT, mean"]
    rows = {
        label: re.findall(r"<td[^>]*>([^<]*)</td>", cells)
        for label, cells in re.findall(r'<th scope="row">([^<]*)</th>(.*)', table)
    }
    assert rows["decode weight reads"][:2] == ["150 s", "50.0%"]
    assert rows["admission queue"][:2] == ["", ""]
    assert rows["total"][:2] == ["300 s", "100%"]
    for column in (1, 3, 5):
        shares = [
            float(cells[column].rstrip("%"))
            for label, cells in rows.items()
            if label != "total" and len(cells) == 6 and cells[column]
        ]
        assert sum(shares) == pytest.approx(100, abs=0.06 * len(shares))


def test_bytes_that_do_not_balance_are_shown(tmp_path: Path) -> None:
    folder = write_sample(tmp_path, requests=6, rejected=0)
    summary = json.loads((folder / "summary.json").read_text())
    summary["device_bytes"]["free"] = 0
    write_summary(folder, summary)
    assert "not posted" in page_of(folder)[0]
