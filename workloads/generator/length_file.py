"""Lengths of prompts and outputs from a file, to draw from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sim.arrays import Int64
from sim.errors import TraceError
from workloads.generator.lengths import Observed
from workloads.readers.csv_columns import whole
from workloads.readers.csv_table import read_csv, split_row
from workloads.readers.detect import read_trace
from workloads.readers.rows import open_text

_COLUMNS = ("input_tokens", "output_tokens")


def read_lengths(path: str | Path, *, paired: bool) -> tuple[Observed, Observed]:
    """Prompt and output lengths of a CSV file with ``input_tokens`` and ``output_tokens``, or of
    any trace.

    ``paired``: ordered by input, so that the same uniform draws both of one row; else each by
    itself. Raises TraceError for a file that cannot be read or has no rows.
    """
    path = Path(path)
    if _has_columns(path):
        columns = [whole(name, minimum) for name, minimum in zip(_COLUMNS, (1, 0), strict=True)]
        table = read_csv(path, lambda _: columns, skip_bad_rows=False)
        prompt, output = (table.values[name] for name in _COLUMNS)
    else:
        trace = read_trace(path)
        prompt, output = trace.prompt_tokens, trace.output_tokens
    if not len(prompt):
        raise TraceError(f"{path}: there are no rows to draw lengths from")
    if paired:
        order: Int64 = np.lexsort((output, prompt))
        return Observed(prompt[order]), Observed(output[order])
    return Observed(np.sort(prompt)), Observed(np.sort(output))


def _has_columns(path: Path) -> bool:
    with open_text(path) as text:
        return set(_COLUMNS) <= set(split_row(text.readline()))
