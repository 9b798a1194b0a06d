"""JSON lines into a recording: each line is an object, with one request or one session."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import from_json

from sim.arrays import Int64
from sim.clock import NS_PER_S
from sim.errors import TraceError, first_fault, shown
from sim.request_table import PrefixChains
from workloads.chains import chain_offsets
from workloads.readers.recording import Clock, Recording, record, session_numbers
from workloads.readers.rows import (
    MAX_ID,
    MAX_SPAN_S,
    MAX_TIME_S,
    MAX_TOKENS,
    UNITS,
    UNITS_NS,
    check_span,
    open_text,
    raise_at,
)


class JsonRow(BaseModel):
    """The keys of an object that a reader knows; others are ignored."""

    model_config = ConfigDict(strict=True)


def duration_of(value: object, unit: str, longest_s: int) -> int:
    """Convert a number of ``unit`` to nanoseconds. Raises ValueError outside 0 to ``longest_s``."""
    unit_ns = UNITS_NS[unit]
    most = longest_s * (NS_PER_S // unit_ns)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
        return round(value * unit_ns)
    raise ValueError(f"must be {UNITS[unit]} from 0 to {most}, not {shown(value)}")


def name_of(value: object) -> Hashable | None:
    """Check a name, text or a whole number; None for an empty one. Raises ValueError."""
    if value is None or value == "":
        return None
    if type(value) in (str, int):
        return value
    raise ValueError(f"must be text or a whole number, not {shown(value)}")


PromptTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
"""Id of a block, a chunk or a token."""
Name = Annotated[Hashable | None, PlainValidator(name_of)]
"""Name of a session or request, text or a whole number."""
TimeS = Annotated[int, PlainValidator(partial(duration_of, unit="s", longest_s=MAX_TIME_S))]
"""A recorded time, converted to nanoseconds; so are the next ones."""
TimeMs = Annotated[int, PlainValidator(partial(duration_of, unit="ms", longest_s=MAX_TIME_S))]
TimeNs = Annotated[int, PlainValidator(partial(duration_of, unit="ns", longest_s=MAX_TIME_S))]
DelayS = Annotated[int, PlainValidator(partial(duration_of, unit="s", longest_s=MAX_SPAN_S))]
DelayMs = Annotated[int, PlainValidator(partial(duration_of, unit="ms", longest_s=MAX_SPAN_S))]
DelayNs = Annotated[int, PlainValidator(partial(duration_of, unit="ns", longest_s=MAX_SPAN_S))]


def parse_object(line: str, expected: str) -> dict[str, Any]:
    """Parse a line as a JSON object, or raise TraceError."""
    try:
        row = from_json(line)
    except ValueError as error:
        raise TraceError(f"not JSON ({error}); expected an object with {expected}") from None
    if not isinstance(row, dict):
        raise TraceError(f"found {shown(row)}; expected an object with {expected}")
    return row


def check_blocks(ids: Sequence[int], prompt_tokens: int, size: int) -> None:
    """Raise TraceError unless there is an id for each ``size`` tokens begun of a prompt."""
    num_blocks = -(-prompt_tokens // size)
    if len(ids) != num_blocks:
        raise TraceError(
            f"hash_ids is {len(ids)} ids; expected a list of {num_blocks} ids, one for each "
            f"{size} tokens begun of input_length {prompt_tokens}"
        )


class Row(NamedTuple):
    """One request, as a line of a file gives it."""

    time_ns: int | None
    """Recorded time; None: the request is sent ``think_ns`` after the previous row of its
    session."""
    prompt_tokens: int
    output_tokens: int
    block_ids: Sequence[int] = ()
    session: Hashable | None = None
    think_ns: int = -1
    """Think time before the request; -1: not recorded."""
    name: Hashable | None = None
    """Name by which a later row refers to this one in ``after``."""
    after: Hashable | None = None
    """Name of the row that it follows; None: the previous row of its session."""


class JsonRows:
    """Collects the rows of a JSON lines file, as they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_rows = 0
        self._time_ns = array("q")  # relative to the first good row that has a time
        self._prompt_tokens = array("q")
        self._output_tokens = array("q")
        self._think_ns = array("q")
        self._block_ids = array("q")
        self._chain_blocks = array("q")
        self._is_timed = bytearray()
        self._sessions: list[Hashable | None] = []
        self._afters: list[Hashable | None] = []
        self._row_of: dict[Hashable, int] = {}
        self._last_ns: dict[Hashable, int] = {}
        self._origin_ns: int | None = None
        self._without_time: int | None = None  # the line of the first session without a start time
        self._has_untimed_turns = False

    def __len__(self) -> int:
        return len(self._time_ns)

    def read(
        self,
        parse: Callable[[dict[str, Any]], Iterable[Row]],
        *,
        expected: str,
        skip_bad_rows: bool,
    ) -> None:
        """Parse every line that is not blank; an empty file raises TraceError.

        ``parse`` returns the rows of one object, or raises TraceError saying what is wrong, or a
        ValidationError. The error is raised again, as TraceError with file and line, or counted in
        ``skipped_rows`` if ``skip_bad_rows``.
        """
        with open_text(self.path) as text:
            for line_number, line in enumerate(text, 1):
                if line.isspace():
                    continue
                try:
                    self._add(parse(parse_object(line, expected)), line_number)
                except (TraceError, ValidationError) as error:
                    if not skip_bad_rows:
                        raise_at(self.path, line_number, _fault(error, expected))
                    self.skipped_rows += 1
        if not len(self) and not self.skipped_rows:
            raise TraceError(f"{self.path}: the file is empty; expected a JSON object a line")

    def recording(
        self,
        format_name: str,
        *,
        block_tokens: int | None = None,
        covers_output: bool = False,
        notes: Sequence[str] = (),
    ) -> Recording:
        """Make a recording of the rows; ``block_tokens`` is the size of a block, if rows have block
        ids."""
        has_ids = block_tokens is not None and len(self._block_ids) > 0
        prompt_tokens = np.array(self._prompt_tokens, np.int64)
        output_tokens = np.array(self._output_tokens, np.int64)
        chains = None
        if has_ids and block_tokens is not None:
            blocks = np.array(self._chain_blocks, np.int64)
            tokens = prompt_tokens + output_tokens if covers_output else prompt_tokens
            chains = PrefixChains(
                ids=np.array(self._block_ids, np.int64),
                offsets=chain_offsets(blocks),
                tokens=np.minimum(tokens, blocks * block_tokens),
                block_tokens=block_tokens,
                covers_output=covers_output,
            )
        after, lost = self._after_rows()
        session = session_numbers(self._sessions)
        if session is None and after is not None:
            session = _roots(after)
        clock: Clock = "trace"
        if self._without_time is not None:
            clock = "none" if session is None else "session"
        if lost:
            notes = (*notes, f"{lost} rows follow a row that is not in the file before them")
        return record(
            np.array(self._time_ns, np.int64),
            prompt_tokens,
            output_tokens,
            source=f"{self.path.name} ({format_name})",
            chains=chains,
            session=session,
            after=after,
            think_ns=np.array(self._think_ns, np.int64),
            clock=clock,
            times=not self._has_untimed_turns,
            skipped_rows=self.skipped_rows,
            notes=notes,
        )

    def _add(self, parsed: Iterable[Row], line_number: int) -> None:
        """Keep the rows of a line, if all of them are good."""
        rows = parsed if isinstance(parsed, tuple) else tuple(parsed)
        first = rows[0]
        if len(rows) == 1 and first.session is None and self._without_time is None:
            time_ns = first.time_ns
            if time_ns is not None:  # a fast path for the common case
                origin_ns = time_ns if self._origin_ns is None else self._origin_ns
                check_span(time_ns - origin_ns)
                self._origin_ns = origin_ns
                self._keep(first, time_ns - origin_ns)
                return
        times_ns = self._times_ns(rows, line_number)
        for row, time_ns in zip(rows, times_ns, strict=True):
            self._keep(row, time_ns)

    def _times_ns(self, rows: Sequence[Row], line_number: int) -> list[int]:
        """Return the times of a line's rows, from the first row of the file that has a time."""
        times_ns = []
        last_ns, origin_ns, without_time = dict[Hashable, int](), self._origin_ns, False
        for row in rows:
            key = row.session
            before_ns = last_ns.get(key, self._last_ns.get(key)) if key is not None else None
            if row.after is not None and row.after in self._row_of:
                before_ns = self._time_ns[self._row_of[row.after]]
            time_ns = row.time_ns
            if time_ns is not None:
                origin_ns = time_ns if origin_ns is None else origin_ns
                time_ns -= origin_ns
            elif before_ns is not None and row.think_ns >= 0:
                time_ns = before_ns + row.think_ns
            elif before_ns is not None:
                raise TraceError("neither a time nor a delay; a session's later turns need one")
            else:
                time_ns, without_time = 0, True
            check_span(time_ns)
            if key is not None:
                last_ns[key] = time_ns
            times_ns.append(time_ns)
        if (without_time and origin_ns is not None) or (
            self._without_time is not None and origin_ns is not None
        ):
            other = "others have" if without_time else f"line {self._without_time} has not"
            raise TraceError(
                f"its first request has {'no' if without_time else 'a'} time and {other}; "
                "expected all or none"
            )
        self._origin_ns = origin_ns
        if without_time and self._without_time is None:
            self._without_time = line_number
        self._last_ns.update(last_ns)
        return times_ns

    def _keep(self, row: Row, row_ns: int) -> None:
        time_ns, prompt_tokens, output_tokens, block_ids, session, think_ns, name, after = row
        if name is not None:
            self._row_of.setdefault(name, len(self))
        self._has_untimed_turns |= time_ns is None and think_ns >= 0
        self._is_timed.append(time_ns is not None)
        self._time_ns.append(row_ns)
        self._prompt_tokens.append(prompt_tokens)
        self._output_tokens.append(output_tokens)
        self._think_ns.append(think_ns)
        self._block_ids.extend(block_ids)
        self._chain_blocks.append(len(block_ids))
        self._sessions.append(session)
        self._afters.append(after)

    def _after_rows(self) -> tuple[Int64 | None, int]:
        """Return the row that each row follows, and how many named rows are missing.

        None if no row names another in ``after``. A row that names none follows the previous row of
        its session if it has no time.
        """
        if not any(name is not None for name in self._afters):
            return None, 0
        out = np.full(len(self), -1, np.int64)
        last_row: dict[Hashable, int] = {}
        lost = 0
        for row, (name, session) in enumerate(zip(self._afters, self._sessions, strict=True)):
            if name is not None:
                before = self._row_of.get(name, row)
                out[row] = before if before < row else -1
                lost += before >= row
            elif not self._is_timed[row] and session is not None:
                out[row] = last_row.get(session, -1)
            if session is not None:
                last_row[session] = row
        return out, lost


def _fault(error: TraceError | ValidationError, expected: str) -> TraceError:
    if isinstance(error, TraceError):
        return error
    fault = first_fault(error)
    return TraceError(f"{fault}; expected {expected}" if fault.endswith("is missing") else fault)


def _roots(after: Int64) -> Int64:
    """Return ``[n]`` the first row of the chain that each row is in."""
    out = np.arange(len(after))
    for row, before in enumerate(after.tolist()):
        if before >= 0:
            out[row] = out[before]
    return out
