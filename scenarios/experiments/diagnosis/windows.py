"""Windows of time: what was measured and replayed in each, and what of it traffic explains."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from scenarios.experiments.diagnosis.traffic import Traffic
from sim.arrays import Float64, Int64
from sim.errors import ScenarioError

QUIET, TRAFFIC, PARTLY, OTHER = "as usual", "traffic", "traffic in part", "not traffic"
RAISED = 1.5
"""A window is raised from this many times the median window on."""
_LEAST_S = 0.005
"""Differences below this are nobody's trouble."""
_EXPLAINED, _IN_PART = 0.6, 0.25
_UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)
_WINDOWS = 40


def window_of(text: str | None, span_s: float) -> float:
    """Return the length of a window in seconds, from text such as ``5min``, ``30s`` or ``1h``.

    None chooses one that gives up to 40 windows. Raises `ScenarioError`.
    """
    if text is None:
        return float(next((s for s in _STEPS_S if span_s / s <= _WINDOWS), _STEPS_S[-1]))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = "s" if match is None else match[2].removesuffix("utes").removesuffix("ute") or "s"
    if match is None or unit not in _UNITS_S or not float(match[1]):
        raise ScenarioError(f"--window {text}: write it as 5min, 30s or 1h")
    return float(match[1]) * _UNITS_S[unit]


def statistic_for(counts: Int64) -> str:
    """Return the highest percentile that windows with so many requests have."""
    typical = float(np.median(counts[counts > 0])) if (counts > 0).any() else 0.0
    return "p99" if typical >= 100 else "p90" if typical >= 20 else "p50"


def by_window(values: Float64, window: Int64, count: int, statistic: str) -> Float64:
    """Return ``[count]`` the percentile of the values in each window, by nearest rank; NaN where
    there are none."""
    share = int(statistic.removeprefix("p")) / 100
    found = np.full(count, np.nan)
    known = np.isfinite(values)
    for index in np.unique(window[known]):
        inside = np.sort(values[known & (window == index)])
        found[index] = inside[max(0, int(np.ceil(share * len(inside))) - 1)]
    return found


def usual(measured: Float64) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which windows are as usual: not above the median one by a quarter."""
    with np.errstate(invalid="ignore"):
        return np.isfinite(measured) & (measured <= 1.25 * np.nanmedian(measured))


def bias_of(measured: Float64, replayed: Float64) -> float:
    """Return how many times slower the server is than its replay, in windows that are as usual:
    what separates a wrong model from a bad window."""
    kept = usual(measured) & np.isfinite(replayed) & (replayed > 0)
    return float(np.median(measured[kept] / replayed[kept])) if kept.any() else 1.0


def verdicts(measured: Float64, expected: Float64) -> list[tuple[str, float | None]]:
    """Return each window's verdict, and the share of its excess over usual windows that is in
    ``expected``, the replay times its bias (None: it is as usual)."""
    at_ease = usual(measured)
    base = float(np.nanmedian(measured))
    known = expected[at_ease & np.isfinite(expected)]
    base_expected = float(np.median(known)) if len(known) else base
    found: list[tuple[str, float | None]] = []
    for was, should in zip(measured, expected, strict=True):
        if not was > max(RAISED * base, base + _LEAST_S):
            found.append((QUIET, None))
            continue
        share = (should - base_expected) / (was - base) if np.isfinite(should) else 0.0
        share = float(np.clip(share, 0.0, 1.0))
        word = TRAFFIC if share >= _EXPLAINED else PARTLY if share >= _IN_PART else OTHER
        found.append((word, share))
    return found


def loads(traffic: Traffic, window: Int64, count: int, window_s: float) -> list[dict[str, Any]]:
    """Return the traffic of each window: requests and tokens per second, and its longest prompt."""
    rows = []
    for index in range(count):
        inside = window == index
        prompts, outputs = traffic.prompt_tokens[inside], traffic.output_tokens[inside]
        known = bool(inside.any()) and bool(
            np.isfinite(prompts).all() and np.isfinite(outputs).all()
        )
        rows.append(
            {
                "requests": int(inside.sum()),
                "requests_per_s": float(inside.sum() / window_s),
                "prompt_tokens_per_s": float(prompts.sum() / window_s) if known else None,
                "output_tokens_per_s": float(outputs.sum() / window_s) if known else None,
                "longest_prompt": int(prompts.max()) if known else None,
            }
        )
    return rows
