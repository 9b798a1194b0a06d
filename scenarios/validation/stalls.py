"""Finds the seconds in which the real engine was still compiling kernels; no run repeats those."""

from __future__ import annotations

import numpy as np

from calibrate.fits.engine_log import StepRows

_START_S = 10.0
_LONG_STEP_S = 0.5
_TIMES_LATER_STEPS = 2.0
_RECOVERY = 1.5  # what queued up meanwhile needs about half as long again to drain


def settled_s(steps: StepRows | None, max_num_batched_tokens: int) -> float:
    """From when on a run is scored: 0, or well after the last stall of its first seconds.

    A stall is a step of more than half a second in the first ten, with less than a full batch,
    that takes more than twice as long as any step after them.
    """
    if steps is None or not len(steps):
        return 0.0
    before_s = np.append(0.0, steps.t_out[:-1])
    duration_s = steps.t_out - np.maximum(before_s, steps.t_sched)
    is_early = steps.t_sched < _START_S
    later_s = float(duration_s[~is_early].max(initial=0.0))
    is_stall = (
        is_early
        & (later_s > 0)
        & (duration_s > max(_LONG_STEP_S, _TIMES_LATER_STEPS * later_s))
        & (steps.prefill_tokens + steps.decode_seqs < max_num_batched_tokens)
    )
    return float(steps.t_out[is_stall].max(initial=0.0)) * _RECOVERY
