"""What number formats mean for a step: the unit that multiplies, unpacking, and where they lose."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodels.engines.profile import padded_size
from costmodels.formats import load_format
from costmodels.hardware.gemm_paths import (
    PATHS,
    cache_path,
    crossover_rows,
    format_path,
    unpack_seconds,
)
from costmodels.hardware.kernel_curves import core_instructions_per_s
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.operators import token_operators
from sim.errors import ScenarioError


class PrecisionRow(NamedTuple):
    """One format of the layers' matrices, or of the KV cache."""

    part: str
    """``weights`` or ``KV cache``."""
    stored: str
    bits: float
    """Bits per element, scales included."""
    unit: str
    """The compute peak in `GpuSpec` of the unit that multiplies it; empty for a cache."""
    unpack_s: float | None
    """Seconds of unpacking in this step, during which tensor cores wait; None: nothing is known
    to be unpacked, or this device's rate is not known."""
    crossover_rows: int | None
    """Rows (tokens) of a large GEMM from which 16 bits are faster; None: they never are."""
    label: str
    source: str


def precision_rows(
    kernels: KernelTimes, graph_sizes: tuple[int, ...], tokens: int
) -> list[PrecisionRow]:
    """Describe the formats below 16 bits of a model, in a step of ``tokens`` on one rank."""
    gpu, precision = kernels.gpu, kernels.shard.model.precision
    sizes = np.array([float(padded_size(tokens, graph_sizes))])
    operators = token_operators(kernels.shard, sizes)
    found = []
    for name in dict.fromkeys((precision.attention, precision.ffn, precision.experts)):
        stored, multiplied = precision.matrix(name)
        used = [op for op in operators if op.weights == stored.name]
        if stored.bits >= 16 or not used:
            continue
        path = format_path(name)
        seconds = [(op.calls, unpack_seconds(op, gpu)) for op in used]
        times = [calls * float(s[0][0] + s[1][0]) for calls, s in seconds if s is not None]
        found.append(
            PrecisionRow(
                part="weights",
                stored=name,
                bits=float(stored.bits_per_element),
                unit=multiplied.peak,
                unpack_s=sum(times) if times else None,
                crossover_rows=_crossover(kernels, name),
                label=path.label if path else "",
                source=path.source if path else stored.source,
            )
        )
    cache = load_format(precision.kv)
    if cache.bits < 16:
        path = cache_path(precision.kv)
        found.append(
            PrecisionRow(
                part="KV cache",
                stored=precision.kv,
                bits=float(cache.bits_per_element),
                unit="",
                unpack_s=None,
                crossover_rows=None,
                label=path.label if path else "",
                source=path.source if path else cache.source,
            )
        )
    return found


def _crossover(kernels: KernelTimes, weights: str) -> int | None:
    path = format_path(weights)
    if path is None or core_instructions_per_s(kernels.gpu) is None:
        return None
    try:
        return crossover_rows(path, PATHS["FP16"], kernels.gpu)
    except ScenarioError:  # the device has no such unit: the step is refused where it is priced
        return None
