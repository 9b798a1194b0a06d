"""How far a figure may be off, in the few characters below it, and what they mean."""

from __future__ import annotations

from typing import Any

from reports.words import STATISTICS, band_text, interval_text, is_number


def spread_note(summary: dict[str, Any]) -> str:
    """What stands behind the ``±`` of a summary's figures; empty where they have none."""
    figures = [f for f in summary.get("figures") or [] if is_number(f.get("value"))]
    count = (summary.get("replications") or {}).get("count")
    said = []
    if any(band_text(figure.get("band")) for figure in figures):
        said.append("the 90% band, of model and engine")
    if is_number(count):
        said.append(f"the 95% interval of the mean of {count:,.0f} replications")
    return f"± is {', then '.join(said)}" if said else ""


def spreads(figures: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """The bands, then the intervals, of a metric's ``STATISTICS``; those that it has."""
    both = [_spread(figures.get(name, {})) for name in STATISTICS]
    return [texts for texts in zip(*both, strict=True) if any(texts)]


def spread(figure: dict[str, Any]) -> str:
    """A figure's band, then its interval, each where it has one: ``±7% ±0.4%``."""
    return " ".join(text for text in _spread(figure) if text)


def _spread(figure: dict[str, Any]) -> tuple[str, str]:
    interval = interval_text(figure.get("value"), figure.get("interval"))
    return band_text(figure.get("band")), interval
