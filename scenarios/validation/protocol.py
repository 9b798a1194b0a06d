"""Predict a controlled step by driving the pipeline as the measurement drove the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.engine.pipeline import launch_step
from sim.errors import ScenarioError
from sim.fleet.config import PoolConfig
from sim.shape import Clip, SpeculatedSums, StepShape, chunk_shape, decode_shape, joined
from sim.throttle import Heat


class PlannedStep(NamedTuple):
    """One step to run."""

    shape: StepShape
    running: int
    """Requests in the engine when the step is planned, which the time of scheduling depends on."""


class StepTimes(NamedTuple):
    """When a step was planned, and when the host had read its outputs; ns from the first plan."""

    plan_ns: int
    read_ns: int


def run_steps(
    pool: PoolConfig, steps: Sequence[PlannedStep], heat_level: float = 0.0
) -> list[StepTimes]:
    """Run the steps one after another, from an idle engine until it is idle again.

    ``heat_level`` is how far the device is throttled at the start. Raises `ScenarioError` for a
    step beyond the compiled limits.
    """
    cost, depth = pool.cost, 2 if pool.engine.async_scheduling else 1
    in_flight: deque[tuple[int, int, int]] = deque()  # plan, end on the GPU, update
    times: list[StepTimes] = []
    heat = Heat(cost.throttle, heat_level)
    now_ns = gpu_free_ns = 0

    def read_oldest(host_free_ns: int) -> int:
        plan_ns, end_ns, update_ns = in_flight.popleft()
        read_ns = max(host_free_ns, end_ns)
        times.append(StepTimes(plan_ns, read_ns))
        return read_ns + update_ns

    for step in steps:
        price = cost.price(step.shape)
        schedule_ns = cost.schedule_ns(step.running)
        launched_ns, gpu_free_ns, _ = launch_step(now_ns, gpu_free_ns, schedule_ns, price, heat)
        update_ns = cost.update_ns(step.shape.decode_seqs + step.shape.prefill_seqs)
        in_flight.append((now_ns, gpu_free_ns, update_ns))
        now_ns = launched_ns if len(in_flight) < depth else read_oldest(launched_ns)
    while in_flight:  # the scheduler is called once more, and has nothing to plan
        now_ns = read_oldest(now_ns + cost.schedule_ns(steps[-1].running))
    return times


# A decode point is 24 steps, the median over the intervals of the last 20; decodes meet a mixed
# step after 7 steps and again after every 5. Each begins with the last token of its prompts.
_DECODE_STEPS, _DECODE_INTERVALS = 24, 20
_STEPS_BEFORE_MIXED, _STEPS_BETWEEN_MIXED, _MIXED_REPEATS = 7, 5, 4


def predict_ms(
    pool: PoolConfig, kind: str, parameters: dict[str, int], heat_level: float = 0.0
) -> float:
    """Predict the time of a point (see `points.PARAMETERS`) in ms, defined as for the measured one.

    ``heat_level`` is how far the device was throttled when it was measured. Raises `ScenarioError`
    for a step beyond the compiled limits.
    """
    if kind == "decode":
        return _decode_ms(pool, parameters["B"], parameters["L"])
    if kind in ("mixed", "mixed_interval"):
        asked = (parameters["P"], parameters["D"], parameters["L"])
        return _mixed_ms(pool, *asked, heat_level, is_sum=kind == "mixed")
    prompts = [(parameters.get("C", 0), parameters["P"])] * parameters.get("N", 1)
    clips, budget = pool.engine.clip_tokens, pool.engine.step_token_limit
    prefills = [PlannedStep(s, len(prompts)) for s in _prefills(prompts, budget, clips)]
    times = run_steps(pool, prefills, heat_level)
    chunk = parameters.get("chunk")
    if kind == "prefill_latency":
        return (times[-1].read_ns + pool.cost.update_ns(1) - times[0].plan_ns) / 1e6
    if chunk is None:
        return (times[-1].read_ns - times[0].plan_ns) / 1e6
    if chunk > 1:
        return (times[chunk - 1].read_ns - times[chunk - 2].read_ns) / 1e6
    return (times[0].read_ns - times[0].plan_ns) / 1e6


def _decode_ms(pool: PoolConfig, seqs: int, context: int) -> float:
    clips = pool.engine.clip_tokens
    steps = [_last_tokens(seqs, context, clips)]
    steps += [_decode(seqs, context + i, clips) for i in range(1, _DECODE_STEPS + 1)]
    if pool.engine.speculation is not None:
        drafted = seqs * pool.engine.speculation.drafts(seqs)
        sums = SpeculatedSums(draft_tokens=drafted)
        steps = [
            one._replace(shape=one.shape._replace(logits=seqs + drafted, speculated=sums))
            for one in steps
        ]
    return float(np.median(_intervals_ms(run_steps(pool, steps))[-_DECODE_INTERVALS:]))


def _mixed_ms(
    pool: PoolConfig,
    prompt: int,
    decodes: int,
    context: int,
    heat_level: float,
    *,
    is_sum: bool,
) -> float:
    """Return the intervals of the mixed step and the step before it, less one plain decode step;
    without ``is_sum``, the interval of the mixed step alone.

    With async scheduling the outputs before a long step are read late, so only the sum of the two
    is meaningful. The prompt asks for one token, so it does not stay to decode.
    """
    budget = pool.engine.step_token_limit - decodes
    if budget < 1:
        raise ScenarioError(f"{decodes} decodes leave no token of the step to a prompt")
    clips = pool.engine.clip_tokens
    prefills = _prefills([(0, prompt)], budget, clips)
    steps = [_last_tokens(decodes, context, clips)]
    mixed: list[int] = []
    for repeat in range(_MIXED_REPEATS):
        plain = _STEPS_BETWEEN_MIXED if repeat else _STEPS_BEFORE_MIXED
        steps += [_decode(decodes, context + len(steps) + i, clips) for i in range(plain)]
        mixed.append(len(steps))
        for prefill in prefills:
            decode = decode_shape(decodes, context + len(steps), clips)
            steps.append(PlannedStep(joined([decode, prefill]), decodes + 1))
    more = range(_STEPS_BETWEEN_MIXED)
    steps += [_decode(decodes, context + len(steps) + i, clips) for i in more]
    # The interval of step i starts at the read of i - 1.
    intervals_ms = _intervals_ms(run_steps(pool, steps, heat_level))
    if not is_sum:
        return float(np.median([intervals_ms[i - 1] for i in mixed]))
    plain_ms = float(np.median(intervals_ms[1 : _STEPS_BEFORE_MIXED - 1]))
    sums_ms = [intervals_ms[i - 2 : i - 1 + len(prefills)].sum() for i in mixed]
    return float(np.median(sums_ms)) - plain_ms


def _intervals_ms(times: Sequence[StepTimes]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the ms between the outputs of consecutive steps: entry i belongs to step i + 1."""
    return np.diff([step.read_ns for step in times]) / 1e6


def _last_tokens(seqs: int, context: int, clip_tokens: tuple[Clip, ...]) -> PlannedStep:
    """Return a step in which every sequence computes the last token of its prompt, the rest
    cached."""
    return PlannedStep(joined([chunk_shape(context, 1, clip_tokens)] * seqs), seqs)


def _decode(seqs: int, context: int, clip_tokens: tuple[Clip, ...]) -> PlannedStep:
    return PlannedStep(decode_shape(seqs, context, clip_tokens), seqs)


def _prefills(
    prompts: Sequence[tuple[int, int]], budget: int, clip_tokens: tuple[Clip, ...]
) -> list[StepShape]:
    """Pack prompts of (cached, new) tokens into steps of at most ``budget``, cutting them to
    fit."""
    steps: list[StepShape] = []
    chunks: list[StepShape] = []
    left = budget
    for cached, new in prompts:
        done = 0
        while done < new:
            tokens = min(left, new - done)
            samples = done + tokens == new
            chunks.append(chunk_shape(cached + done, tokens, clip_tokens, samples=samples))
            done, left = done + tokens, left - tokens
            if not left:
                steps.append(joined(chunks))
                chunks, left = [], budget
    return [*steps, joined(chunks)] if chunks else steps
