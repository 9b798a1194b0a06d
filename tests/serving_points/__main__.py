"""Public serving points against fleetcast, printed.

    python -m tests.serving_points [--csv FILE] [--only P04,P05] [--folder FOLDER]

Each row is simulated as its client ran it (`tests.serving_points.points`). A row that is refused
counts as an error of 100%. Rows on H100 may be of slow cards and count in no total.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from tests.serving_points.points import FOLDER, answer, read_points
from tests.serving_points.scores import Scored, is_trusted, score


def main() -> None:
    """Print the errors of every point, of groups of points, and of all that count."""
    options = _options()
    points = read_points(options.folder)
    if options.only:
        points = [point for point in points if point.row_id in options.only.split(",")]
    if not points:
        print(f"no serving points in {options.folder}")
        return
    rows = []
    print(f"{'':4} {'GPU':5}{'model':42}{'in':>6}{'out':>5}{'tok/s':>8}{'ours':>8}{'%':>6}  TPOT %")
    for point in points:
        row = Scored(point=point, answer=answer(point))
        rows.append(row)
        print(_line(row), flush=True)
    _print_groups(rows)
    if options.csv:
        _write(rows, options.csv)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.serving_points")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    return parser.parse_args()


def _line(row: Scored) -> str:
    point, said = row.point, row.answer
    head = (
        f"{point.row_id:4} {point.gpu:5}{point.model.rpartition('/')[2]:42}{point.input_tokens:6}"
        f"{point.output_tokens:5}{point.tokens_per_s:8.0f}"
    )
    if isinstance(said, str):
        return f"{head}  {said[:90]}"
    return (
        f"{head}{said.tokens_per_s:8.0f}{100 * row.throughput_error:+6.0f}"
        f"{100 * row.tpot_error:+8.0f}"
    )


def _print_groups(rows: Sequence[Scored]) -> None:
    groups = {
        name: [r for r in rows if r.group == name] for name in sorted({r.group for r in rows})
    }
    groups["H200 and A100"] = [row for row in rows if is_trusted(row)]
    print(f"\n{'':16}{'points':>7}{'median %':>10}{'within 35':>11}{'bias %':>8}{'TPOT %':>8}")
    for name, of_group in groups.items():
        if of_group:
            s = score(of_group)
            print(
                f"{name:16}{s.points:7}{100 * s.median:10.1f}{100 * s.within:10.0f}%"
                f"{100 * s.bias:+8.1f}{100 * s.tpot_median:8.1f}"
            )


def _write(rows: Sequence[Scored], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "gpu", "model", "group", "throughput_error", "tpot_error"])
        for row in rows:
            point = row.point
            errors = (f"{row.throughput_error:.4f}", f"{row.tpot_error:.4f}")
            writer.writerow([point.row_id, point.gpu, point.model, row.group, *errors])


if __name__ == "__main__":
    main()
