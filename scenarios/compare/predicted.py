"""The statistics of a result folder, taken as the other side of a comparison took its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrate.results.run import ITL_MEANS, LINEAR, TPOT_INCLUDES, Measured, MeasuredRun
from reports.folder import read_requests, read_summary
from reports.words import is_number
from sim.books.metrics import statistics
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

_OF_REQUESTS = ("ttft", "tpot", "e2e")


class Prediction(NamedTuple):
    """Seconds or per second, and the 90% band relative to it where there is one."""

    value: float
    band: float | None


class Predicted:
    """A result folder: the figures of its summary, and its requests where they are needed."""

    def __init__(
        self, summary: dict[str, Any], read: Callable[[], pd.DataFrame] | None = None
    ) -> None:
        self.summary = summary
        self._read = read
        self._figures = {
            (figure["name"], str(figure.get("statistic"))): figure for figure in summary["figures"]
        }

    @property
    def has_requests(self) -> bool:
        """Whether requests.parquet is there, so that other conventions can be computed."""
        return self._read is not None

    @cached_property
    def finished(self) -> pd.DataFrame:
        """The finished requests."""
        assert self._read is not None
        requests = self._read()
        return requests[requests["status"] == "finished"]

    def figure(self, name: str, statistic: str = "value") -> Prediction | None:
        """A figure of the summary."""
        figure = self._figures.get((name, statistic))
        if figure is None or not is_number(figure.get("value")):
            return None
        band = figure.get("band")
        return Prediction(figure["value"], band if is_number(band) else None)

    def like(
        self, metric: str, statistic: str, run: MeasuredRun, measured: Measured
    ) -> Prediction | None:
        """A statistic as the run has it: the same TPOT and ITL, the same kind of percentile.

        None where it cannot be computed. Raises ScenarioError for a damaged requests.parquet.
        """
        figure = self.figure(metric, statistic)
        if not measured.is_from_tool:
            return figure
        convention = {"tpot": run.tpot_convention, "itl": run.itl_convention}.get(metric)
        if convention in (TPOT_INCLUDES, ITL_MEANS):
            return self._by_tokens(metric, statistic)
        if run.percentiles != LINEAR or metric not in _OF_REQUESTS or statistic == "mean":
            return figure
        if figure is None or not self.has_requests:
            return figure
        values = self.finished[f"{metric}_s"].to_numpy(np.float64)
        share = int(statistic.removeprefix("p")) / 100
        return Prediction(float(np.quantile(values[~np.isnan(values)], share)), figure.band)

    def _by_tokens(self, metric: str, statistic: str) -> Prediction | None:
        """One value a request, weighted: e2e/tokens by its tokens, or its TPOT by its gaps."""
        if not self.has_requests:
            return None
        tokens = self.finished["output_tokens"].to_numpy(np.int64)
        if metric == "tpot":
            e2e_s = self.finished["e2e_s"].to_numpy(np.float64)
            values, weights = e2e_s / np.maximum(tokens, 1), tokens
        else:
            values, weights = self.finished["tpot_s"].to_numpy(np.float64), tokens - 1
        kept = weights > 0
        found = statistics(values[kept], weights[kept])[statistic]
        return None if found is None else Prediction(found, None)


def read_predicted(path: Path) -> Predicted:
    """Read a result folder, or its summary.json. Raises ScenarioError."""
    if path.is_file() and path.name != "summary.json":
        raise ScenarioError(f"{path}: expected a result folder, or the summary.json in one")
    folder = path.parent if path.is_file() else path
    summary = read_summary(folder)
    if not isinstance(summary.get("figures"), list):
        raise ScenarioError(f"{folder / 'summary.json'}: has no figures; run the scenario again")
    has_requests = (folder / "requests.parquet").is_file()
    return Predicted(summary, (lambda: read_requests(folder)) if has_requests else None)
