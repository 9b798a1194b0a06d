"""How a capacity search writes loads, shares and targets."""

from __future__ import annotations

from typing import Any

from reports.words import LATENCY_LABELS, significant, target

Content = dict[str, Any]
"""What capacity.json holds."""


def targets_text(content: Content) -> str:
    """``TTFT ≤ 500 ms, TPOT ≤ 20 ms``."""
    targets = content["question"]["targets"]
    return ", ".join(f"{LATENCY_LABELS[name]} ≤ {target(value)}" for name, value in targets.items())


def amount(content: Content, level: float) -> str:
    """A load with its unit."""
    return f"{level_text(content, level)} {content['question']['unit']}"


def level_text(content: Content, level: float) -> str:
    """A load without its unit: whole users, or a rate in three digits."""
    if content["question"]["vary"] in ("users", "max_concurrency"):
        return f"{level:,.0f}"
    return significant(level)


def share_text(share: float) -> str:
    """A share in the digits an SLO needs: 99%, 98.84%, 99.9%."""
    if share in (0, 1):
        return f"{share:.0%}"
    text = f"{min(max(share * 100, 0.01), 99.99):.2f}".rstrip("0").rstrip(".")
    return f"{text}%"
