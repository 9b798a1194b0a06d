"""``--open`` shows the report in the reader's browser, and does not fail without one."""

import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scenarios.commands import app
from tests.properties.scenarios import small, write
from tests.reports.sample import write_sample


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.html.draw", lambda _: [])


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []
    monkeypatch.setattr(webbrowser, "open", urls.append)
    return urls


def test_report_opens_its_page_only_when_asked(tmp_path: Path, shown: list[str]) -> None:
    folder = write_sample(tmp_path / "a run", requests=20, rejected=0)
    CliRunner().invoke(app, ["report", str(folder)])
    assert shown == []
    run = CliRunner().invoke(app, ["report", str(folder), "--open"])
    assert run.output.strip() == str(folder / "report.html")
    assert shown == [(folder / "report.html").as_uri()]
    assert "%20" in shown[0]


def test_simulate_opens_the_page_it_wrote(tmp_path: Path, shown: list[str]) -> None:
    scenario, out = str(write(tmp_path / "s.yaml", small())), tmp_path / "out"
    run = CliRunner().invoke(app, ["simulate", scenario, "--open", "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert shown == [(out / "report.html").as_uri()]
    run = CliRunner().invoke(app, ["simulate", scenario, "--open"])
    assert run.exit_code == 2
    assert "without --out" in run.output


@pytest.mark.parametrize("failure", [webbrowser.Error("no browser"), FileNotFoundError("gone")])
def test_without_a_browser_the_path_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(url: str) -> bool:
        raise failure

    monkeypatch.setattr(webbrowser, "open", fail)
    folder = write_sample(tmp_path, requests=20, rejected=0)
    run = CliRunner().invoke(app, ["report", str(folder), "--open"])
    assert run.exit_code == 0
    assert run.output.strip() == str(folder / "report.html")
