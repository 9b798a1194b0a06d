"""Time the steps of a decoder, whole and part by part."""

from __future__ import annotations

import time
from typing import Any

import torch

from calibrate.measure.timing import Waiting
from tests.bench.cpu_loop.decoder import Decoder
from tests.bench.cpu_loop.kernels import NoKernels, TorchKernels
from tests.bench.cpu_loop.laps import Laps
from tests.bench.cpu_loop.shape import GROUPS, LoopModel, LoopStep, all_steps

_GROUPS = {
    "embed": "elementwise",
    "norm": "elementwise",
    "rotary": "elementwise",
    "kv_write": "elementwise",
    "silu_mul": "elementwise",
    "linear": "matrices",
    "attend": "attention",
    "sample": "sampling",
}
_TOKENS_A_STRETCH = 6
_IN_PARTS = 2
"""Steps of a stretch beside these."""
_ENOUGH = 5
"""Undisturbed repeats of a whole step."""
_FEW = 3


class TimedStep:
    """What was measured of one step."""

    def __init__(self, step: LoopStep, waiting: Waiting) -> None:
        self.step = step
        self.whole = Laps(waiting)
        self.parts = Laps(waiting)
        """A step in parts: on a busy machine few steps are undisturbed, but many parts are."""
        self.calls = Laps(waiting)
        """A step call by call."""

    @property
    def num_quiet(self) -> int:
        """Undisturbed repeats that `seconds` is made from."""
        return self._best.num_quiet()

    @property
    def is_quiet(self) -> bool:
        """Whether these are enough to go by."""
        return self.num_quiet >= _FEW

    @property
    def seconds(self) -> float:
        """The median of the undisturbed whole steps; where there are too few, and parts have more,
        the sum of the parts' medians."""
        return sum(self._best.median_s().values())

    @property
    def _best(self) -> Laps:
        whole = self.whole.num_quiet()
        return self.whole if whole >= min(_FEW, self.parts.num_quiet()) else self.parts

    def operator_s(self) -> dict[str, float]:
        """Seconds of its calls by kind of operator: `GROUPS`."""
        found = dict.fromkeys(GROUPS, 0.0)
        for part, seconds in self.calls.median_s().items():
            found[part.partition(" ")[0]] += seconds
        return found


class TimedKernels:
    """Kernels of which each call is timed separately."""

    def __init__(self, laps: Laps) -> None:
        self._laps, self._kernels, self._calls = laps, TorchKernels(), 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._kernels, name)

        def timed(*arguments: Any) -> Any:
            self._laps.start()
            found = call(*arguments)
            self._laps.mark(f"{_GROUPS[name]} {self._calls}")
            self._calls += 1
            return found

        return timed


class Loop:
    """Decoding loops at all steps of interest, which may be run on as often as wanted."""

    def __init__(self, model: LoopModel, *, quick: bool, seed: int = 0) -> None:
        self.model = model
        steps = all_steps(quick)
        self._draw = torch.Generator().manual_seed(seed)
        self._decoder = Decoder(
            model,
            most_tokens=max(step.tokens for step in steps),
            slots=max(map(_needed_slots, steps)),
            seed=seed,
        )
        ids = torch.zeros(steps[0].tokens, dtype=torch.int64)
        self._decoder.step(steps[0], ids, TorchKernels(), _ignore)
        waiting = Waiting()  # all threads have started
        self.steps = [TimedStep(step, waiting) for step in steps]
        self.empty = Laps(waiting)
        """Steps without kernels."""

    def run(self, until: float) -> None:
        """Every step a few times; those that were disturbed again and again, while time lasts."""
        left = self.steps
        while left:
            for timed in left:
                self._stretch(timed)
            left = [timed for timed in self.steps if timed.whole.num_quiet() < _ENOUGH]
            if time.perf_counter() > until:
                break

    def _stretch(self, timed: TimedStep) -> None:
        """Some steps of a loop: sampled tokens are fed back, and decodes grow by one a step."""
        first, kernels = timed.step, TorchKernels()
        ids = torch.randint(self.model.vocab, (first.tokens,), generator=self._draw)
        self._decoder.step(first, ids, kernels, _ignore)
        for number in range(_TOKENS_A_STRETCH):
            step = LoopStep(
                decodes=first.decodes,
                # As many below the step's context as above.
                context_tokens=max(0, first.context_tokens + number - _TOKENS_A_STRETCH // 2),
                chunk_tokens=first.chunk_tokens,
                prefix_tokens=first.prefix_tokens,
            )
            timed.whole.start()
            sampled = self._decoder.step(step, ids, kernels, _ignore)
            timed.whole.mark("step")
            ids[: first.decodes] = sampled[: first.decodes]
        for _ in range(_IN_PARTS):
            timed.parts.start()
            self._decoder.step(first, ids, kernels, timed.parts.mark)
        by_call: Any = TimedKernels(timed.calls)
        self._decoder.step(first, ids, by_call, _ignore)
        self.empty.start()
        self._decoder.step(first, ids, NoKernels(), _ignore)
        self.empty.mark(first.kind)


def _needed_slots(step: LoopStep) -> int:
    longest = max(
        step.context_tokens + _TOKENS_A_STRETCH + 1, step.prefix_tokens + step.chunk_tokens
    )
    return step.logits * longest


def _ignore(part: str) -> None:
    """Ignore the end of a part."""
