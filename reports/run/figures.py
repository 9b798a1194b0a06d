"""All figures of a report, from what a result folder holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.facts import Summary, account_rows
from reports.run.account_figures import account_breakdown
from reports.run.engine_facts import usable_blocks
from reports.run.engine_figures import engines_over_time
from reports.run.latency_figures import latency_distributions, latency_over_time
from reports.run.verdict import slo_targets
from reports.svg import Plot

if TYPE_CHECKING:
    import pandas as pd


def draw_figures(summary: Summary, requests: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Plot]:
    """Draw every figure there is data for, by name, in the order of the report.

    Arguments are as ``read_summary``, ``read_requests`` and ``read_steps`` return them.
    """
    targets_s = slo_targets(summary)
    plots = (
        latency_distributions(requests, targets_s),
        latency_over_time(requests, targets_s),
        engines_over_time(steps, usable_blocks(summary)),
        account_breakdown(
            {
                "GPU": account_rows(summary, "step_accounts_s"),
                "E2E": account_rows(summary, "e2e_accounts_s"),
                "TTFT": account_rows(summary, "ttft_accounts_s"),
            }
        ),
    )
    return {plot.name: plot for plot in plots if plot is not None}
