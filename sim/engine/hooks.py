"""The moments of an engine's life in which optional features take part.

A feature is an object with ``start(view, wake)`` (`sim.engine.view.Feature`), which appends its
methods to the lists of ``view.hooks``. A list that stays empty costs its moment nothing, so an
engine pays only for the features that it has. docs/extending.md adds one step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVarTuple

from sim.engine.step import InFlight, Plan
from sim.kv.prefix_index import Hit
from sim.request import Request
from sim.shape import StepShape
from sim.step_log import StepLog

_Args = TypeVarTuple("_Args")


class Place(Protocol):
    """Requests in an engine that are neither in its waiting queue nor running."""

    @property
    def num_waiting(self) -> int:
        """Number of requests here that count as waiting in the engine's published load."""
        ...

    @property
    def num_running(self) -> int:
        """Number of requests here that count as running: in the engine's published load, and
        against ``running_seq_limit``."""
        ...

    @property
    def wants_blocks(self) -> bool:
        """Whether a block that becomes free may be taken by a request from here."""
        ...

    @property
    def holding(self) -> Iterable[Request]:
        """Requests here that hold KV blocks which other requests may share."""
        ...

    @property
    def in_transit(self) -> bool:
        """Whether KV is on its way to or from here. Its end wakes the engine."""
        ...

    def drop(self, request: Request, /) -> bool:
        """Remove a cancelled request with all that it holds; False if it is not here."""
        ...


def any_of(hooks: list[Callable[[*_Args], bool]], *args: *_Args) -> bool:
    """Call hooks until one returns True; return whether one has."""
    for hook in hooks:  # noqa: SIM110 - faster than any() where most lists are empty
        if hook(*args):
            return True
    return False


@dataclass(slots=True)
class Hooks:
    """What the features of one engine do, by moment, each list in the order of the features."""

    places: list[Place] = field(default_factory=list)

    take_in: list[Callable[[int, int], bool]] = field(default_factory=list)
    """Called before every plan with its log row and its time. Takes in what has come since the
    last plan; returns whether an earlier plan no longer stands."""
    before_plan: list[Callable[[], None]] = field(default_factory=list)
    """Called before the scheduler is."""
    stands_aside: list[Callable[[Request], bool]] = field(default_factory=list)
    """Called with a waiting request that a scheduler admits. True: the feature has taken the
    request out of the queue, and others may be admitted before it."""
    loads_first: list[Callable[[Request, Hit], bool]] = field(default_factory=list)
    """Called with a request that fits and its prefix hit; the result as in ``stands_aside``."""
    admitted: list[Callable[[Request, Hit], None]] = field(default_factory=list)
    """Called with a request that has just got the blocks of its prefix hit."""
    shaped: list[Callable[[StepShape, Plan], StepShape]] = field(default_factory=list)
    """Completes the shape of a planned step; the plan holds the shape so far."""
    shape_columns: list[str] = field(default_factory=list)
    """Names of the step log's columns that hold what ``shaped`` adds."""
    preempted: list[Callable[[Request], None]] = field(default_factory=list)
    """Called with every request that lost its blocks in a plan."""
    must_step: list[Callable[[], bool]] = field(default_factory=list)
    """Returns whether the next step is not like those after it, and so cannot begin a jump."""
    host_ns: list[Callable[[Plan, StepLog], int]] = field(default_factory=list)
    """Returns how long the host is busy with other things before it launches a planned step. Called
    with (plan, log), once per launched step."""
    wait_ns: list[Callable[[Plan, int, int, StepLog], int]] = field(default_factory=list)
    """Returns how long a planned step's kernels wait beyond ``start_ns``, when they could start,
    given the step's GPU time. Called with (plan, start_ns, gpu_ns, log), once per launched step."""
    launched: list[Callable[[Plan, int, int], None]] = field(default_factory=list)
    """Called with a launched step and the start and end of its kernels, in ns."""
    prefilled: list[Callable[[Request, InFlight], bool]] = field(default_factory=list)
    """Called with a request whose first token is planned and not its last. True: the feature has
    taken it, and it does not decode here."""
    read: list[Callable[[Request], bool]] = field(default_factory=list)
    """Called with a finishing request whose planned tokens have been read. True: the feature keeps
    the request, which does not end here."""
    refusal: list[Callable[[Request], str | None]] = field(default_factory=list)
    """Returns why a request can never be served here, or None."""
    crashed: list[Callable[[], None]] = field(default_factory=list)
    """Called when the engine has lost its process and all that it held."""
