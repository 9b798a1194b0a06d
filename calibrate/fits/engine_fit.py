"""Fit an engine profile and a GPU's efficiency to step logs, alternating between GPU and host
terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from calibrate.fits.engine_rows import CLASSES, ClockError, EngineRows, clock_errors
from costmodels.engines.launches import Launches, eager_launches, piecewise_launches
from costmodels.engines.profile import LAUNCH_TERMS, EngineProfile
from costmodels.hardware.efficiency import Efficiency, FittedRange
from sim.arrays import Float64
from sim.errors import ScenarioError

_QUANTILES = np.clip(np.linspace(0, 1, 11), 0.01, 0.99)
"""Evenly spaced quantiles; the ends exclude the fastest and the slowest launches."""
_FEWEST = 12
"""Least number of launches of a class for which its constant is replaced."""
_SLOW_DECODE, _SLOW_PREFILL = 1.05, 1.3
"""Highest ratio of a step's GPU time to the predicted one that is taken to be possible."""
_LAUNCH_PULL = 0.05
"""Weight of each launch term's distance from its start against the error of one mean launch."""
_OUTLYING = 1.6
"""Launches longer than this multiple of the median are stalls, such as the compilation of a
kernel."""


def fit_host(
    logs: Sequence[EngineRows], clocks: Sequence[ClockError], start: EngineProfile
) -> EngineProfile:
    """Replace the host terms of ``start`` that the logs show, and keep the others.

    ``clocks`` holds the predicted GPU times of each log, which show where the engine waited for the
    host.
    """
    terms: dict[str, Any] = {
        **_line(logs, "schedule_base_s", "schedule_per_running_s"),
        **_line(logs, "update_base_s", "update_per_seq_s"),
    }
    seen = [
        _launches(rows, clock, start.other_delay_s)
        for rows, clock in zip(logs, clocks, strict=True)
    ]
    dense = [place for place, rows in enumerate(logs) if not rows.model.num_moe_layers]
    experts = [place for place, rows in enumerate(logs) if rows.model.num_moe_layers]
    means: list[tuple[Launches, float]] = []
    for launch_class, places, spread in (
        ("piecewise", dense + experts, "piecewise_spread"),
        ("eager", dense, "eager_spread"),
        ("eager", experts, "eager_moe_spread"),
    ):
        counts = piecewise_launches if launch_class == "piecewise" else eager_launches
        relative = [np.empty(0)]
        for place in places:
            usual = _usual(seen[place][launch_class])
            if usual.size >= _FEWEST:
                means.append((counts(logs[place].model), float(usual.mean())))
                relative.append(usual / usual.mean())
        if len(relative) > 1:
            terms[spread] = _spread(np.concatenate(relative))
    return replace(start, **terms | _launch_terms(means, start))


def _usual(launches_s: Float64) -> Float64:
    """Return the launches without stalls."""
    return (
        launches_s[launches_s < _OUTLYING * np.median(launches_s)]
        if launches_s.size
        else launches_s
    )


def _launch_terms(means: Sequence[tuple[Launches, float]], start: EngineProfile) -> dict[str, Any]:
    """Return the times of each kind of launch that explain mean launches of steps, in seconds.

    Relative errors are least, and so are the terms' distances from ``start``, which decide what the
    counts leave open.
    """
    if not means:
        return {}
    begin = np.array([getattr(start, term) for term in LAUNCH_TERMS])
    target = np.array([mean_s for _, mean_s in means])
    shares = np.array([counts for counts, _ in means]) * begin / target[:, None]
    wanted = 1 - start.full_graph_launch_s / target
    pull = _LAUNCH_PULL * np.eye(len(begin))
    factors, _ = nnls(np.vstack([shares, pull]), np.concatenate([wanted, pull.sum(axis=1)]))
    return dict(zip(LAUNCH_TERMS, (begin * factors).tolist(), strict=True))


def _spread(sample: Float64) -> tuple[float, ...]:
    """Return quantiles over their mean, so that launches drawn between them have the right mean."""
    quantiles = np.quantile(sample, _QUANTILES)
    mean = (quantiles[1:] + quantiles[:-1]).mean() / 2
    return tuple((quantiles / mean).tolist())


def _line(logs: Sequence[EngineRows], base: str, slope: str) -> dict[str, float]:
    """Fit a straight line through the median time at each count."""
    scheduling = base.startswith("schedule")
    spent = [
        (rows.launch_from_s - rows.sched_s) if scheduling else (rows.applied_s - rows.out_s)
        for rows in logs
    ]
    counts = [rows.running if scheduling else rows.num_seqs for rows in logs]
    fitted = np.concatenate([rows.is_fitted for rows in logs])
    x, y = np.concatenate(counts)[fitted], np.concatenate(spent)[fitted]
    sizes, place = np.unique(x, return_inverse=True)
    medians = np.array([np.median(y[place == i]) for i in range(sizes.size)])
    weights = np.sqrt(np.bincount(place))
    design = np.column_stack([np.ones(sizes.size), sizes])
    (intercept, per_one), *_ = np.linalg.lstsq(design * weights[:, None], medians * weights)
    return {base: max(float(intercept), 0.0), slope: max(float(per_one), 0.0)}


def _launches(rows: EngineRows, clock: ClockError, delay_s: float) -> dict[str, Float64]:
    """Return the seconds of each visible launch, by class. A launch is visible if the outputs
    read at its end were ready before it."""
    out_s, from_s, gpu_s = rows.out_s, rows.launch_from_s, clock.gpu_s
    prefill = rows.columns["prefill_tokens"] > 0
    # For the launch of step n, n from 2: step n - 1 ended at the latest its GPU time after a decode
    # was read or, with prefill, after it could start or right after its own launch.
    started_s = np.where(prefill[1:-1], from_s[1:-1] + delay_s, np.minimum(out_s[:-2], from_s[2:]))
    slow = np.where(prefill[1:-1], _SLOW_PREFILL, _SLOW_DECODE)
    end_s = np.maximum(started_s + slow * gpu_s[1:-1], np.where(prefill[1:-1], out_s[:-2], 0))
    ready_early = out_s[1:-1] > end_s + 0.5e-3
    early_start = out_s[:-2] <= from_s[2:] + 1e-3
    window_s = out_s[1:-1] - from_s[2:]
    seen = ready_early & early_start & (window_s > 0) & rows.is_fitted[2:]
    return {
        name: window_s[seen & (rows.launch_class[2:] == index)]
        for index, name in enumerate(CLASSES)
    }


_FEWEST_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """Fitted constants, and their errors."""

    profile: EngineProfile
    efficiency: Efficiency
    errors: dict[str, float]
    """Log -> median absolute relative error of a step's GPU span."""


def fit_engine(
    logs: Sequence[EngineRows], profile: EngineProfile, efficiency: Efficiency
) -> EngineFit:
    """Fit to logs of one GPU and engine version, starting from the given constants.

    Host launches can only be distinguished from waiting for the GPU with known GPU times, and GPU
    times only with known launch times. Each is therefore fitted a second time with the other.
    Raises `ScenarioError` if the logs are too short to fit.
    """
    steps = sum(len(rows) for rows in logs)
    if steps < _FEWEST_STEPS:
        raise ScenarioError(
            f"{steps} steps are too few to fit an engine; give logs of {_FEWEST_STEPS} or more"
        )
    # Without async scheduling every step waits for the host, so the GPU is more visible with it.
    overlapped = [rows for rows in logs if rows.async_scheduling] or list(logs)
    fitted = efficiency
    for _ in range(2):
        fitted = fit_efficiency(overlapped, efficiency, profile)
        clocks = [clock_errors(rows, fitted, profile) for rows in logs]
        profile = fit_host(logs, clocks, profile)
    errors = {}
    for rows in logs:
        error = clock_errors(rows, fitted, profile).error
        # all NaN means that the host never visibly waited for the GPU
        if not np.isnan(error).all():
            errors[rows.name] = float(np.nanmedian(np.abs(error)))
    fitted = replace(fitted, fitted_range=_range(logs))
    return EngineFit(profile=profile, efficiency=fitted, errors=errors)


def _range(logs: Sequence[EngineRows]) -> FittedRange:
    """Return the largest step and the longest mean context of all logs."""
    tokens, context = 0.0, 0.0
    for rows in logs:
        c = rows.columns
        tokens = max(tokens, float((c["decode_seqs"] + c["prefill_tokens"]).max()))
        for held, seqs in (
            (c["decode_context_tokens"], c["decode_seqs"]),
            (c["prefill_context_tokens"] + c["prefill_tokens"], c["prefill_seqs"]),
        ):
            context = max(context, float((held / np.maximum(seqs, 1)).max()))
    return FittedRange(int(tokens), int(context))


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
