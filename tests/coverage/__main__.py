"""Bands of predictions, from errors on families that are left out.

    python -m tests.coverage [--points FILE.csv] [--limit N] [--out FILE.yaml]

Predicts every own recording, public serving point and about N silicon rows (those that are there),
or reads the points that an earlier call left in FILE.csv. Prints the bands by evidence label,
metric and regime with their coverage of families left out, and writes them to FILE.yaml, which in
the package is costmodels/hardware/outcomes.yaml.
"""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

import yaml

from tests.coverage.bands import Band, as_content, bands
from tests.coverage.points import (
    Point,
    read_cached,
    recorded,
    recording_folders,
    served,
    silicon,
    write_points,
)

_HEAD = """\
# How far measured values lie from predictions: 90% bands by evidence label, metric and regime, as
# relative changes of the prediction. Made by `python -m tests.coverage` from own recordings, public
# serving points and AIConfigurator's silicon rows; each band covers `coverage` of the points of
# families left out. `any`: all labels, or all regimes.
"""


def main() -> None:
    """Collect points, print the bands and write the data file."""
    parser = argparse.ArgumentParser(prog="python -m tests.coverage")
    parser.add_argument("--points", type=Path)
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    points = _collected(options.points, options.limit)
    found = bands(points)
    for label, by_metric in found.items():
        for metric, by_regime in by_metric.items():
            for regime, band in by_regime.items():
                print(_line(label, metric, regime, band))
    if options.out:
        text = yaml.safe_dump(as_content(found), sort_keys=False, default_flow_style=None)
        options.out.write_text(_HEAD + text, encoding="utf-8")


def _collected(path: Path | None, limit: int) -> list[Point]:
    if path is not None and path.is_file():
        return read_cached(path)
    points = chain(recorded(recording_folders()), served(), silicon(limit))
    return list(points) if path is None else write_points(points, path)


def _line(label: str, metric: str, regime: str, band: Band) -> str:
    return (
        f"{label:13}{metric:20}{regime:11}{band.low:+7.0%} {band.high:+7.0%}"
        f"{band.points:7} points {band.families:4} families  coverage {band.coverage:.0%}"
    )


if __name__ == "__main__":
    main()
