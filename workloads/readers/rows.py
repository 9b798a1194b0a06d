"""Shared parts of trace readers: open a file, name a bad row, check a value."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

from sim.clock import NS_PER_S
from sim.errors import TraceError
from sim.paths import is_file

MAX_TOKENS = 100_000_000
"""A longer prompt or output is treated as a damaged row."""
MAX_TIME_S = 10_000_000_000
"""Latest time of a row, in seconds since the epoch of the file."""
MAX_SPAN_S = 10 * 365 * 86_400
"""A row further than this from the file's first row is treated as damaged."""
MAX_ID = 2**63 - 1
"""Largest id of a block, session or chunk, which are int64."""

GZIP_MAGIC = b"\x1f\x8b"


_MOST_LINE_BYTES = 64 << 20


class _Lines(io.RawIOBase):
    """Bytes of a file, as long as they are divided into lines."""

    def __init__(self, binary: io.BufferedIOBase, path: Path) -> None:
        self._binary, self._path = binary, path
        self._since_newline = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._binary.read(len(buffer))
        ended = data.rfind(b"\n")
        self._since_newline = len(data) - ended - 1 + (self._since_newline if ended < 0 else 0)
        if self._since_newline > _MOST_LINE_BYTES:
            raise TraceError(
                f"{self._path}: a line is longer than {_MOST_LINE_BYTES >> 20} MiB; is this a "
                "text file?"
            )
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text file, gzip or plain by its first bytes, and drop an optional BOM.

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
            bounded = io.BufferedReader(_Lines(binary, path), 1 << 20)
            with io.TextIOWrapper(bounded, "utf-8-sig", errors="backslashreplace") as text:
                yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the gzip file is damaged or cut short ({error})") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None


def raise_at(path: Path, line_number: int, error: TraceError) -> NoReturn:
    """Raise a row's error again, with the file and the line in front."""
    raise TraceError(f"{path}, line {line_number}: {error}") from None


def check_span(since_first_ns: int) -> None:
    """Raise TraceError for a time too far from the file's first row to be true."""
    if abs(since_first_ns) > MAX_SPAN_S * NS_PER_S:
        raise TraceError(
            f"the time is {since_first_ns / NS_PER_S:.0f} s from the first row's; "
            f"expected at most {MAX_SPAN_S} s (10 years)"
        )


UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
UNITS_NS = {"s": NS_PER_S, "ms": 1_000_000, "us": 1000, "ns": 1}


def companion(path: Path, word: str, other: str, ending: str = "", other_ending: str = "") -> Path:
    """Return the file beside ``path`` whose name has ``other`` for ``word``, gzip or plain.

    Raises TraceError if there is none.
    """
    name = path.name.removesuffix(".gz")
    if word not in name:
        raise TraceError(
            f"{path}: its companion is looked for beside it, under its own name with {other!r} for "
            f"{word!r}; expected a name with {word!r} in it"
        )
    head, _, tail = name.rpartition(word)
    if ending:
        tail = tail.removesuffix(ending) + other_ending
    sibling = path.with_name(head + other + tail)
    for candidate in (sibling, sibling.with_name(sibling.name + ".gz")):
        if is_file(candidate):
            return candidate
    raise TraceError(f"{path}: needs {sibling.name} (or {sibling.name}.gz) beside it")
