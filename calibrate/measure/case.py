"""One kernel at one shape: what identifies a measurement, and what is needed to take it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Shape = Mapping[str, int | str]
Variant = tuple[str, str, tuple[tuple[str, str], ...]]
"""Family, kernel, and pairs of role and number format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kernel at a shape. ``formats``: number format by role (activations, weights, kv)."""

    family: str
    kernel: str
    formats: Mapping[str, str] = field(default_factory=dict)
    shape: Shape

    @property
    def key(self) -> str:
        """Canonical JSON of all four: equal for equal measurements, on any machine."""
        identity = {
            "family": self.family,
            "kernel": self.kernel,
            "formats": dict(self.formats),
            "shape": dict(self.shape),
        }
        return json.dumps(identity, sort_keys=True, separators=(",", ":"))

    @property
    def variant(self) -> Variant:
        """Family, kernel and formats: what must have been checked before a shape is timed."""
        return self.family, self.kernel, tuple(sorted(self.formats.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A case with its inputs on the device."""

    calls: list[Callable[[], object]]
    """One for each copy of the inputs; each launches the kernel once."""
    error: Callable[[], float] | None
    """Relative error (`relative_error`) against a float32 reference; None: too large to check."""
    flops: float
    num_bytes: float
    """The fewest that the call must read and write."""
    graphable: bool = True
    """Whether a CUDA graph can capture it (nothing in it waits for the host)."""
    host_clock: bool = False
    """Whether the host's time to make the call counts, and not the device's to carry it out."""


def relative_error(out: Any, reference: Any) -> float:
    """||out - reference|| / ||reference|| of two torch tensors; nan and inf stay what they are."""
    difference = (out.double() - reference.double()).norm()
    return float(difference / reference.double().norm())


def num_copies(bytes_per_call: float, l2_bytes: int) -> int:
    """How many copies of a call's inputs no cache holds: three times the L2, in at most 64."""
    most = max(1, min(64, int(8e9 // max(bytes_per_call, 1))))
    return max(1, min(most, int(3 * l2_bytes // max(bytes_per_call, 1)) + 1))
