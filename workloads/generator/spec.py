"""Specification of a generated workload: kinds of requests, arrivals, users and size."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import ScenarioError
from workloads.generator.arrivals import ALL_AT_ONCE, Arrivals
from workloads.generator.distributions import NO_TIME, Durations, Lengths, Observed, mean_count
from workloads.generator.sessions import Continuations, Sessions
from workloads.generator.shared_prefixes import Documents, SystemPrompts

MOST_USERS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """A closed loop of users, each of whom sends a request a think time after the last answer.

    Raises ScenarioError for values out of range.
    """

    count: int
    think_s: Durations = NO_TIME
    """Time from an answer to the user's next request, or next session. Within a session the turns
    have a think time of their own."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_USERS:
            raise ScenarioError(f"{self.count} users; expected 1 to {MOST_USERS}")


MAX_REQUESTS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestKind:
    """One kind of requests or sessions. Raises ScenarioError for values out of range."""

    prompt_tokens: Lengths | Observed
    """Prompt tokens of a request, or of a session's first turn. Shared prefixes come on top, unless
    they are declared to be part of it."""
    output_tokens: Lengths | Observed
    is_paired: bool = False
    """Whether prompt and output are `Observed` together, the i-th of one with the i-th of the
    other."""
    system_prompts: SystemPrompts | None = None
    documents: Documents | None = None
    sessions: Sessions | None = None
    continuations: Continuations | None = None
    share: float = 1.0
    """Share of the starts (requests or sessions), relative to the other kinds."""
    name: str = ""

    def __post_init__(self) -> None:
        if self.prompt_tokens.min_tokens < 1:
            raise ScenarioError("prompt_tokens of a generated workload must be at least 1")
        new_tokens = self.sessions and self.sessions.new_tokens
        if new_tokens and new_tokens.min_tokens < 1:
            raise ScenarioError("new_tokens of a session must be at least 1")
        if self.continuations is not None and self.sessions is not None:
            raise ScenarioError("continuations are for requests of no session: give one of the two")
        if not self.share > 0:
            raise ScenarioError(f"share of {self.name!r} is {self.share}; expected above 0")
        if (
            self.continuations is not None
            and self.documents is not None
            and self.documents.collection is not None
        ):
            raise ScenarioError("continuations and documents of a collection do not go together")

    @property
    def mean_turns(self) -> float:
        """Mean number of requests per start."""
        return 1.0 if self.sessions is None else mean_count(self.sessions.turns)

    @property
    def prefix_is_part_of_input(self) -> bool:
        """Whether shared prefixes are the first of the drawn prompt tokens."""
        return self.system_prompts is not None and self.system_prompts.part_of_input

    @property
    def remembers(self) -> bool:
        """Whether later requests continue earlier ones, answers included."""
        has_history = self.sessions is not None and self.sessions.history
        return has_history or self.continuations is not None

    @property
    def shares_prefixes(self) -> bool:
        """Whether requests of this kind have leading tokens in common."""
        shares_documents = self.documents is not None and self.documents.collection is not None
        return self.remembers or self.system_prompts is not None or shares_documents


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GeneratorSpec:
    """What to generate. Raises ScenarioError for values out of range."""

    arrivals: Arrivals
    """Arrivals of requests; for sessions, the starts come at such a rate that all turns together
    have this one. Must be all-at-once if there are ``users``."""
    kinds: tuple[RequestKind, ...]
    num_requests: int | None = None
    """Number of requests, counting all turns of sessions; None: give ``duration_s``."""
    duration_s: float | None = None
    """Keep requests that arrive in ``[0, duration_s)``, or would if answers took no time."""
    max_concurrency: int | None = None
    """Closed loop with at most this many requests in flight (see
    `RequestTable.max_concurrency`)."""
    users: Users | None = None
    """Closed loop of users, each with one request or session at a time."""
    block_tokens: int = 16
    """Tokens per prefix block id. Long contexts need less memory with larger blocks."""
    source: str = "generated"

    def __post_init__(self) -> None:
        if (self.num_requests is None) == (self.duration_s is None):
            raise ScenarioError("a generated workload needs num_requests or duration_s, not both")
        if self.num_requests is not None and not 1 <= self.num_requests <= MAX_REQUESTS:
            raise ScenarioError(
                f"num_requests is {self.num_requests}; expected 1 to {MAX_REQUESTS}"
            )
        if self.duration_s is not None:
            if self.users is not None:
                raise ScenarioError(
                    "users send as answers come: give num_requests, not duration_s "
                    "(horizon_s stops the run at a time)"
                )
            if self.arrivals.requests_per_s is None:
                raise ScenarioError(f"{ALL_AT_ONCE} arrivals need num_requests, not duration_s")
            expected = self.arrivals.requests_per_s * self.duration_s
            if not (self.duration_s > 0 and expected <= MAX_REQUESTS):
                raise ScenarioError(
                    f"duration_s is {self.duration_s}; expected above 0, and at most "
                    f"{MAX_REQUESTS} requests in it"
                )
        if not self.kinds:
            raise ScenarioError("a generated workload needs at least one kind of request")
        if not 1 <= self.block_tokens <= 1 << 20:
            raise ScenarioError(f"block_tokens is {self.block_tokens}; expected 1 to {1 << 20}")
        self._check_loop()

    def _check_loop(self) -> None:
        if self.max_concurrency is not None:
            if self.max_concurrency < 1:
                raise ScenarioError(
                    f"max_concurrency is {self.max_concurrency}; expected at least 1"
                )
            if self.has_turns or self.users is not None:
                closed = "users" if self.users is not None else "sessions"
                raise ScenarioError(
                    f"max_concurrency does not go with {closed}, which wait for answers "
                    "themselves; to hold the load, give users"
                )
        if self.users is not None and self.arrivals.process != ALL_AT_ONCE:
            raise ScenarioError("users set their own rate: give users or requests_per_s, not both")
        if self.users is not None and any(kind.continuations for kind in self.kinds):
            raise ScenarioError(
                "continuations need arrival times, which users do not have; give sessions instead"
            )

    @property
    def has_turns(self) -> bool:
        """Whether there are sessions of more than one request."""
        return any(kind.sessions is not None and kind.mean_turns > 1 for kind in self.kinds)

    @property
    def mean_turns(self) -> float:
        """Mean number of requests per start, over all kinds."""
        total = sum(kind.share for kind in self.kinds)
        return sum(kind.share * kind.mean_turns for kind in self.kinds) / total
