"""The waiting queue of one engine: first come first served, or ordered by a policy's key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from sim.request import Request


class WaitingQueue(Protocol):
    """Requests not yet running, in the order a scheduler should consider them."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...
    def add(self, request: Request, /) -> None:
        """Append a new arrival."""
        ...

    def put_back(self, request: Request, /) -> None:
        """Return a preempted request: to the head, or to where its key belongs."""
        ...

    def remove(self, request: Request, /) -> None:
        """Take a request out (admitted)."""
        ...


class FifoQueue(OrderedDict[Request, None]):
    """Order of arrival; preempted requests go to the head. All operations O(1)."""

    def add(self, request: Request) -> None:
        """Append a new arrival."""
        self[request] = None

    def put_back(self, request: Request) -> None:
        """Return a preempted request to the head."""
        self[request] = None
        self.move_to_end(request, last=False)

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self[request]


class SortedQueue:
    """Kept in the order of a key that does not change while a request waits."""

    def __init__(self, key: Callable[[Request], Any]) -> None:
        self._key = key
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Put a request where its key belongs."""
        insort(self._requests, request, key=self._order)

    put_back = add

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self._requests[bisect_left(self._requests, self._order(request), key=self._order)]

    def _order(self, request: Request) -> tuple[Any, int]:
        return self._key(request), request.index  # ties by table order, so runs repeat
