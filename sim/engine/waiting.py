"""The waiting queue of one engine: first come, first served, or ordered by a policy's key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from sim.request import Request


class WaitingQueue(Protocol):
    """Requests that are not running yet, in the order in which a scheduler should consider them."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...
    def first(self) -> Request:
        """Return the request to consider first; the queue must not be empty. O(1) in the queue's
        length."""
        ...

    def add(self, request: Request, /) -> None:
        """Append a new arrival."""
        ...

    def put_back(self, request: Request, /) -> None:
        """Return a preempted request to the head, or to where its key belongs."""
        ...

    def remove(self, request: Request, /) -> None:
        """Take out a request that was admitted."""
        ...


class FifoQueue(OrderedDict[Request, None]):
    """Order of arrival; preempted requests return to the head. All operations are O(1)."""

    def first(self) -> Request:
        """Return the request at the head."""
        return next(iter(self))

    def add(self, request: Request) -> None:
        """Append a new arrival."""
        self[request] = None

    def put_back(self, request: Request) -> None:
        """Return a preempted request to the head."""
        self[request] = None
        self.move_to_end(request, last=False)

    def remove(self, request: Request) -> None:
        """Take a request out of the queue."""
        del self[request]


# Key, table row, sample, and how many were added before, so that requests are never compared.
_Entry = tuple[Any, int, int, int, Request]

_LONGEST_RUN = 512


class SortedQueue:
    """Ordered by a key that does not change while a request waits.

    Requests are kept in sorted runs of a few hundred, so that taking one out moves no more than
    that many.
    """

    def __init__(self, key: Callable[[Request], Any]) -> None:
        self._key = key
        self._runs: list[list[_Entry]] = []
        self._last: list[_Entry] = []  # length of each sorted run
        self._entries: dict[Request, _Entry] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for run in self._runs for entry in run)

    def first(self) -> Request:
        """Return the request with the lowest key."""
        return self._runs[0][0][-1]

    def add(self, request: Request) -> None:
        """Insert a request by its key; ties by table order, so that runs repeat."""
        self._added += 1
        entry = (self._key(request), request.index, request.sample, self._added, request)
        self._entries[request] = entry
        if not self._runs:
            self._runs.append([entry])
            self._last.append(entry)
            return
        place = min(bisect_left(self._last, entry), len(self._runs) - 1)
        run = self._runs[place]
        insort(run, entry)
        if len(run) > _LONGEST_RUN:
            half = len(run) // 2
            self._runs[place : place + 1] = [run[:half], run[half:]]
            self._last.insert(place, run[half - 1])
            run = self._runs[place + 1]
            place += 1
        self._last[place] = run[-1]

    put_back = add

    def remove(self, request: Request) -> None:
        """Take a request out of the queue."""
        entry = self._entries.pop(request)
        place = bisect_left(self._last, entry)
        run = self._runs[place]
        del run[bisect_left(run, entry)]
        if run:
            self._last[place] = run[-1]
        else:
            del self._runs[place], self._last[place]
