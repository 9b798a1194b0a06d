"""Alternate between calibration and loop, so that both see the machine in equal states, then
price."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from calibrate.measure.machine import cpu_name
from costmodels.steps.cost import StepCost
from tests.bench.cpu_loop.loop import Loop
from tests.bench.cpu_loop.operators import measure_operators
from tests.bench.cpu_loop.predict import loop_step_cost, predicted_operator_s, predicted_s
from tests.bench.cpu_loop.shape import LoopModel, LoopStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """One step, measured and predicted, in seconds; by kind of operator `shape.GROUPS`."""

    step: LoopStep
    measured_s: float
    predicted_s: float
    measured_operator_s: dict[str, float]
    predicted_operator_s: dict[str, float]
    num_quiet: int
    """Repeats of the measurement that no other process disturbed."""
    is_quiet: bool
    """Whether these are enough to go by."""

    @property
    def error(self) -> float:
        """Return the error of the prediction relative to the measurement."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All steps of a run."""

    model: LoopModel
    steps: list[ComparedStep]
    host_s: float
    """Seconds of a step without its kernels."""
    cost: StepCost
    machine: str
    load: float
    """Load of the machine over the last minute, this run included."""
    num_lines: int

    @property
    def quiet_steps(self) -> list[ComparedStep]:
        """Those that are measured well enough to compare with."""
        return [one for one in self.steps if one.is_quiet]

    @property
    def median_error(self) -> float:
        """Return the median of |error| over `quiet_steps`; nan if there are none."""
        return float(np.quantile(self._errors, 0.5)) if self._errors else float("nan")

    @property
    def p90_error(self) -> float:
        """Return the 90th percentile of |error| over `quiet_steps`; nan if there are none."""
        return float(np.quantile(self._errors, 0.9)) if self._errors else float("nan")

    @property
    def _errors(self) -> list[float]:
        return [abs(one.error) for one in self.quiet_steps]

    @property
    def quiet_share(self) -> float:
        """Return the share of quiet steps among all steps."""
        return len(self.quiet_steps) / len(self.steps)


def compare(
    folder: Path, *, rounds: int = 3, round_s: float = 25.0, quick: bool = False, seed: int = 0
) -> Comparison:
    """Measure operators and loop ``rounds`` times in turns and price the loop's steps.

    A round takes as long as it needs for all operators, and for the loop up to ``round_s``. Lines
    and tables go to ``folder``, which must be empty. Threads are as torch finds them.
    """
    model = LoopModel()
    loop = Loop(model, quick=quick, seed=seed)
    lines: list[Path] = []
    for number in range(rounds):
        lines.append(folder / f"lines-{number}.jsonl")
        measure_operators(model, lines[-1], quick=quick, seed=seed + number)
        loop.run(time.perf_counter() + round_s)
    host_s = loop.empty.median_s()["decode"]
    cost = loop_step_cost(
        model, lines, folder / "tables", host_s, [timed.step for timed in loop.steps]
    )
    return Comparison(
        model=model,
        steps=[
            ComparedStep(
                step=timed.step,
                measured_s=timed.seconds,
                predicted_s=predicted_s(cost, timed.step),
                measured_operator_s=timed.operator_s(),
                predicted_operator_s=predicted_operator_s(cost, timed.step),
                num_quiet=timed.num_quiet,
                is_quiet=timed.is_quiet,
            )
            for timed in loop.steps
        ],
        host_s=host_s,
        cost=cost,
        machine=f"{cpu_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        load=os.getloadavg()[0],
        num_lines=sum(len(path.read_text().splitlines()) for path in lines),
    )
