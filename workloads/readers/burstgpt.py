"""BurstGPT traces: CSV of requests to Azure OpenAI from a campus, with sessions.

Source: HPMLL/BurstGPT (CC-BY 4.0), arXiv 2401.17644.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workloads.readers.csv_table import Column, read_csv, require, text, time_ns, whole
from workloads.readers.format import Format, has_all
from workloads.readers.recording import Recording, previous_of, record, session_numbers

COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
_SESSION, _ELAPSED = "Session ID", "Elapsed time"


def read_burstgpt(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read a BurstGPT CSV, gzip or plain: seconds, one clock.

    A response of 0 tokens is a failed request: it is dropped, and a note counts them.
    ``Session ID`` (empty in the API log) joins requests to conversations. With ``Elapsed time``,
    the duration of the answer, the think time before the next turn is known. Raises TraceError,
    naming file, line and column; with ``skip_bad_rows`` bad rows are counted instead.
    """
    has_sessions = has_elapsed = False

    def columns_of(names: list[str]) -> Sequence[Column]:
        nonlocal has_sessions, has_elapsed
        require(names, COLUMNS, ",".join(COLUMNS))
        has_sessions, has_elapsed = _SESSION in names, _ELAPSED in names
        columns = [
            time_ns("Timestamp", "s", is_time=True),
            whole("Request tokens"),
            whole("Response tokens"),
        ]
        columns += [text(_SESSION)] if has_sessions else []
        return [*columns, time_ns(_ELAPSED, "s")] if has_elapsed else columns

    table = read_csv(path, columns_of, skip_bad_rows=skip_bad_rows)
    values = table.values
    answered = (values["Response tokens"] > 0) & (values["Request tokens"] > 0)
    kept = np.flatnonzero(answered)
    kept = kept[np.argsort(values["Timestamp"][kept], kind="stable")]
    num_failed = len(answered) - len(kept)
    times_ns, session, think_ns = values["Timestamp"][kept], None, None
    if has_sessions:
        names = [values[_SESSION][row] or None for row in kept.tolist()]
        session = session_numbers(names)
    if session is not None and has_elapsed:
        before = previous_of(session)
        answered_ns = times_ns[before] + values[_ELAPSED][kept][before]
        think_ns = np.where(before >= 0, np.maximum(times_ns - answered_ns, 0), -1)
    dropped = f"{num_failed} failed requests (no response tokens) dropped"
    return record(
        times_ns,
        values["Request tokens"][kept],
        values["Response tokens"][kept],
        source=f"{path.name} (burstgpt)",
        session=session,
        think_ns=think_ns,
        skipped_rows=table.skipped_rows,
        notes=(dropped,) if num_failed else (),
    )


FORMAT = Format(
    name="burstgpt",
    description=f"CSV with {','.join(COLUMNS)}; seconds; Session ID, Elapsed time",
    read=read_burstgpt,
    matches_header=has_all(COLUMNS),
)
