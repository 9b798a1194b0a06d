"""Command line options and progress messages of a measurement."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from calibrate.measure.machine import device_name
from calibrate.measure.plan import Plan, all_families, make_plan
from calibrate.measure.run import DeviceLostError, MeasureError, Record, Run


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and return the exit code.

    0 means done, or stopped in order because the time was over; 2 means an option or file that
    cannot be used; 130 means interrupted.
    """
    start = time.perf_counter()
    argv = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(argv)
    try:
        plan = make_plan(_families(options.families), options.quick, options.device, options.part)
        if options.list:
            print(_listing(plan))
            return 0
        deadline = start + options.budget_s
        try:
            return _measure(options, plan, deadline)
        except DeviceLostError as error:
            _say(f"the device is lost ({error}); a new process goes on")
            left_s = max(0.0, deadline - time.perf_counter())
            again = [sys.executable, "-m", "calibrate.measure", *argv, "--budget-s", str(left_s)]
            os.execv(sys.executable, again)
    except KeyboardInterrupt:
        _say("stopped; the same command goes on from here")
        return 130
    except MeasureError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace, plan: Plan, deadline: float) -> int:
    if options.out is None:
        raise MeasureError("say where to write: --out FILE.jsonl")
    context = _device_context(options.device)
    record = Record(options.out, device_name(options.device))
    left = plan.without(record.done)
    with context:
        counts = Run(left, record, options.device, options.seed, deadline, _say).all()
    record.close()
    _say(
        f"{counts.timed} timed, {counts.refused} refused, {counts.left} left out, "
        f"{sum(map(len, plan.families.values())) - sum(map(len, left.families.values()))} "
        f"were there already: {options.out}"
    )
    return 0


def _device_context(device: str) -> Any:
    """Return the context to measure in: on a GPU, a stream that graphs can be captured from."""
    try:
        import torch
    except ImportError as error:
        raise MeasureError("measuring needs torch: pip install 'fleetcast[calibrate]'") from error
    if device == "cpu":
        return nullcontext()
    if not torch.cuda.is_available():
        raise MeasureError("no CUDA device here; --device cpu measures this processor")
    return torch.cuda.stream(torch.cuda.Stream())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.measure",
        description="Measure the kernels of LLM serving on this machine, into JSON lines.",
    )
    add = parser.add_argument
    add("--out", type=Path, metavar="FILE", help="appended to; what it holds is not taken again")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--quick", action="store_true", help="a small grid: all families in a few minutes")
    add("--part", type=_part, default=(1, 1), metavar="I/N", help="one of N parts of the grid")
    add("--families", metavar="A,B", help="only these: " + ", ".join(all_families()))
    add("--budget-s", type=float, default=float("inf"), metavar="S", help="stop before S seconds")
    add("--seed", type=int, default=0, metavar="N", help="of the random inputs")
    add("--list", action="store_true", help="only say how many cases there are, and how long")
    return parser


def _part(text: str) -> tuple[int, int]:
    try:
        number, parts = map(int, text.split("/"))
    except ValueError:
        number, parts = 0, 0
    if not 1 <= number <= parts:
        raise argparse.ArgumentTypeError(f"{text!r}: write 1/2 for the first of two parts")
    return number, parts


def _families(text: str | None) -> tuple[str, ...]:
    names = all_families() if text is None else tuple(text.split(","))
    for name in names:
        if name not in all_families():
            raise MeasureError(f"--families: no family {name!r}; there are {_names()}")
    return names


def _names() -> str:
    return ", ".join(all_families())


def _listing(plan: Plan) -> str:
    rows = [
        (family, len(cases), sum(one.seconds for one in cases))
        for family, cases in plan.families.items()
    ]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    lines = [f"{family:<18}{count:>7,} cases  about {s:>4.0f} s" for family, count, s in rows]
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
