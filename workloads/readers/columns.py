"""Tables of requests in any CSV or JSON lines, by columns that are named or well known.

One row is one request. Times are numbers (seconds, milliseconds, microseconds or nanoseconds, by
the column's name or the size of its values) or dates; a recording's notes say how each was read.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from sim.errors import TraceError, shown
from workloads.readers.cells import UNIT_SUFFIX, Row, is_missing, read_rows, time_parser, tokens
from workloads.readers.format import Format
from workloads.readers.recording import Recording, record, session_numbers
from workloads.readers.rows import UNITS, check_span, open_text, raise_at

COLUMN_KEYS = ("arrival", "input", "output", "session", "class", "unit")
"""What ``columns`` may name: columns of the file, and the unit of arrival times."""

_WELL_KNOWN = {
    "arrival": (
        "arrival arrivaltime arrivedat arrivaltimestamp requesttime requesttimestamp requestedat "
        "requeststart requeststarttime starttime starttimestamp startedat start receivedat "
        "receivedtime sendtime sentat sent send submittime submittedat createdat creationtime "
        "created timestamp eventtime logtime datetime time date ts t at"
    ),
    "input": (
        "prompttokens inputtokens promptlen promptlength inputlen inputlength numprompttokens "
        "numinputtokens numprefilltokens prefilltokens prefilllength contexttokens requesttokens "
        "inputtoks prompttokencount inputtokencount inputsequencelength isl tokensin intokens "
        "tokensprompt promptsize nprompttokens ninputtokens promptntokens inputtokenlength "
        "intoks intok"
    ),
    "output": (
        "completiontokens outputtokens outputlen outputlength numoutputtokens numgeneratedtokens "
        "numcompletiontokens numdecodetokens decodetokens decodelength generatedtokens "
        "generationtokens responsetokens outputtoks completiontokencount outputtokencount "
        "outputsequencelength osl tokensout outtokens tokenscompletion outputsize responselength "
        "responselen completionlength ncompletiontokens noutputtokens outputntokens "
        "outputtokenlength candidatestokencount outtoks outtok"
    ),
    "session": "sessionid session conversationid conversation chatid threadid dialogueid",
}
_ALIKE = {
    "arrival": r"timestamp|arriv|datetime|(?:created|received|requested|sent|submitted)at$",
    "input": r"(?:prompt|input|context|prefill).*(?:tok|len)|tok.*(?:prompt|input|in$)",
    "output": r"(?:completion|output|generat|response|decode).*(?:tok|len)|tok.*(?:output|out$)",
}
"""What a name has that is not well known but can be nothing else, if it is the only one."""
_OTHERWISE = re.compile(
    r"cache|cost|price|usd|detail|audio|image|per|rate|speed|throughput|latency|first|last|end|"
    r"finish|complet\w*at|max|limit|ttft|tpot|text|hash|type|model|name|id$"
)
_MOST_CLASSES = 64


class Columns(NamedTuple):
    """Names of a file's columns; None where it has no such column."""

    input: str
    output: str
    arrival: str | None = None
    session: str | None = None
    class_: str | None = None
    unit: str | None = None
    """Unit of arrival times; None: by their name and size."""

    @property
    def used(self) -> set[str]:
        """The names of all columns that are read."""
        names = (self.input, self.output, self.arrival, self.session, self.class_)
        return {name for name in names if name is not None}


def parse_columns(text: str) -> dict[str, str]:
    """Parse ``arrival=timestamp,input=prompt_tokens,output=completion_tokens``.

    Raises TraceError for text of another form.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name or key not in COLUMN_KEYS:
            raise TraceError(
                f"{shown(part)}: expected KEY=COLUMN, KEY being one of {', '.join(COLUMN_KEYS)}"
            )
        found[key] = name
    return found


def find_columns(names: list[str], given: Mapping[str, str] | None = None) -> Columns | None:
    """Return the columns of a table by what is given, and else by well-known names.

    None if lengths of prompt and output are neither. Raises TraceError for a name that the file
    does not have.
    """
    given = dict(given or {})
    unit = given.pop("unit", None)
    if unit is not None and unit not in UNITS:
        raise TraceError(f"unit={unit}: expected one of {', '.join(UNITS)}")
    for key, name in given.items():
        if name not in names:
            raise TraceError(f"{key}={name}: no such column; there are {', '.join(names[:40])}")
    free = [name for name in names if name not in given.values()]
    found = {key: given.get(key) or _well_known(key, free) for key in _WELL_KNOWN}
    if found["input"] is None or found["output"] is None:
        return None
    lasts = {name.rpartition(".")[2] for name in names}
    if not given and ("hash_ids" in lasts or (found["session"] and "t_s" in lasts)):
        return None  # blocks of unknown size, or sessions that may have clocks of their own
    return Columns(
        found["input"],
        found["output"],
        found["arrival"],
        found["session"],
        given.get("class"),
        unit,
    )


def read_columns(
    path: Path, *, skip_bad_rows: bool = False, columns: Mapping[str, str] | None = None
) -> Recording:
    """Read a CSV or JSON lines, gzip or plain, by the columns named in ``columns`` (keys of
    COLUMN_KEYS) or found by well-known names.

    Rows without a length of prompt or output are failed requests: they are left out, and a note
    counts them. Without a column of times the recording has none. Raises TraceError, naming file,
    line and column; with ``skip_bad_rows`` bad rows are counted instead.
    """
    with open_text(path) as text:
        names, rows = read_rows(text, path)
        try:
            found = find_columns(names, columns)
        except TraceError as error:
            raise_at(path, 1, error)
        if found is None:
            raise_at(path, 1, TraceError(unnamed(names)))
        reader = _Reader(path, found, skip_bad_rows)
        reader.read(rows)
    return reader.recording(names)


def unnamed(names: list[str]) -> str:
    """Return what is missing in a table without well-known names, and how to name its columns."""
    return (
        "no columns of prompt and output tokens among "
        f"{shown(', '.join(names[:40]))}; name them: --columns arrival=COLUMN,input=COLUMN,"
        "output=COLUMN (workload.trace.columns)"
    )


def names_of(text: TextIO, path: Path) -> list[str]:
    """Return the column names of a table; empty if it is none."""
    try:
        return read_rows(text, path)[0]
    except TraceError:
        return []


def _well_known(key: str, names: list[str]) -> str | None:
    """Return the column with the best-known of the names of a key; nested keys by their last
    part."""

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    spelled: dict[str, str] = {}
    names = [name for name in names if name.isprintable()]
    for name in names:
        last = name.rpartition(".")[2]
        for candidate in (name, last):
            suffix = UNIT_SUFFIX.match(candidate) if key == "arrival" else None
            spelled.setdefault(plain(candidate), name)
            if suffix is not None:
                spelled.setdefault(plain(suffix[1]), name)
    known = next((spelled[one] for one in _WELL_KNOWN[key].split() if one in spelled), None)
    if known is not None or key not in _ALIKE:
        return known
    of_key = (name for name in names if re.search(_ALIKE[key], plain(name)))
    alike = [name for name in of_key if not _OTHERWISE.search(plain(name))]
    return alike[0] if len(alike) == 1 else None


class _Reader:
    """Collects the rows of a table."""

    def __init__(self, path: Path, columns: Columns, skip_bad_rows: bool) -> None:
        self._path = path
        self._columns = columns
        self._skip_bad_rows = skip_bad_rows
        self._time_ns = array("q")  # since the first good row
        self._prompt_tokens = array("q")
        self._output_tokens = array("q")
        self._sessions: list[str | None] = []
        self._classes: dict[str, int] = {}
        self._class_index = array("q")
        self._origin_ns: int | None = None
        self._parse_time: Callable[[Any], int] | None = None
        self._times_are = ""
        self._skipped_rows = self._failed = 0

    def read(self, rows: Iterator[tuple[int, Row]]) -> None:
        for line, row in rows:
            try:
                self._add(row)
            except TraceError as error:
                if not self._skip_bad_rows:
                    raise_at(self._path, line, error)
                self._skipped_rows += 1

    def _add(self, row: Row) -> None:
        columns = self._columns
        if isinstance(row.get(""), TraceError):
            raise row[""]
        lengths = row.get(columns.input), row.get(columns.output)
        if any(is_missing(value) for value in lengths):
            self._failed += 1
            return
        prompt = tokens(lengths[0], columns.input, 1)
        output = tokens(lengths[1], columns.output, 0)
        time_ns = 0
        if columns.arrival is not None:
            moment_ns = self._moment(row.get(columns.arrival))
            origin_ns = moment_ns if self._origin_ns is None else self._origin_ns
            time_ns = moment_ns - origin_ns
            check_span(time_ns)
            self._origin_ns = origin_ns
        if columns.class_ is not None:
            name = str(row.get(columns.class_) or "none")
            index = self._classes.setdefault(name, len(self._classes))
            if index >= _MOST_CLASSES:
                raise TraceError(f"class={columns.class_}: more than {_MOST_CLASSES} values")
            self._class_index.append(index)
        if columns.session is not None:
            session = row.get(columns.session)
            self._sessions.append(None if is_missing(session) else str(session))
        self._time_ns.append(time_ns)
        self._prompt_tokens.append(prompt)
        self._output_tokens.append(output)

    def _moment(self, value: Any) -> int:
        """Return nanoseconds of a time; the first one decides what all are."""
        name = self._columns.arrival or ""
        if self._parse_time is None:
            self._parse_time, self._times_are = time_parser(value, name, self._columns.unit)
        try:
            return self._parse_time(value)
        except (ValueError, OverflowError):
            raise TraceError(f"{name} is {shown(value)}; expected {self._times_are}") from None

    def recording(self, names: list[str]) -> Recording:
        """Make a recording of the rows; its notes say how columns were understood."""
        columns, times_ns = self._columns, np.array(self._time_ns, np.int64)
        session = session_numbers(self._sessions) if self._sessions else None
        found = record(
            times_ns,
            np.array(self._prompt_tokens, np.int64),
            np.array(self._output_tokens, np.int64),
            source=f"{self._path.name} (columns)",
            session=session,
            clock="none" if columns.arrival is None else "trace",
            skipped_rows=self._skipped_rows,
            notes=self._notes(names),
        )
        if columns.class_ is None or not len(times_ns):
            return found
        order = np.argsort(times_ns, kind="stable")
        index = np.array(self._class_index, np.int64)[order]
        table = replace(found.table, class_index=index, class_names=tuple(self._classes))
        return replace(found, table=table)

    def _notes(self, names: list[str]) -> list[str]:
        columns = self._columns
        read = {"input": columns.input, "output": columns.output, "session": columns.session}
        parts = [f"{key}={name}" for key, name in read.items() if name is not None]
        if columns.arrival is not None:
            parts.insert(0, f"arrival={columns.arrival} ({self._times_are or 'no rows'})")
        notes = [f"columns read: {', '.join(parts)}"]
        ignored = [name for name in names if name not in columns.used]
        if ignored:
            notes.append(f"columns ignored: {', '.join(ignored)}")
        if self._failed:
            notes.append(f"{self._failed:,} rows without lengths left out, as failed requests")
        return notes


FORMAT = Format(
    name="columns",
    description="any CSV or JSON lines with a request a row: --columns arrival=COLUMN,input=COLUMN,"
    "output=COLUMN, or well-known names; numbers or dates as times",
    read=read_columns,
    options=("columns",),
)
