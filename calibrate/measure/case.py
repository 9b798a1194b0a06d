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
    """A kernel at a shape. ``formats`` maps roles (activations, weights, kv) to number formats."""

    family: str
    kernel: str
    formats: Mapping[str, str] = field(default_factory=dict)
    shape: Shape

    @property
    def key(self) -> str:
        """Return canonical JSON of all four fields, which is equal for equal measurements on any
        machine."""
        identity = {
            "family": self.family,
            "kernel": self.kernel,
            "formats": dict(self.formats),
            "shape": dict(self.shape),
        }
        return json.dumps(identity, sort_keys=True, separators=(",", ":"))

    @property
    def variant(self) -> Variant:
        """Return family, kernel and formats, which must have been checked before a shape is
        timed."""
        return self.family, self.kernel, tuple(sorted(self.formats.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A case with its inputs on the device."""

    calls: list[Callable[[], object]]
    """One call per copy of the inputs; each launches the kernel once."""
    error: Callable[[], float] | None
    """Relative error (`relative_error`) against a float32 reference; None if too large to check."""
    flops: float
    num_bytes: float
    """Least number of bytes that the call must read and write."""
    graphable: bool = True
    """Whether a CUDA graph can capture the call, which requires that nothing in it waits for the
    host."""
    host_clock: bool = False
    """Whether to time the host's work to make the call instead of the device's execution."""


def relative_error(out: Any, reference: Any) -> float:
    """Return ||out - reference|| / ||reference|| of two torch tensors; nan and inf are kept."""
    difference = (out.double() - reference.double()).norm()
    return float(difference / reference.double().norm())


def num_copies(bytes_per_call: float, l2_bytes: int) -> int:
    """Return how many copies of a call's inputs exceed any cache: three times the L2, but at
    most 64."""
    most = max(1, min(64, int(8e9 // max(bytes_per_call, 1))))
    return max(1, min(most, int(3 * l2_bytes // max(bytes_per_call, 1)) + 1))
