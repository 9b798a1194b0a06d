"""The report page: one HTML file that holds all it shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reports import templates
from reports.facts import Summary
from reports.folder import read_requests, read_scenario, read_steps, read_summary
from reports.run.engine_facts import engine_table
from reports.run.figures import draw_figures
from reports.run.page_facts import page_facts

if TYPE_CHECKING:
    import pandas as pd


def write_page(folder: Path | str) -> Path:
    """Write ``report.html`` into a result folder and return its path.

    The page needs no network and no script. The same folder gives the same bytes.

    Raises:
        ScenarioError: a file of the result folder is missing or cannot be read.
    """
    folder = Path(folder)
    summary = read_summary(folder)
    html = render_page(summary, read_requests(folder), read_steps(folder), read_scenario(folder))
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def render_page(
    summary: Summary, requests: pd.DataFrame, steps: pd.DataFrame, scenario_yaml: str
) -> str:
    """The page as text; arguments are what the readers of ``reports.folder`` return."""
    return templates.render_page(
        "run/page.html.j2",
        plots=draw_figures(summary, requests, steps),
        engines=engine_table(summary, requests, steps),
        scenario_yaml=scenario_yaml,
        **page_facts(summary),
    )
