"""Files of prompt and output lengths without times, as simulators and benchmarks ship them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workloads.readers.csv_table import Column, read_csv, require, whole
from workloads.readers.format import Format, has_only
from workloads.readers.recording import Recording, record

COLUMNS = ("input_tokens", "output_tokens")


def read_lengths(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read a CSV of ``input_tokens,output_tokens``, gzip or plain; the order of rows is kept.

    The file has no times, so all requests arrive at 0 until a rate is given. Raises TraceError,
    naming file, line and column; with ``skip_bad_rows`` bad rows are counted instead.
    """

    def columns_of(names: list[str]) -> Sequence[Column]:
        require(names, COLUMNS, ",".join(COLUMNS))
        return whole("input_tokens", 1), whole("output_tokens")

    table = read_csv(path, columns_of, skip_bad_rows=skip_bad_rows)
    prompt_tokens = table.values["input_tokens"]
    return record(
        np.zeros(len(prompt_tokens), np.int64),
        prompt_tokens,
        table.values["output_tokens"],
        source=f"{path.name} (lengths)",
        clock="none",
        skipped_rows=table.skipped_rows,
        notes=table.notes,
    )


FORMAT = Format(
    name="lengths",
    description=f"CSV with just {','.join(COLUMNS)}: no times",
    read=read_lengths,
    matches_header=has_only(COLUMNS),
)
