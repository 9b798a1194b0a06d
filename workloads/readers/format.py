"""What a reader says of its trace format: how a file of it is recognized and read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from workloads.readers.recording import Recording

Option = Literal["spread_ticks", "block_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A trace format; each reader module holds one as ``FORMAT``."""

    name: str
    """The name that ``workload.trace.format`` takes."""
    description: str
    """What a file looks like, in one line of `fleetcast list formats`."""
    read: Callable[..., Recording] | None
    """``read(path, skip_bad_rows=..., **options)``, which raises TraceError; None where the file
    holds no requests."""
    options: tuple[Option, ...] = ()
    """Keyword arguments that ``read`` takes besides ``skip_bad_rows``."""
    matches_header: Callable[[Collection[str]], bool] | None = None
    """Whether a CSV header with these column names is of this format."""
    matches_object: Callable[[dict[str, Any]], bool] | None = None
    """Whether a file whose first line is this JSON object is of this format."""
    companions: tuple[tuple[str, ...], ...] = ()
    """Columns of each CSV file that lies beside such a trace and is not a trace itself."""
    example: str = ""
    """The name of such a trace, shown to a user who gives a companion file instead."""


def has_all(wanted: Collection[str]) -> Callable[[Collection[str]], bool]:
    """Return a test whether all ``wanted`` names are among those found."""
    return lambda found: set(wanted) <= set(found)


def has_only(wanted: Collection[str]) -> Callable[[Collection[str]], bool]:
    """Return a test whether the names found are just the ``wanted`` ones."""
    return lambda found: set(wanted) == set(found)
