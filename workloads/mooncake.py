"""Mooncake traces: JSON lines with lengths and prefix-chained block ids.

Source: kvcache-ai/Mooncake (Apache-2.0), Qin et al., FAST 2025.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from sim.errors import TraceError
from sim.request_table import Int64, RequestTable
from workloads.rows import (
    MAX_TIME_S,
    ParsedRow,
    open_text,
    read_rows,
    shown,
    to_table,
    whole_number,
)

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")

_NS_PER_MS = 1_000_000
_MAX_ID = 2**63 - 1


def read_mooncake(
    path: Path, *, skip_bad_rows: bool = False, spread_ticks: bool = True
) -> RequestTable:
    """Read a Mooncake JSONL file, gzip or plain.

    A row is ``{"timestamp": ms, "input_length": .., "output_length": .., "hash_ids": [..]}`` with
    one id for each 512 tokens of the prompt begun; other keys are ignored. Arrivals count from the
    earliest row, spread inside its clock's ticks unless told otherwise (see `spread_inside_ticks`).
    Raises TraceError, naming file, line and key, for anything else; with ``skip_bad_rows`` bad rows
    are counted instead (an empty or damaged file still raises).
    """
    with open_text(path) as text:
        rows = read_rows(text, _parse, path=path, first_line=1, skip_bad_rows=skip_bad_rows)
    if not rows.time_ns and not rows.skipped_rows:
        raise TraceError(f"{path}: the file is empty; expected a JSON object a line")
    table = to_table(rows, source=f"{path.name} (mooncake)", block_tokens=BLOCK_TOKENS)
    if not spread_ticks:
        return table
    arrival_ns = spread_inside_ticks(table.arrival_ns)
    num_moved = int((arrival_ns != table.arrival_ns).sum())
    if not num_moved:
        return table
    note = f"{num_moved} requests that shared a clock tick spread evenly up to the next tick"
    return replace(table, arrival_ns=arrival_ns, notes=(*table.notes, note))


def spread_inside_ticks(arrival_ns: Int64) -> Int64:
    """Arrivals ``[n]`` in order, those of one tick spaced evenly until the next tick.

    The published timestamps come in ticks of about 3 s, so requests look like bursts that never
    were. Of m requests at one time the i-th (in file order, from 0) moves by i/m of the way to the
    next distinct time, but of no more than the median gap, so that a silence stays silent; the last
    tick takes the median gap. A file with distinct times, or with a single one, is left as it is.
    Even spacing is smoother than Poisson: below a tick's length it understates burstiness (in the
    public trace, IDC of 1 s windows 0.4 and CV of gaps 0.4); longer windows keep theirs.
    """
    tick_ns, first, num_in_tick = np.unique(arrival_ns, return_index=True, return_counts=True)
    gap_ns = np.diff(tick_ns)
    if not len(gap_ns):
        return arrival_ns
    median_ns = int(np.median(gap_ns))
    width_ns = np.append(np.minimum(gap_ns, median_ns), median_ns)
    place = np.arange(len(arrival_ns)) - np.repeat(first, num_in_tick)
    shift_ns = place * (np.repeat(width_ns, num_in_tick) / np.repeat(num_in_tick, num_in_tick))
    return arrival_ns + shift_ns.astype(np.int64)


def _parse(line: str) -> ParsedRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not JSON ({error}); expected an object with {', '.join(KEYS)}") from None
    if not isinstance(row, dict):
        raise TraceError(f"found {shown(row)}; expected an object with {', '.join(KEYS)}")
    for key in KEYS:
        if key not in row:
            raise TraceError(f"{key} is missing; expected {', '.join(KEYS)}")
    prompt_tokens = whole_number(row["input_length"], "input_length", 1)
    return (
        _milliseconds_ns(row["timestamp"]),
        prompt_tokens,
        whole_number(row["output_length"], "output_length", 0),
        _block_ids(row["hash_ids"], prompt_tokens),
    )


def _milliseconds_ns(value: object) -> int:
    is_bool = isinstance(value, bool)
    if isinstance(value, int | float) and not is_bool and 0 <= value <= MAX_TIME_S * 1000:
        return round(value * _NS_PER_MS)
    raise TraceError(
        f"timestamp is {shown(value)}; expected milliseconds from 0 to {MAX_TIME_S * 1000}"
    )


def _block_ids(value: object, prompt_tokens: int) -> list[int]:
    num_blocks = -(-prompt_tokens // BLOCK_TOKENS)
    if not isinstance(value, list) or len(value) != num_blocks:
        found = f"{len(value)} ids" if isinstance(value, list) else shown(value)
        raise TraceError(
            f"hash_ids is {found}; expected a list of {num_blocks} ids, one for each "
            f"{BLOCK_TOKENS} tokens begun of input_length {prompt_tokens}"
        )
    if set(map(type, value)) != {int} or min(value) < 0 or max(value) > _MAX_ID:
        raise TraceError(f"hash_ids is {shown(value)}; expected whole numbers from 0 to 2**63 - 1")
    return value
