"""Read logs of a real serving engine: one line per step, one line per request, and the settings.

The format is that of ``KEY_steps.csv.gz``, ``KEY_requests.jsonl.gz`` and ``KEY_info.json``: several
named runs of one engine build in one pair of files, with times in seconds from each run's start.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import TraceError


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request of a run."""

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
    types = get_type_hints(RequestRow)
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                values = json.loads(line)
                run = values["run"]
                row = {name: values[name] for name in types}
            except json.JSONDecodeError as error:
                raise TraceError(f"{where}: not JSON ({error.msg})") from None
            except (KeyError, TypeError) as error:
                raise TraceError(f"{where}: no field {error}") from None
            for name, kind in types.items():
                _check_type(where, name, row[name], kind)
            runs.setdefault(run, []).append(RequestRow(**row))
    for rows in runs.values():
        rows.sort(key=lambda row: row.added)
    return runs


def read_info(path: Path) -> dict[str, Any]:
    """Read the engine's settings (``num_gpu_blocks``, ``hf_config``, ...) as recorded.

    Raises `TraceError` naming the file.
    """
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    if not isinstance(info, dict):
        raise TraceError(f"{path}: an info file holds an object, not {type(info).__name__}")
    return info


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


def _check_type(where: str, name: str, value: Any, kind: type) -> None:
    is_right = isinstance(value, (int, float) if kind is float else kind)
    if kind is not str:
        is_right = is_right and not isinstance(value, bool) and math.isfinite(value)
    if not is_right:
        wanted = {str: "text", int: "a whole number", float: "a number"}[kind]
        raise TraceError(f"{where}: {name} is {value!r}, not {wanted}")


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
