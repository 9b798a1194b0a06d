"""What every trace reader shares: open the file, read it row by row, name the row that is bad."""

from __future__ import annotations

import gzip
import io
import reprlib
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from sim.clock import NS_PER_S
from sim.errors import TraceError
from sim.request_table import PrefixChains, RequestTable
from workloads.chains import chain_offsets, take_chains

MAX_TOKENS = 100_000_000
"""A longer prompt or output is taken for a damaged row."""
MAX_TIME_S = 10_000_000_000
"""Latest time of a row, in seconds since whatever epoch the file uses."""
MAX_SPAN_S = 10 * 365 * 86_400
"""A row further than this from the file's first row is taken for a damaged row."""

_REPR = reprlib.Repr()
_REPR.maxstring = 80
GZIP_MAGIC = b"\x1f\x8b"

ParsedRow = tuple[int, int, int, Sequence[int]]
"""Time (ns), prompt tokens, output tokens, prefix block ids (empty where the format has none)."""


@dataclass(slots=True)
class Columns:
    """Rows read so far, as growing int64 arrays."""

    time_ns: array[int] = field(default_factory=lambda: array("q"))
    """Relative to the file's first good row."""
    prompt_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    block_ids: array[int] = field(default_factory=lambda: array("q"))
    chain_blocks: array[int] = field(default_factory=lambda: array("q"))
    skipped_rows: int = 0


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text file, gzip or plain by its first bytes; an optional BOM is dropped.

    Bytes that are not UTF-8 appear as ``\\xNN``, so that they make one row bad, not the file.
    Raises TraceError for a file that cannot be opened, or breaks off while it is read.
    """
    try:
        raw = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise TraceError(f"{str(path)!r} cannot be opened: {reason}") from None
    try:
        with raw:
            is_gzip = raw.peek(2)[:2] == GZIP_MAGIC
            binary = gzip.GzipFile(fileobj=raw) if is_gzip else raw
            with io.TextIOWrapper(binary, "utf-8-sig", errors="backslashreplace") as text:
                yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the gzip file is damaged or cut short ({error})") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None


def read_rows(
    lines: Iterable[str],
    parse: Callable[[str], ParsedRow],
    *,
    path: Path,
    first_line: int,
    skip_bad_rows: bool,
) -> Columns:
    """Parse every line that is not blank; ``first_line`` is the number of the first.

    ``parse`` raises TraceError saying what is wrong with its line. That is raised again with file
    and line number in front, or counted in ``skipped_rows`` when ``skip_bad_rows``.
    """
    columns = Columns()
    origin_ns: int | None = None
    for line_number, line in enumerate(lines, first_line):
        if line.isspace():
            continue
        try:
            time_ns, prompt_tokens, output_tokens, block_ids = parse(line)
            since_first_ns = time_ns - (time_ns if origin_ns is None else origin_ns)
            if abs(since_first_ns) > MAX_SPAN_S * NS_PER_S:
                raise TraceError(
                    f"the time is {since_first_ns / NS_PER_S:.0f} s from the first row's; "
                    f"expected at most {MAX_SPAN_S} s (10 years)"
                )
        except TraceError as error:
            if not skip_bad_rows:
                raise TraceError(f"{path}, line {line_number}: {error}") from None
            columns.skipped_rows += 1
            continue
        if origin_ns is None:
            origin_ns = time_ns
        columns.time_ns.append(since_first_ns)
        columns.prompt_tokens.append(prompt_tokens)
        columns.output_tokens.append(output_tokens)
        columns.block_ids.extend(block_ids)
        columns.chain_blocks.append(len(block_ids))
    return columns


def to_table(
    columns: Columns, *, source: str, block_tokens: int | None = None, notes: tuple[str, ...] = ()
) -> RequestTable:
    """The rows in order of time (stable: ties keep file order), the first arriving at 0.

    ``block_tokens`` is what a block id stands for; None where the format has no prefix ids.
    """
    time_ns = np.array(columns.time_ns, np.int64)
    prompt_tokens = np.array(columns.prompt_tokens, np.int64)
    num_late_rows = int((np.diff(time_ns) < 0).sum())
    order = np.argsort(time_ns, kind="stable")
    if num_late_rows:
        notes = (*notes, f"sorted by time: {num_late_rows} rows were earlier than the row before")
    chains = None
    if block_tokens is not None:
        in_file_order = PrefixChains(
            ids=np.array(columns.block_ids, np.int64),
            offsets=chain_offsets(np.array(columns.chain_blocks, np.int64)),
            tokens=prompt_tokens,
            block_tokens=block_tokens,
        )
        chains = take_chains(in_file_order, order) if num_late_rows else in_file_order
    return RequestTable(
        arrival_ns=time_ns[order] - (time_ns.min() if len(time_ns) else 0),
        prompt_tokens=prompt_tokens[order],
        output_tokens=np.array(columns.output_tokens, np.int64)[order],
        priority=np.zeros(len(time_ns), np.int64),
        chains=chains,
        source=source,
        skipped_rows=columns.skipped_rows,
        notes=notes,
    )


def whole_number(value: object, name: str, minimum: int) -> int:
    """``value`` if it is an int from ``minimum`` to MAX_TOKENS, else TraceError naming it."""
    if type(value) is int and minimum <= value <= MAX_TOKENS:
        return value
    raise TraceError(
        f"{name} is {shown(value)}; expected a whole number from {minimum} to {MAX_TOKENS}"
    )


def shown(value: object) -> str:
    """A short repr for messages, safe for values of any size or depth."""
    return _REPR.repr(value)
