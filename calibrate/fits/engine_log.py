"""Read logs of a real serving engine: one line per step, one line per request, and the settings.

The format is that of ``KEY_steps.csv.gz``, ``KEY_requests.jsonl.gz`` and ``KEY_info.json``: several
named runs of one engine build in one pair of files, with times in seconds from each run's start.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from sim.arrays import Float64, Int64
from sim.errors import TraceError, first_fault


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """Steps of one run, in order; every array has one entry per step."""

    t_sched: Float64
    """Time the scheduler was called. The other three are the times it returned, the outputs were
    read, and the scheduler was updated with them."""
    t_sched_end: Float64
    t_out: Float64
    t_upd_end: Float64
    prefill_tokens: Int64
    prefill_reqs: Int64
    decode_seqs: Int64
    ctx_decode_sum: Int64
    """Tokens in the KV cache before the step, summed over the decodes."""
    ctx_prefill_start_sum: Int64
    attn_pairs_prefill: Int64
    running: Int64
    """Running requests after scheduling, as are ``waiting`` and ``free_blocks``."""
    waiting: Int64
    preempted: Int64
    free_blocks: Int64

    def __len__(self) -> int:
        return len(self.t_sched)


class RequestRow(BaseModel):
    """One request of a run."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    run: str
    arrival: float
    """Planned arrival; ``added`` is the time the request was handed to the engine."""
    added: float
    prompt: int
    planned_out: int
    out: int
    cached: int
    """Prompt tokens found in the prefix cache."""
    group: str
    """What the prompt shares with others: system prompt / conversation / turn, or nothing."""
    preempt: int
    first: float
    finish: float


def read_step_runs(path: Path) -> dict[str, StepRows]:
    """Read the steps by run name. Raises `TraceError` naming the file, line and field."""
    types = get_type_hints(StepRows)
    columns: dict[str, dict[str, list[float]]] = {}
    with _opened(path) as file:
        reader = csv.DictReader(file)
        missing = {"run", *types} - set(reader.fieldnames or ())
        if missing:
            raise TraceError(f"{path}: missing columns {', '.join(sorted(missing))}")
        for row in reader:
            if all(row[name] is None for name in types):
                continue  # a block of no steps
            run = columns.setdefault(row["run"], {name: [] for name in types})
            for name in types:
                try:
                    run[name].append(_finite(float(row[name])))
                except (TypeError, ValueError):
                    raise TraceError(
                        f"{path}, line {reader.line_num}: {name} is {row[name]!r}, not a number"
                    ) from None
    return {name: _step_rows(run) for name, run in columns.items()}


def read_request_runs(path: Path) -> dict[str, list[RequestRow]]:
    """Read the requests by run name, in the order they were handed to the engine. Raises
    `TraceError` naming the file, line and field."""
    runs: dict[str, list[RequestRow]] = {}
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                row = RequestRow.model_validate_json(line)
            except ValidationError as error:
                raise TraceError(f"{path}, line {number}: {first_fault(error)}") from None
            runs.setdefault(row.run, []).append(row)
    for rows in runs.values():
        rows.sort(key=lambda row: row.added)
    return runs


def _step_rows(columns: dict[str, list[float]]) -> StepRows:
    arrays: dict[str, Any] = {
        name: np.array(values, np.float64 if name.startswith("t_") else np.int64)
        for name, values in columns.items()
    }
    return StepRows(**arrays)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError
    return value


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Yield a file as text, unzipped if necessary. Raises `TraceError` if its bytes cannot be
    decoded."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with (gzip.open if zipped else open)(path, "rt", encoding="utf-8") as text:
            yield text
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except (EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
