"""Published kernels: attention by generation and length, latent attention, GEMMs, all-to-all.

The points are in ``kernel_curves.yaml``, each with its source. Between and beyond them a kernel's
rate follows most / (1 + half / tokens): short sequences leave tiles and pipelines half empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.datafile import find_name, read_data
from costmodels.hardware.gpus import GpuSpec, load_gpu

_FILE = "hardware/kernel_curves.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """A rate that grows with the number of tokens towards ``most``."""

    most: float
    half_tokens: float
    """Tokens at which half of ``most`` is reached."""

    def at(self, tokens: float) -> float:
        """Return the rate at ``tokens`` tokens."""
        return self.most / (1 + self.half_tokens / tokens)


def fit_saturation(points: Mapping[int, float]) -> Saturation:
    """Fit a curve through points (tokens -> rate), by least squares on the times per unit.

    Two points determine it exactly. Raises ValueError for fewer.
    """
    if len(points) < 2:
        raise ValueError("a curve needs two points")
    tokens = np.array(list(points), dtype=float)
    rates = np.array(list(points.values()), dtype=float)
    # 1 / rate = 1 / most + half / (most tokens); weights make relative errors count.
    columns = np.stack([np.ones_like(tokens), 1 / tokens], axis=1) * rates[:, None]
    (inverse, slope), *_ = np.linalg.lstsq(columns, np.ones_like(rates), rcond=None)
    return Saturation(most=float(1 / inverse), half_tokens=float(slope / inverse))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCurve:
    """Share of the 16-bit peak that a generation of attention kernels reaches."""

    name: str
    device: str
    head_dim: int
    points: Mapping[int, float]
    """Tokens of a sequence -> share of the device's peak, as published."""
    source: str

    def share(self, tokens: int, head_dim: int = 128) -> tuple[float, str]:
        """Return the share at a length, and its evidence label.

        The label is ``fitted`` between the published lengths, ``extrapolated`` beyond them and for
        another head_dim: no publication here says how that changes the share.
        """
        inside = min(self.points) <= tokens <= max(self.points) and head_dim == self.head_dim
        share = fit_saturation(self.points).at(tokens)
        return share, "fitted" if inside else "extrapolated"


def attention_curve(generation: str) -> AttentionCurve:
    """Return the curve of a generation: fa2 or fa3. Raises `ScenarioError` for another name."""
    rows = read_data(_FILE)["attention"]
    row = rows[find_name("attention kernel", generation, {name: name for name in rows})]
    peak = getattr(load_gpu(row["device"]), row["peak"])
    points = {tokens: rate * 1e12 / peak for tokens, rate in row["tflop_per_s"].items()}
    return AttentionCurve(
        name=generation,
        device=row["device"],
        head_dim=row["head_dim"],
        points=points,
        source=row["source"],
    )


def attention_shares(generation: str) -> tuple[float, float]:
    """Return the lowest and highest published share of a generation known as a range: fa1, fa2."""
    rows = read_data(_FILE)["attention_shares"]
    row = rows[find_name("attention kernel", generation, {name: name for name in rows})]
    return row["lowest"], row["highest"]


def core_instructions_per_s(gpu: GpuSpec) -> float | None:
    """Return the instructions per second beside the tensor cores; None if not known."""
    found: float | None = read_data(_FILE)["core_instructions_per_s"].get(gpu.name)
    return found
