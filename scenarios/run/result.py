"""The result of a run: its summary, its frames, and the folder to which it is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.build.pools import Build
from scenarios.files.dump import dump_scenario
from scenarios.run.result_folder import json_text, replaced
from scenarios.schema import Scenario
from sim.books.ledger import TimeBooks
from sim.books.metrics import RequestMetrics
from sim.books.token_times import token_times_ns
from sim.fleet.cluster import RunLog
from sim.paths import file_sha256

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(kw_only=True)
class RunResult:
    """A finished run: ``summary`` is what summary.json holds; frames are made on first use."""

    scenario: Scenario
    build: Build
    log: RunLog
    metrics: RequestMetrics
    books: TimeBooks
    summary: dict[str, Any]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request: times in seconds, accounts in integer nanoseconds."""
        from scenarios.run.frames import requests_frame

        return requests_frame(self.log, self.metrics, self.books)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per run of equal steps, for all replicas, in order of replica and time."""
        from scenarios.run.frames import steps_frame

        return steps_frame(self.log)

    def token_times_s(self, request: int) -> NDArray[np.float64]:
        """Return when each output token of a finished request came out, in seconds from the
        start."""
        times: NDArray[np.float64] = token_times_ns(self.log, request) / 1e9
        return times

    def figure(self, name: str, statistic: str = "mean") -> float | None:
        """Return one figure of the summary, e.g. ``figure("ttft", "p99")`` in seconds.

        Raises `KeyError` if there is no such figure.
        """
        for figure in self.summary["figures"]:
            if figure["name"] == name and figure["statistic"] in (statistic, "value"):
                value: float | None = figure["value"]
                return value
        raise KeyError(f"no figure {name} {statistic}")

    def write(self, folder: str | Path, *, lies_in: Path | None = None) -> Path:
        """Write summary.json, the tables as parquet and the resolved scenario; return the folder.

        ``lies_in`` is where the folder will lie if it is moved later: the scenario's paths are seen
        from there. The summary has the hashes of the other files. Raises `ScenarioError` if the
        folder cannot be written; what it held before is then still there.
        """
        target = Path(folder)
        # Import pandas only when a folder is written.
        from scenarios.run.frames import preemptions_frame, step_times_frame

        with replaced(target, "summary.json", stale=("report.html",)) as part:
            (part / "scenario.yaml").write_text(
                dump_scenario(self.scenario, lies_in or target), encoding="utf-8"
            )
            self.requests.to_parquet(part / "requests.parquet", index=False)
            self.steps.to_parquet(part / "steps.parquet", index=False)
            preemptions_frame(self.log).to_parquet(part / "preemptions.parquet", index=False)
            step_times_frame(self.log).to_parquet(
                part / "step_times.parquet",
                index=False,
                use_dictionary=False,
                column_encoding="DELTA_BINARY_PACKED",
            )
            files = {path.name: file_sha256(path) for path in sorted(part.iterdir())}
            text = json_text({**self.summary, "files": files})
            (part / "summary.json").write_text(text, encoding="utf-8")
        return target
