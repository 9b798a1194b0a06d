"""How well a number is known: the labels, their order, and a value that carries its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

# From best to worst.
LABELS = ("measured", "fitted", "extrapolated", "datasheet", "reported", "assumed")
_LEAST_SHARE = 0.05


class Source(TypedDict):
    """One number that went into a forecast, with its evidence, for reports."""

    what: str
    value: object
    label: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why a number is believed: its label and where it was read."""

    label: str
    source: str

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise ValueError(f"unknown evidence label {self.label!r}; labels: {', '.join(LABELS)}")


def weakest(labels: Iterable[str]) -> str:
    """Return the worst of ``labels``, or ``measured`` if there are none."""
    return max(labels, key=LABELS.index, default=LABELS[0])


def weakest_share(shares: Mapping[str, float]) -> str | None:
    """The worst label that carries at least a twentieth of the whole; None if none does."""
    return next((label for label in reversed(LABELS) if shares.get(label, 0) >= _LEAST_SHARE), None)
