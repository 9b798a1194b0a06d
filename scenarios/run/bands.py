"""Error bands of a run's figures: how far others of their evidence, metric and regime lay from what
was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodels.hardware.uncertainty import Band, outcome_band

BUSY, SATURATED = 0.5, 0.9
"""Shares of the saturation rate from which a run is busy, and saturated."""
_LOAD = {
    "light": "light load",
    "busy": "busy",
    "saturated": "saturated",
    "closed": "a closed loop",
}
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "queue": "queueing"}
_WIDE = 0.3
"""Half-width of a band from which an answer says what to measure."""
_KERNELS = "the GPU's kernels: fleetcast calibrate run"
_ENGINE = "your engine: fleetcast calibrate vllm --model NAME, or calibrate observe --url URL"
_SERVER = "your server: fleetcast calibrate observe --url URL --model NAME"
_REMEDIES = {
    "assumed": _KERNELS,
    "datasheet": _KERNELS,
    "reported": _ENGINE,
    "extrapolated": _ENGINE,
    "fitted": _SERVER,
    "measured": _SERVER,
}


def regime_of(load: float | None, *, is_closed: bool) -> str:
    """Return the regime of a run: closed for a fixed number of requests in flight; else by the
    offered load over the saturation rate, saturated where that is not known."""
    if is_closed:
        return "closed"
    if load is None:
        return "saturated"
    return "light" if load < BUSY else "busy" if load < SATURATED else "saturated"


def bands_of(
    values: Mapping[tuple[str, str], float | None], label: str, regime: str
) -> dict[tuple[str, str], Band]:
    """Return the band of each figure, by metric and statistic, that has a value and one."""
    found = {}
    for (metric, statistic), value in values.items():
        band = outcome_band(label, metric, regime) if value else None
        if band is not None:
            found[metric, statistic] = band
    return found


def add_bands(summary: dict[str, Any], *, is_closed: bool) -> None:
    """Give every figure of a summary its ``band``, a pair of relative changes; None where there is
    none. Where they are wide, a note says what would narrow them."""
    figures = summary["figures"]
    label = next((figure["evidence"] for figure in figures if figure["evidence"]), None)
    if label is None:
        return
    load = (summary.get("saturation") or {}).get("load")
    regime = regime_of(load, is_closed=is_closed)
    values = {(figure["name"], figure["statistic"]): figure["value"] for figure in figures}
    bands = bands_of(values, label, regime)
    for figure in figures:
        band = bands.get((figure["name"], figure["statistic"]))
        figure["band"] = None if band is None else list(band)
    (metric, _), widest = max(
        bands.items(), key=lambda item: item[1].half_width, default=(("", ""), Band(0.0, 0.0))
    )
    if widest.half_width > _WIDE:
        summary["conditions"].setdefault("notes", []).append(
            f"in nine of ten cases, {_NAMES.get(metric, metric)} lay {-widest.low:.0%} below "
            f"to {widest.high:.0%} above forecasts of this kind ({label} evidence, "
            f"{_LOAD[regime]}); to narrow that, measure {_REMEDIES[label]}"
        )
