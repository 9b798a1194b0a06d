"""Measured serving points against fleetcast and AIConfigurator, printed.

    python -m tests.silicon [--backend vllm|sglang|trtllm|all] [--limit N]
                            [--operators fitted|aic|datasheet] [--host F] [--csv FILE]

Points are those of `tests.silicon.points`. A row of InferenceX is simulated as its client ran
it: 10 requests a slot, all slots filled at once, lengths drawn evenly from 80% to 100% of those
asked for, means over all requests. Other rows: see `tests.silicon.models`; how servers were
started: `tests.silicon.launches`. Errors are means over rows of absolute relative errors. A point
that is refused counts as an error of 100%; a family is served unless half of its points are.
``--limit`` takes every n-th point; ``--host`` is the host_speed_factor.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.silicon.models import Predicted
from tests.silicon.points import read_silicon_points
from tests.silicon.scores import Scored, evaluate, score, served


def main() -> None:
    """Print both predictors' errors by family, over each half, and every reason of a refusal."""
    options = _options()
    points, skipped = read_silicon_points(None if options.backend == "all" else options.backend)
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
    parser.add_argument("--backend", default="vllm", choices=("vllm", "sglang", "trtllm", "all"))
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
