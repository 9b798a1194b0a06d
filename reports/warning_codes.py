"""The codes of a run's warnings: `scenarios.run.warnings` gives them, reports look them up."""

from __future__ import annotations

from typing import Literal

WarningCode = Literal[
    "failed",
    "failed_estimates",
    "few_samples",
    "hot_spot",
    "lost_prefixes",
    "near_saturation",
    "nothing_finished",
    "nothing_to_cache",
    "recomputed",
    "rejected",
    "retry_storm",
    "thin_link",
    "tier_links",
    "unfinished",
    "unstable",
]

GRAVE: frozenset[WarningCode] = frozenset(
    {
        "hot_spot",
        "lost_prefixes",
        "nothing_finished",
        "rejected",
        "retry_storm",
        "thin_link",
        "unfinished",
        "unstable",
    }
)
"""Warnings that change what the figures mean, or say why they are as they are. A load beyond
saturation is not among them: it is in the answer itself."""
