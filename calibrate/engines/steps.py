"""Measure the points of a grid: step intervals of an engine core under a fixed batch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from calibrate.engines.driver import CoreDriver, Step
from calibrate.engines.grid import GridPoint

_DECODE_STEPS = 24
_SETTLING_STEPS = 3  # the first intervals of a batch hold the prefill's end
_REPEATS = 5
_MIXED_REPEATS = 4
_STEPS_BETWEEN = 6
_STEPS_BEFORE = 8


def measure_point(driver: CoreDriver, point: GridPoint) -> list[dict[str, Any]]:
    """Measure one point; return its rows of an info file's ``e1``, none if it does not fit.

    The steps themselves stay with the driver, under the point's name.
    """
    if not driver.fits(point.held_tokens, _DECODE_STEPS + 40):
        return []
    driver.clear()
    driver.take_steps()
    driver.run = point.name
    rows: list[dict[str, Any]] = []
    for kind, values_ms in _MEASURES[point.kind](driver, point).items():
        if values_ms:
            rows.append({"kind": kind, **point.parameters, **_statistics(values_ms)})
    return rows


def warm_up(driver: CoreDriver) -> None:
    """Meet the kernels' shapes before anything is timed: compilation takes seconds."""
    driver.run = "warm"
    for tokens in (128, 513, 600, 1024, 1600, 2048, 3072, 4096, 6144, 8192):
        if driver.fits([tokens], 8):
            driver.add(driver.request(tokens, 4))
            driver.drain()
    for batch in (3, 17, 40, 100):
        if driver.fits([20] * batch, 8):
            for request in [driver.request(20, 6) for _ in range(batch)]:
                driver.add(request)
            driver.drain()
    driver.clear()
    driver.take_steps()


def intervals_ms(
    steps: Sequence[Step], chosen: Callable[[Step], bool], *, before: Step | None = None
) -> list[float]:
    """Return how long each chosen step took: from its plan, or from the output before if that came
    later, to its own output."""
    found = []
    for step in steps:
        if step.t_out is not None and chosen(step):
            start_s = step.t_sched
            if before is not None and before.t_out is not None:
                start_s = max(start_s, before.t_out)
            found.append((step.t_out - start_s) * 1e3)
        before = step
    return found


def _decode(driver: CoreDriver, point: GridPoint) -> dict[str, list[float]]:
    batch = [
        driver.request(point.context + 1, _DECODE_STEPS + 1, given_tokens=point.context)
        for _ in range(point.decodes)
    ]
    for request in batch:
        driver.add(request)
    driver.drain()
    alone = intervals_ms(driver.steps, lambda step: _decodes_only(step, point.decodes))
    return {"decode": alone[_SETTLING_STEPS:-1]}


def _prefill(driver: CoreDriver, point: GridPoint) -> dict[str, list[float]]:
    for _ in range(_REPEATS):
        prompts = [driver.request(point.prompt_tokens, 1) for _ in range(point.prompts)]
        for request in prompts:
            driver.add(request)
        driver.drain()
    whole = point.prompts * point.prompt_tokens
    taken = intervals_ms(driver.steps, lambda step: step.prefill_tokens == whole)
    return {point.kind: taken[1:]}


def _extend(driver: CoreDriver, point: GridPoint) -> dict[str, list[float]]:
    tokens = point.context + point.prompt_tokens
    for _ in range(_REPEATS):
        driver.add(driver.request(tokens, 1, given_tokens=point.context))
        driver.drain()
    return {"extend": intervals_ms(driver.steps, lambda step: step.prefill_tokens > 0)[1:]}


def _mixed(driver: CoreDriver, point: GridPoint) -> dict[str, list[float]]:
    """Time a prompt among decodes. The step before it comes out late, so that only the sum of
    both, less a plain decode step, says what the prompt costs."""
    decodes, prompt = point.decodes, point.prompt_tokens
    prompts = [driver.request(prompt, 1) for _ in range(_MIXED_REPEATS)]
    output_tokens = _STEPS_BETWEEN * _MIXED_REPEATS + _STEPS_BEFORE + _STEPS_BETWEEN
    given = point.context
    for request in [
        driver.request(given + 1, output_tokens, given_tokens=given) for _ in range(decodes)
    ]:
        driver.add(request)
    for _ in range(_STEPS_BEFORE):
        driver.step()
    for request in prompts:
        driver.add(request)
        for _ in range(_STEPS_BETWEEN):
            driver.step()
    driver.drain()
    steps = driver.steps
    alone = intervals_ms(steps, lambda step: _decodes_only(step, decodes))
    plain_ms = statistics.median(alone) if alone else 0.0
    pairs = [
        (mixed.t_out - first.t_out) * 1e3 - plain_ms
        for first, late, mixed in zip(steps, steps[1:], steps[2:], strict=False)
        if first.t_out is not None
        and mixed.t_out is not None
        and late.prefill_tokens == 0
        and (mixed.decode_seqs, mixed.prefill_tokens) == (decodes, prompt)
    ]
    return {"mixed": pairs}


_MEASURES: dict[str, Callable[[CoreDriver, GridPoint], dict[str, list[float]]]] = {
    "decode": _decode,
    "prefill": _prefill,
    "multiprefill": _prefill,
    "extend": _extend,
    "mixed": _mixed,
}


def _decodes_only(step: Step, seqs: int) -> bool:
    return step.decode_seqs == seqs and step.prefill_tokens == 0


def _statistics(values_ms: list[float]) -> dict[str, float]:
    return {
        "n": len(values_ms),
        "ms_median": round(statistics.median(values_ms), 4),
        "ms_min": round(min(values_ms), 4),
        "ms_max": round(max(values_ms), 4),
    }
