"""Measured serving points against fleetcast and AIConfigurator, printed.

    python -m tests.silicon [--backend vllm] [--limit N] [--operators fitted|aic|datasheet]
                            [--host F] [--csv FILE]

Points are those of `tests.silicon.points`. A row of InferenceX is simulated as its client ran
it: 10 requests a slot, all slots filled at once, lengths drawn evenly from 80% to 100% of those
asked for, means over all requests. Other rows: see `silicon_models`. A point that is refused counts
as an error of 100%; a family is served unless half of its points are. ``--limit`` takes every n-th
point; ``--host`` is the host_speed_factor.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from tests.silicon.models import Predicted, estimated, simulated
from tests.silicon.points import SiliconPoint, read_silicon_points

PROCESSES = 2
SERVED_SHARE = 0.5
"""A family is one that fleetcast serves if it refuses less than this share of its points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One point with what was predicted of it; a text is why nothing was."""

    point: SiliconPoint
    ours: Predicted | str
    aic: Predicted | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one predictor over some points, relative to what was measured."""

    points: int
    answered: int
    tpot: float
    """Mean of absolute errors, those refused at 1; ``answered_tpot``: without them."""
    ttft: float
    answered_tpot: float
    answered_ttft: float
    tpot_bias: float
    """Mean signed error of those answered."""
    ttft_bias: float


def score(scored: Sequence[Scored], of: Callable[[Scored], Predicted | str]) -> Score:
    """The errors of ``of`` over ``scored``; of no points, or none answered, they are NaN."""
    found = [(row.point, said) for row in scored if isinstance(said := of(row), Predicted)]
    tpot = np.array([said.tpot_s / point.tpot_s - 1 for point, said in found])
    ttft = np.array([said.ttft_s / point.ttft_s - 1 for point, said in found])
    missing = len(scored) - len(found)

    def mean(values: np.ndarray, refused: int = 0) -> float:
        count = len(values) + refused
        return float((values.sum() + refused) / count) if count else float("nan")

    return Score(
        points=len(scored),
        answered=len(found),
        tpot=mean(np.abs(tpot), missing),
        ttft=mean(np.abs(ttft), missing),
        answered_tpot=mean(np.abs(tpot)),
        answered_ttft=mean(np.abs(ttft)),
        tpot_bias=mean(tpot),
        ttft_bias=mean(ttft),
    )


def evaluate(
    points: Sequence[SiliconPoint], operators: str, host_speed_factor: float = 1.0
) -> list[Scored]:
    """Both predictions of every point, in `PROCESSES` processes."""
    # Equal GPUs and models side by side: their tables are read once.
    order = sorted(points, key=lambda point: (point.gpu, point.model, point.precision))
    task = partial(_scored, operators=operators, host_speed_factor=host_speed_factor)
    with get_context("spawn").Pool(PROCESSES) as pool:
        return pool.map(task, order, chunksize=16)


def _scored(point: SiliconPoint, operators: str, host_speed_factor: float) -> Scored:
    ours = simulated(point, operators, host_speed_factor)
    return Scored(point=point, ours=ours, aic=estimated(point))


def served(scored: Sequence[Scored]) -> list[Scored]:
    """The points of families that fleetcast serves."""
    total = Counter(row.point.family for row in scored)
    refused = Counter(row.point.family for row in scored if isinstance(row.ours, str))
    return [
        row for row in scored if refused[row.point.family] < SERVED_SHARE * total[row.point.family]
    ]


def main() -> None:
    """Print both predictors' errors by family, over each half, and every reason of a refusal."""
    options = _options()
    points, skipped = read_silicon_points(options.backend)
    step = max(1, len(points) // options.limit) if options.limit else 1
    scored = evaluate(points[::step], options.operators, options.host)
    print(f"{len(scored)} of {len(points)} points; skipped rows: {skipped}")
    _print_scores(scored)
    print("\nRefused by fleetcast, by family and reason")
    _print_reasons(scored, lambda row: row.ours)
    print("\nNot answered by AIConfigurator, in families that fleetcast serves")
    _print_reasons(served(scored), lambda row: row.aic)
    if options.csv:
        _write(scored, options.csv)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.silicon")
    parser.add_argument("--backend", default="vllm")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--operators", default="fitted")
    parser.add_argument("--host", type=float, default=1.0)
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def _print_scores(scored: Sequence[Scored]) -> None:
    known = served(scored)
    both = [row for row in known if not isinstance(row.ours, str) and not isinstance(row.aic, str)]
    families = {
        family: [r for r in scored if r.point.family == family] for family in _names(scored)
    }
    groups = families | {
        "ALL": list(scored),
        "served families": known,
        "served, rows of hash 8-f": [row for row in known if row.point.is_held_out],
        "served, families of hash 8-f": [row for row in known if row.point.is_family_held_out],
        "served, families of hash 0-7": [row for row in known if not row.point.is_family_held_out],
        "served, rows of InferenceX": [row for row in known if row.point.is_inference_x],
        "served, other rows": [row for row in known if not row.point.is_inference_x],
        "answered by both": both,
    }
    print("Mean |error| %, refused rows at 100%; in brackets without them, then the bias")
    titles = ("ours TPOT", "ours TTFT", "AIC TPOT", "AIC TTFT")
    print(f"{'':55}{'n':>5}{'answered':>10}" + "".join(f"{title:>22}" for title in titles))
    for name, rows in groups.items():
        ours, aic = score(rows, lambda row: row.ours), score(rows, lambda row: row.aic)
        cells = "".join(
            f"{100 * s.tpot:8.1f} ({100 * s.answered_tpot:4.1f}) {100 * s.tpot_bias:+6.1f}"
            f"{100 * s.ttft:8.1f} ({100 * s.answered_ttft:4.1f}) {100 * s.ttft_bias:+6.1f}"
            for s in (ours, aic)
        )
        print(f"{name:55}{ours.points:5}{ours.answered:5}/{aic.answered:<4}{cells}")


def _names(scored: Sequence[Scored]) -> list[str]:
    return sorted({row.point.family for row in scored})


def _print_reasons(scored: Sequence[Scored], of: Callable[[Scored], Predicted | str]) -> None:
    total = Counter(row.point.family for row in scored)
    reasons = Counter(
        (row.point.family, said) for row in scored if isinstance(said := of(row), str)
    )
    for (family, reason), count in sorted(reasons.items()):
        print(f"{family:50} {count:4} of {total[family]:<4} {reason[:110]}")


def _write(scored: Sequence[Scored], path: Path) -> None:
    """One line a point; seconds."""
    with path.open("w", newline="", encoding="utf-8") as file:
        names = [*asdict(scored[0].point), "ours_ttft_s", "ours_tpot_s", "aic_ttft_s", "aic_tpot_s"]
        writer = csv.writer(file)
        writer.writerow(names)
        for row in scored:
            said = [
                value
                for answer in (row.ours, row.aic)
                for value in (("", "") if isinstance(answer, str) else asdict(answer).values())
            ]
            writer.writerow([*asdict(row.point).values(), *said])


if __name__ == "__main__":
    main()
