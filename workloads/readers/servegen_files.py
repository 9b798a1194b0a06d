"""ServeGen: recorded rates, burstiness and lengths of the clients of a model service.

Source: alibaba/ServeGen (Apache-2.0), arXiv 2505.09999. A row holds a client's rate in 600 s; a
second file holds a histogram of lengths for each client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.errors import TraceError, shown
from workloads.readers.csv_table import Column, number, read_csv, require, text, whole
from workloads.readers.format import Format, has_all
from workloads.readers.rows import companion

BIN_S = 600
COLUMNS = ("model", "client", "bin", "rate", "cv", "pat", "shape")
_HISTOGRAM_COLUMNS = ("model", "client", "field", "lo", "p")
_EDGES = np.unique(np.concatenate(([0], np.rint(np.geomspace(1, 262_144, 73))))).astype(np.int64)
"""Edges of the histogram's bins; 0 is a bin of its own."""
_MOST_BINS = 1_000_000
_MOST_RATE = 1e6

Histogram = tuple[Int64, Int64, NDArray[np.float64]]
"""Lower edges, upper edges (excluded) and cumulative probability of the bins of a length."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientRates:
    """Rates and lengths of the clients of one service; arrays ``[m]`` have a row per client and
    bin."""

    subset: str
    client: Int64
    bin: Int64
    """Number of the 600 s of the recording."""
    rate_per_s: NDArray[np.float64]
    shape: NDArray[np.float64]
    """Shape of the gamma or Weibull distribution of the gaps between arrivals."""
    is_weibull: NDArray[np.bool_]
    lengths: dict[int, dict[str, Histogram]]
    """Histograms by client and field, such as ``input_tokens``, of clients with recorded
    lengths."""
    source: str
    skipped_rows: int = 0

    @property
    def duration_s(self) -> float:
        """Length of the recording, in seconds."""
        return (int(self.bin.max()) + 1) * BIN_S if len(self.bin) else 0.0


def read_client_rates(
    path: Path, subset: str | None = None, *, skip_bad_rows: bool = False
) -> ClientRates:
    """Read the rates of one ``model`` of the file (the only one, if there is one).

    Lengths are read from the file of the same name with ``length_hist`` for ``rates``. Raises
    TraceError, naming file, line and column, and if the file holds several models and ``subset``
    names none of them; with ``skip_bad_rows`` bad rows are counted instead.
    """

    def columns_of(names: list[str]) -> Sequence[Column]:
        require(names, COLUMNS, ",".join(COLUMNS))
        return (
            text("model"),
            whole("client"),
            whole("bin", 0, _MOST_BINS),
            number("rate", 0, _MOST_RATE),
            number("cv", 0, 1e9),
            text("pat", ("G", "W")),
            number("shape", 1e-6, 1e9),
        )

    table = read_csv(
        path,
        columns_of,
        skip_bad_rows=skip_bad_rows,
        starts_with="" if subset is None else f"{subset},",
    )
    if not len(table.line) and subset is not None:  # read all models, to name them
        table = read_csv(path, columns_of, skip_bad_rows=skip_bad_rows)
    values = table.values
    models = np.array(values["model"], str)
    known = sorted(set(models.tolist()))
    if not known:
        raise TraceError(f"{path}: no rates; expected rows of {','.join(COLUMNS)}")
    if subset is None and len(known) > 1:
        raise TraceError(
            f"{path}: holds the clients of {', '.join(known)}; choose one by "
            "workload.trace.subset (trace inspect: --subset)"
        )
    chosen = known[0] if subset is None else subset
    if chosen not in known:
        raise TraceError(
            f"{path}: workload.trace.subset is {shown(chosen)}; it holds {', '.join(known)}"
        )
    rows = np.flatnonzero(models == chosen)
    return ClientRates(
        subset=chosen,
        client=values["client"][rows],
        bin=values["bin"][rows],
        rate_per_s=values["rate"][rows],
        shape=values["shape"][rows],
        is_weibull=np.array(values["pat"], str)[rows] == "W",
        lengths=_read_histograms(_lengths_file(path), chosen),
        source=f"{path.name} (servegen {chosen})",
        skipped_rows=table.skipped_rows,
    )


def _read_histograms(path: Path, subset: str) -> dict[int, dict[str, Histogram]]:
    def columns_of(names: list[str]) -> Sequence[Column]:
        require(names, _HISTOGRAM_COLUMNS, ",".join(_HISTOGRAM_COLUMNS))
        return (
            text("model"),
            whole("client"),
            text("field"),
            whole("lo", 0, int(_EDGES[-2])),
            number("p", 0, 1),
        )

    values = read_csv(path, columns_of, skip_bad_rows=False, starts_with=f"{subset},").values
    rows = np.flatnonzero(np.array(values["model"], str) == subset)
    bins = np.searchsorted(_EDGES, values["lo"])
    odd = np.flatnonzero(_EDGES[bins] != values["lo"])
    if len(odd):
        raise TraceError(f"{path}: lo is {values['lo'][odd[0]]}; expected an edge of the histogram")
    found: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for row in rows.tolist():
        key = (int(values["client"][row]), values["field"][row])
        found.setdefault(key, []).append((int(bins[row]), float(values["p"][row])))
    lengths: dict[int, dict[str, Histogram]] = {}
    for (client, field), pairs in found.items():
        at, p = (np.array(column) for column in zip(*sorted(pairs), strict=True))
        if p.sum() <= 0:
            raise TraceError(f"{path}: client {client}, {field}: the probabilities sum to 0")
        fields = lengths.setdefault(client, {})
        fields[field] = (_EDGES[at], _EDGES[at + 1], np.cumsum(p) / p.sum())
    return {client: fields for client, fields in lengths.items() if _is_complete(fields)}


def _is_complete(fields: dict[str, Any]) -> bool:
    return "output_tokens" in fields and ("input_tokens" in fields or "text_tokens" in fields)


def _lengths_file(path: Path) -> Path:
    return companion(path, "rates", "length_hist")


FORMAT = Format(
    name="servegen",
    description=f"CSV with {','.join(COLUMNS)}: clients' rates in 600 s; lengths in "
    "the *length_hist.csv beside it",
    read=None,  # rates, from which `workloads.servegen` draws requests
    matches_header=has_all(COLUMNS),
    beside=lambda path: [_lengths_file(path)],
    companions=(
        _HISTOGRAM_COLUMNS,
        ("model", "client", "rate", "cv_med"),
        ("model", "client", "t", "field", "mean"),
    ),
    example="servegen_rates.csv",
)
