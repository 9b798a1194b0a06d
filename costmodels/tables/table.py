"""One operator table: measured seconds of one operator kind on one GPU, and their origin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from costmodels.hardware.gpus import GpuSpec, load_gpu
from costmodels.tables.kinds import FORMAT_BYTES, KINDS, PEAKS, Precision, TableKind
from costmodels.work import Array
from sim.errors import ScenarioError
from sim.evidence import Source

FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOutError:
    """|relative error| of the table at its own points, each predicted from the others.

    Only points inside the range of the others count. ``None``: there are no such points.
    """

    point_median: float | None
    point_p90: float | None
    curve_median: float | None
    """Median with the point's whole curve left out: the error for a weight shape that was never
    measured."""
    curve_p90: float | None
    num_points: int
    """Points predicted for ``point_median``: all, or a fixed sample of a big table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """|relative error| at a fifth of the shapes, predicted by a table of the other four fifths.

    Shapes outside the range of those do not count: nothing is claimed there. None: none are inside.
    """

    median: float | None
    p90: float | None
    num_points: int
    num_outside: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """Seconds of one exchange: latency_s + bytes / bytes_per_s, by regime of the input's bytes."""

    ranks: int
    regimes: tuple[tuple[float, float, float], ...]
    """(largest bytes, latency_s, bytes_per_s) per regime, ascending; the last has no upper end."""
    median: float
    """Median |relative error| at the points it was fitted to."""
    held_out: float | None
    """Median |relative error| at a fifth of the sizes, of a fit to the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMeta:
    """What the seconds of a table mean and who measured them."""

    kind: TableKind
    gpu: str
    """Name of the GPU in gpus.yaml."""
    engine: str
    engine_version: str
    kernel: str
    precision: Precision = field(default_factory=Precision)
    variant: str = ""
    """What else distinguishes the table (`VARIANTS`): how tokens were spread over experts, which
    op."""
    date: str
    """Date of the measurement, ISO 8601, or ``unknown``."""
    attribution: str
    """Package, owner and file of the measurements."""
    licence: str
    is_cool: bool = False
    """Whether it was timed in bursts too short for a power limit to hold the clock down."""
    launches: str = "unknown"
    """Whether the time includes launches by the host: ``graph`` (none), ``eager`` or
    ``unknown``; ``host``: the device is the host itself, and calls a kernel each time."""
    machines: tuple[Mapping[str, Any], ...] = ()
    """The measuring machines, as they described themselves: device, versions, clocks, date."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Files it was made from: name -> SHA-256 of the bytes."""
    held_out: HeldOutError | None = None
    correctness: float | None = None
    """The kernel's worst relative error against a reference; None: not known."""
    fits: tuple[LinkFit, ...] = ()
    """Latency and bandwidth of an exchange between ranks, by number of ranks."""
    unit: str = "s"
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatorTable:
    """Shape columns of ``meta.kind`` and ``seconds``, float64 ``[n]`` each, sorted by shape.

    Build it with `operator_table`, which checks it.
    """

    meta: TableMeta
    columns: Mapping[str, Array]
    error: LeaveOneOutError | None = None
    gpu: GpuSpec | None = None
    """The device, if it is not in gpus.yaml."""

    def __len__(self) -> int:
        return len(self.columns["seconds"])

    @property
    def seconds(self) -> Array:
        """Measured seconds of one call: ``[n]``."""
        return self.columns["seconds"]

    @property
    def content_hash(self) -> str:
        """SHA-256 of all columns and metadata: any changed timing changes it."""
        digest = hashlib.sha256()
        about = {"meta": asdict(self.meta), "error": self.error and asdict(self.error)}
        digest.update(json.dumps(about, sort_keys=True, separators=(",", ":")).encode())
        for name in sorted(self.columns):
            digest.update(name.encode())
            digest.update(self.columns[name].astype("<f8").tobytes())
        return digest.hexdigest()

    @property
    def device(self) -> GpuSpec:
        """The device it was measured on. Raises `ScenarioError` for an unknown name."""
        return self.gpu or load_gpu(self.meta.gpu)

    def source(self) -> Source:
        """Return the table as one input of a forecast, for reports."""
        meta = self.meta
        formats = "/".join(dict.fromkeys([meta.precision.activations, meta.precision.weights]))
        variant = f", {meta.variant}" if meta.variant else ""
        return Source(
            what=f"{meta.gpu} {meta.kind} table ({meta.engine} {meta.engine_version}, {formats}"
            f"{variant})",
            value=f"{len(self)} points, sha256 {self.content_hash[:12]}",
            label="measured",
            source=f"{meta.attribution}; licence {meta.licence}",
        )


def operator_table(
    meta: TableMeta,
    columns: Mapping[str, Array],
    error: LeaveOneOutError | None = None,
    gpu: GpuSpec | None = None,
) -> OperatorTable:
    """Return a checked table of ``columns``, whose rows may be in any order.

    Raises `ScenarioError` naming the field and the right value: columns missing or unknown, values
    that are not finite and positive (shapes may be 0), a shape given twice, unknown formats.
    """
    where = f"operator table ({meta.kind}, {meta.gpu})"
    wanted = (*KINDS[meta.kind].shape, "seconds")
    if set(columns) != set(wanted):
        raise ScenarioError(f"{where}: columns are {sorted(columns)}, not {sorted(wanted)}")
    for part, number_format in asdict(meta.precision).items():
        known = PEAKS if part == "activations" else FORMAT_BYTES
        if number_format not in known:
            raise ScenarioError(
                f"{where}: precision.{part} is {number_format!r}, not one of {', '.join(known)}"
            )
    arrays = {name: np.asarray(columns[name], np.float64) for name in wanted}
    lengths = {array.shape for array in arrays.values()}
    if len(lengths) != 1 or arrays["seconds"].ndim != 1 or not len(arrays["seconds"]):
        raise ScenarioError(f"{where}: columns must have one equal length, at least 1: {lengths}")
    for name, array in arrays.items():
        smallest = np.nextafter(0.0, 1.0) if name == "seconds" else 0.0
        if not np.all(np.isfinite(array) & (array >= smallest)):
            right = "above 0" if name == "seconds" else "at least 0"
            raise ScenarioError(f"{where}: {name} must be finite and {right}")
    order = np.lexsort([arrays[name] for name in reversed(wanted)])
    arrays = {name: array[order] for name, array in arrays.items()}
    shapes = np.stack([arrays[name] for name in wanted[:-1]])
    repeated = np.flatnonzero((shapes[:, 1:] == shapes[:, :-1]).all(axis=0))
    if repeated.size:
        shape = dict(zip(wanted[:-1], shapes[:, repeated[0]].tolist(), strict=True))
        raise ScenarioError(f"{where}: the shape {shape} is there twice; give one time a shape")
    return OperatorTable(meta=meta, columns=arrays, error=error, gpu=gpu)
