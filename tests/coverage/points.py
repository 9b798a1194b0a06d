"""Predicted and measured figures of every source: own recordings, serving points, silicon rows."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from scenarios.validation.validate import validate
from sim.errors import FleetcastError
from sim.evidence import weakest
from tests.properties.checkout import SHARED
from tests.serving_points.points import point_scenario, read_points
from tests.silicon.launches import refusal
from tests.silicon.models import scenario as silicon_scenario
from tests.silicon.points import read_silicon_points

FOLDERS = ("groundtruth", "groundtruth2")
_METRICS = ("ttft", "tpot", "e2e", "request_throughput")
_STATISTICS = ("mean", "p50", "p99")
# Runs that a fresh process's compilation decides, which no band is about.
_LEFT_OUT = ("m6:p12",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One figure of one run."""

    source: str
    family: str
    """Model, device and what is special; families are left out whole."""
    label: str
    """The weakest evidence label of the run's prices."""
    regime: str
    """light, busy, saturated, or closed for a fixed number of requests in flight."""
    metric: str
    statistic: str
    predicted: float
    measured: float


def recorded(folders: Iterable[Path]) -> Iterator[Point]:
    """Yield the figures of recordings' serving runs."""
    for folder in folders:
        content = validate(folder, skip=("steps", "conformance")).content
        for figure in content["figures"]:
            key, _, run = figure["run"].partition(":")
            if figure["metric"] not in _METRICS or figure["statistic"] not in _STATISTICS:
                continue
            if figure["run"] in _LEFT_OUT or run == "memory":
                continue
            label = weakest(content["conditions"][key]["evidence"].values())
            yield Point(
                source="recordings",
                family=key,
                label=label,
                regime=figure["regime"],
                metric=figure["metric"],
                statistic=figure["statistic"],
                predicted=figure["predicted"],
                measured=figure["measured"],
            )


def served(_: object = None) -> Iterator[Point]:
    """Yield the public serving points of devices without a sign of slow cards."""
    points = [point for point in read_points() if point.gpu != "H100"]
    with get_context("spawn").Pool(2) as pool:
        for found in pool.imap(_served, points, chunksize=4):
            yield from found


def _served(point: object) -> list[Point]:
    try:
        result = simulate(point_scenario(point))  # type: ignore[arg-type]
    except FleetcastError:
        return []
    tokens = point.input_tokens + point.output_tokens  # type: ignore[attr-defined]
    measured = {
        "request_throughput": point.tokens_per_s / tokens,  # type: ignore[attr-defined]
        "tpot": point.tpot_s,  # type: ignore[attr-defined]
    }
    family = f"{point.model} {point.gpu}"  # type: ignore[attr-defined]
    return _points("serving points", family, "saturated", result, measured)


def silicon(limit: int) -> Iterator[Point]:
    """Yield every n-th row of AIConfigurator's silicon points, about ``limit`` of them."""
    rows = [row for row in read_silicon_points("vllm")[0] if not refusal(row)]
    chosen = rows[:: max(1, len(rows) // limit)]
    with get_context("spawn").Pool(2) as pool:
        for found in pool.imap(_silicon, chosen, chunksize=8):
            yield from found


def _silicon(row: object) -> list[Point]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = simulate(silicon_scenario(row, "fitted", Path(folder)))  # type: ignore[arg-type]
    except FleetcastError:
        return []
    measured = {"ttft": row.ttft_s, "tpot": row.tpot_s}  # type: ignore[attr-defined]
    return _points("silicon", row.family, "closed", result, measured)  # type: ignore[attr-defined]


def _points(
    source: str, family: str, regime: str, result: RunResult, measured: dict[str, float]
) -> list[Point]:
    label = next(f["evidence"] for f in result.summary["figures"] if f["evidence"])
    return [
        Point(
            source=source,
            family=family,
            label=label,
            regime=regime,
            metric=metric,
            statistic="mean",
            predicted=predicted,
            measured=value,
        )
        for metric, value in measured.items()
        if (predicted := result.figure(metric)) is not None and predicted > 0 and value > 0
    ]


def write_points(points: Iterable[Point], path: Path) -> list[Point]:
    """Write points as CSV while they come, and return them."""
    found = []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(Point.__dataclass_fields__))
        writer.writeheader()
        for point in points:
            writer.writerow(asdict(point))
            found.append(point)
    return found


def read_cached(path: Path) -> list[Point]:
    """Read points that `write_points` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Point(
                source=row["source"],
                family=row["family"],
                label=row["label"],
                regime=row["regime"],
                metric=row["metric"],
                statistic=row["statistic"],
                predicted=float(row["predicted"]),
                measured=float(row["measured"]),
            )
            for row in csv.DictReader(file)
        ]


def recording_folders() -> list[Path]:
    """Return the folders of own recordings that are there."""
    return [path for name in FOLDERS if (path := SHARED / "data" / name).is_dir()]
