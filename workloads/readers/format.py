"""The declaration of a trace format: how a file is recognized and read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workloads.readers.recording import Recording

Option = Literal["spread_ticks", "block_tokens", "columns"]


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
    """Returns whether a CSV header with these column names is of this format; None: no CSV."""
    matches_object: Callable[[dict[str, Any]], bool] | None = None
    """Returns whether a file that begins with this JSON object is of this format; None: no JSON
    lines."""
    companions: tuple[tuple[str, ...], ...] = ()
    """Columns of each CSV file that lies beside such a trace and is not a trace itself."""
    beside: Callable[[Path], Sequence[Path]] = lambda path: ()
    """Returns the files beside a trace that its requests depend on too; raises TraceError if one
    that must be there is not."""
    example: str = ""
    """The name of such a trace, shown to a user who gives a companion file instead."""


def has_all(wanted: Collection[str]) -> Callable[[Collection[str]], bool]:
    """Return a test for whether all ``wanted`` names are among those found."""
    return lambda found: set(wanted) <= set(found)


def has_only(wanted: Collection[str]) -> Callable[[Collection[str]], bool]:
    """Return a test for whether the names found are exactly the ``wanted`` ones."""
    return lambda found: set(wanted) == set(found)
