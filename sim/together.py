"""Sequences that belong together: the answers of one request, and batches that leave as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.request import Request


@dataclass(eq=False, slots=True)
class Samples:
    """The answers of one request (``n`` > 1), each a sequence of its own once it decodes."""

    unforked: tuple[int, ...]
    """Output tokens of the answers beside the first that have not begun."""
    num_open: int
    """Answers that are not complete."""
    cancelled: bool = False
    """Nobody waits for any of them."""


@dataclass(eq=False, slots=True)
class SharedBlocks:
    """Full blocks of a prompt that several answers read; nobody writes them."""

    blocks: int
    holders: int


@dataclass(eq=False, slots=True)
class Gang:
    """Requests that leave together, when the last of them is done: static batching."""

    members: int = 0
    done: list[Request] = field(default_factory=list)

    def leave(self, finishing: list[Request]) -> None:
        """One leaves without the others; they finish if all of them are done."""
        self.members -= 1
        self.finish(finishing)

    def finish(self, finishing: list[Request]) -> None:
        """Let all members finish, once all of them are done."""
        if len(self.done) == self.members:
            finishing.extend(self.done)
            self.done.clear()
            self.members = 0
