"""Fit the efficiency constants of a GPU to the steps of a log that the GPU visibly bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrate.fits.engine_rows import EngineRows, clock_errors
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from sim.arrays import Float64

_FITTED = (
    "gemm_compute",
    "gemm_half_rows",
    "gemm_memory",
    "gemm_fixed_s",
    "attention_compute",
    "attention_memory",
    "attention_imbalance",
    "attention_fixed_s",
    "elementwise_memory",
    "elementwise_fixed_s",
    "sampling_bytes_per_logit",
    "sampling_fixed_s",
)
_FITTED_MOE = ("grouped_compute", "grouped_half_rows", "grouped_memory", "grouped_fixed_s")
_FITTED_THROTTLE = ("throttle_slowdown", "throttle_onset_s", "throttle_recovery_s")
_FIRST_SLOWDOWN = 0.2
"""Start of the search on a device whose throttling is unknown."""
_FARTHEST = 1.2
"""Natural logarithm of the largest factor by which a constant may move from its start: 3.3
times."""
_FAIR_ERROR = 0.01
"""Errors beyond this count less and less, because a log has stalls that no constant explains."""
_LARGEST_ERROR = 0.5
_FEW = 8
"""Number of steps of a kind below which the kind has less than full weight."""
_PULL = 0.02
"""Weight of staying near the start of the search, which decides what the log leaves open."""
_LONG_PREFILL_TOKENS = 1000


def fit_efficiency(
    logs: Sequence[EngineRows], start: Efficiency, profile: EngineProfile
) -> Efficiency:
    """Return the constants that bring predicted GPU spans closest to the logged ones.

    Every kind of step (prefill or decode, by size and context) has the same weight, regardless of
    its number of steps. ``start`` gives the first guess and the constants that are not fitted.
    """
    from scipy.optimize import least_squares

    names = list(_FITTED)
    if any(rows.model.num_moe_layers for rows in logs):
        names += _FITTED_MOE
    if any((rows.columns["prefill_tokens"] > _LONG_PREFILL_TOKENS).any() for rows in logs):
        names += _FITTED_THROTTLE
        if not start.throttle_slowdown:
            start = replace(start, throttle_slowdown=_FIRST_SLOWDOWN)
    first = np.log([getattr(start, name) for name in names])
    is_share = np.array([name.endswith(("_compute", "_memory")) for name in names])
    highest = np.where(is_share, np.minimum(first + _FARTHEST, 0.0), first + _FARTHEST)

    def constants(point: Float64) -> Efficiency:
        values = dict(zip(names, np.exp(point).tolist(), strict=True))
        return replace(start, **values)

    weights = [_weights(rows, clock_errors(rows, start, profile).error) for rows in logs]

    def residuals(point: Float64) -> Float64:
        efficiency = constants(point)
        parts = [
            _bounded(clock_errors(rows, efficiency, profile).error) * weight
            for rows, weight in zip(logs, weights, strict=True)
        ]
        return np.concatenate([*parts, (point - first) * _PULL])

    found = least_squares(
        residuals,
        first,
        bounds=(first - _FARTHEST, np.maximum(highest, first + 1e-3)),
        loss="soft_l1",
        f_scale=_FAIR_ERROR,
        diff_step=0.01,
        max_nfev=40,
    )
    return constants(found.x)


def _bounded(error: Float64) -> Float64:
    """Return errors as logarithms, so that half and twice weigh the same. An unknown error is 0."""
    logs = np.log1p(np.maximum(np.nan_to_num(error), -0.9))
    bounded: Float64 = np.clip(logs, -_LARGEST_ERROR, _LARGEST_ERROR)
    return bounded


def _weights(rows: EngineRows, error: Float64) -> Float64:
    kinds = _kinds(rows)
    prefill = rows.columns["prefill_tokens"]
    # The host's launches, not the GPU, determine how long small prefills without decodes take.
    small = (prefill > 0) & (prefill <= 256) & (rows.columns["decode_seqs"] == 0)
    seen = ~np.isnan(error) & ~small & rows.is_fitted
    weights = np.zeros(len(rows))
    if seen.any():
        _, place, counts = np.unique(kinds[seen], return_inverse=True, return_counts=True)
        weights[seen] = 1 / np.sqrt(np.maximum(counts[place], _FEW))
        weights[prefill > _LONG_PREFILL_TOKENS] *= 2
    return weights


def _kinds(rows: EngineRows) -> NDArray[np.int64]:
    """Number the kinds of steps: prefill or decode, by size and context in powers of 2 and 4."""
    prefill, decodes = rows.columns["prefill_tokens"], rows.columns["decode_seqs"]
    context = rows.columns["decode_context_tokens"] / np.maximum(decodes, 1)
    size = np.log2(np.maximum(np.where(prefill > 0, prefill, decodes), 1)).astype(np.int64)
    depth = (np.log2(np.maximum(context, 1)) / 2).astype(np.int64)
    return np.where(prefill > 0, 10_000, 0) + size * 100 + depth
