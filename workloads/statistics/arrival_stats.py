"""Statistics of arrivals: rate, burstiness at several scales, drift."""

from __future__ import annotations

import math

import numpy as np

from sim.arrays import Float64, Int64
from sim.clock import NS_PER_S, to_s

IDC_WINDOWS_S = (1, 10, 60, 600)
CV_WINDOW_S = 300
PEAK_WINDOW_S = 600

_LEAST_GAPS = 20
"""Gaps that a window needs for its CV to mean something; that of 20 exponential gaps is off by
0.16."""
_HOUR_S, _DAY_S = 3600, 86_400


def arrival_statistics(arrival_ns: Int64) -> dict[str, float]:
    """Compute statistics of arrivals ``[n]``, in order; NaN if there are too few for one.

    ``span_s`` is from the first arrival to the last, and ``requests_per_s`` is (n - 1) / span.
    ``interarrival_cv`` is the standard deviation over the mean of the gaps.
    ``interarrival_cv_300s_p50`` is its median over 5-minute windows, ``_min`` and ``_max`` its
    range; a drifting rate does not affect these. ``idc_<w>s`` (index of dispersion) is the variance
    over the mean of arrivals counted in whole windows of w seconds; a Poisson process has 1 in all
    of these. ``peak_over_mean_600s`` is the busiest whole 10 minutes over their mean.
    ``hour_swing`` is the busiest hour of the day over the quietest, for traces of a day or more
    (see `rate_by_hour`).
    """
    since_ns = arrival_ns - (arrival_ns[0] if len(arrival_ns) else 0)
    span_s = to_s(int(since_ns[-1])) if len(since_ns) else 0.0
    gaps_ns = np.diff(since_ns)
    cvs = windowed_cvs(since_ns)
    peak = window_counts(since_ns, PEAK_WINDOW_S)
    by_hour = rate_by_hour(since_ns)
    return {
        "num_requests": len(arrival_ns),
        "span_s": span_s,
        "requests_per_s": (len(arrival_ns) - 1) / span_s if span_s else math.nan,
        "interarrival_cv": float(gaps_ns.std() / gaps_ns.mean()) if span_s else math.nan,
        "interarrival_cv_300s_p50": float(np.median(cvs)) if len(cvs) else math.nan,
        "interarrival_cv_300s_min": float(cvs.min()) if len(cvs) else math.nan,
        "interarrival_cv_300s_max": float(cvs.max()) if len(cvs) else math.nan,
        **{f"idc_{w}s": _idc(since_ns, w) for w in IDC_WINDOWS_S},
        "peak_over_mean_600s": float(peak.max() / peak.mean()) if len(peak) > 1 else math.nan,
        "hour_swing": float(by_hour.max() / by_hour.min())
        if len(by_hour) and by_hour.min() > 0
        else math.nan,
    }


def windowed_cvs(since_ns: Int64, window_s: int = CV_WINDOW_S) -> Float64:
    """Return the CV of the gaps between arrivals in each window that has enough of them."""
    _, window = np.unique(since_ns // (window_s * NS_PER_S), return_inverse=True)
    is_inside = window[1:] == window[:-1]
    gaps_s = np.diff(since_ns)[is_inside] / NS_PER_S
    window = window[1:][is_inside]
    count = np.bincount(window)
    is_enough = count >= _LEAST_GAPS
    if not is_enough.any():
        return np.zeros(0)
    count = np.maximum(count, 1)
    mean = np.bincount(window, gaps_s) / count
    variance = np.bincount(window, (gaps_s - mean[window]) ** 2) / count
    is_enough &= mean > 0
    cvs: Float64 = np.sqrt(variance[is_enough]) / mean[is_enough]
    return cvs


def window_counts(since_ns: Int64, window_s: float) -> Int64:
    """Count the arrivals in each whole window from the first arrival on."""
    window_ns = round(window_s * NS_PER_S)
    num_windows = int(since_ns[-1]) // window_ns if len(since_ns) else 0
    edges_ns = np.arange(num_windows + 1) * window_ns
    return np.diff(np.searchsorted(since_ns, edges_ns))


def rate_by_hour(since_ns: Int64) -> Float64:
    """Return ``[24]`` requests per second by hour of the day; hour 0 starts at the first arrival.

    Empty for less than a day. An incomplete last day counts by the time that it covers.
    """
    span_s = to_s(int(since_ns[-1])) if len(since_ns) else 0.0
    if span_s < _DAY_S:
        return np.zeros(0)
    hour = since_ns // (_HOUR_S * NS_PER_S) % 24
    whole_days, left_s = divmod(span_s, _DAY_S)
    covered_s = whole_days * _HOUR_S + np.clip(left_s - np.arange(24) * _HOUR_S, 0, _HOUR_S)
    rate: Float64 = np.bincount(hour, minlength=24) / covered_s
    return rate


def _idc(since_ns: Int64, window_s: int) -> float:
    window_ns = window_s * NS_PER_S
    num_windows = int(since_ns[-1]) // window_ns if len(since_ns) else 0
    if num_windows < 2:
        return math.nan
    # Only occupied windows are counted, so that a long silence costs no memory.
    windows = since_ns // window_ns
    _, counts = np.unique(windows[windows < num_windows], return_counts=True)
    mean = counts.sum() / num_windows
    return float(np.square(counts, dtype=np.float64).sum() / num_windows - mean**2) / float(mean)
