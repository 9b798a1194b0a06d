"""Scenario fields of the workload: a trace, a preset or a generator."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scenarios.schema.arrivals import Drift
from scenarios.schema.distributions import Durations
from scenarios.schema.fields import Count, Number, Positive, Seconds, Section, Tokens, Whole
from scenarios.schema.generator import Generator, MostUsers

ColumnKey = Literal["arrival", "input", "output", "session", "class", "unit"]


class Trace(Section):
    """Settings of a recorded workload."""

    path: str = Field(description="the file; relative paths start at the scenario's folder")
    format: str | None = Field(None, description="its format; None: detected from the content")
    columns: dict[ColumnKey, str] | None = Field(
        None,
        description="columns of a CSV or JSON lines of your own, as {arrival: timestamp, input: "
        "prompt_tokens, output: completion_tokens}, with session, class and unit (of times: s, ms, "
        "us, ns) if you like; those not given are found by well-known names",
    )
    skip_bad_rows: bool = Field(False, description="count malformed rows instead of stopping")
    spread_ticks: bool = Field(True, description="spread Mooncake's 3 s ticks")
    replay: Literal["open", "closed"] | None = Field(
        None,
        description="sessions at their recorded times (open), or each turn a think time after the "
        "answer before it (closed); by default closed where think times were recorded",
    )
    subset: str | None = Field(
        None, description="which service's clients, where the file holds several (ServeGen)"
    )
    block_tokens: Tokens | None = Field(
        None, description="tokens a hash id stands for, where the format leaves it open"
    )


class Source(Section):
    """Who asks what, when: a trace, a preset, or a generator, and what is done to it."""

    trace: Trace | None = None
    preset: str | None = Field(None, description="a name of `fleetcast list presets`")
    generator: Generator | None = None
    rate_per_s: Annotated[Positive, Field(ge=1e-9, le=1e9)] | None = Field(
        None,
        description="mean arrival rate, all turns of sessions counted; a trace's time is "
        "stretched to it",
    )
    num_requests: Count | None = Field(
        None,
        description="generate, or keep from a trace, this many, all turns of sessions counted",
    )
    duration_s: Seconds | None = Field(
        None,
        description="generate arrivals, or draw sessions, for this long",
    )
    sessions_per_h: Annotated[Positive, Field(ge=1e-6, le=1e9)] | None = Field(
        None, description="how many sessions start, of a trace whose sessions share no clock"
    )
    num_sessions: Count | None = Field(
        None, description="draw this many sessions, instead of for duration_s"
    )
    window_s: tuple[Number, Number] | None = Field(
        None, description="[start, end) of a trace to keep, before its rate is scaled"
    )
    repeat: Count = Field(1, description="play a trace this many times, one after another")
    max_concurrency: Count | None = Field(
        None, description="closed loop: at most this many requests in flight"
    )
    users: MostUsers | None = Field(
        None,
        description="closed loop, of a preset or generator: so many users, each with one request "
        "or session at a time, instead of rate_per_s",
    )
    think_s: Durations | None = Field(
        None, description="from a user's last answer to its next request or session; None: 0"
    )
    drift: Drift | None = Field(
        None, description="how the rate of a preset or generator changes over time"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        known = type(self).model_fields
        names = [n for n in ("trace", "preset", "generator", "classes") if n in known]
        given = [name for name in names if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"give exactly one of {', '.join(names)}; found {found}")
        return self

    @model_validator(mode="after")
    def _fits_source(self) -> Self:
        self._check_sessions()
        self._check_generated()
        if self.trace is None and (self.window_s is not None or self.repeat > 1):
            raise ValueError("window_s and repeat are for traces")
        if (
            self.generator is not None
            and self.generator.arrivals == "all-at-once"
            and (self.rate_per_s or self.duration_s or self.drift)
        ):
            raise ValueError("all-at-once arrivals have no rate_per_s, duration_s or drift")
        if self.num_requests is not None and self.duration_s is not None:
            raise ValueError("give num_requests or duration_s, not both")
        if self.window_s is not None and not 0 <= self.window_s[0] < self.window_s[1]:
            start, end = self.window_s
            raise ValueError(
                f"window_s must be [start, end] with 0 <= start < end, not [{start:g}, {end:g}]"
            )
        return self

    def _check_generated(self) -> None:
        if self.preset is None and self.generator is None:
            for name in ("users", "think_s", "drift"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is for a preset or a generator")
        if self.think_s is not None and self.users is None:
            raise ValueError("think_s is that of users: give users, or generator.sessions.think_s")
        if self.users is None:
            return
        others = ("rate_per_s", "duration_s", "max_concurrency", "drift")
        given = [name for name in others if getattr(self, name) is not None]
        if given:
            raise ValueError(
                f"users send when they have their answers, so {given[0]} does not go with them; "
                "num_requests says how many, and horizon_s stops at a time"
            )
        if self.generator is not None and self.generator.clients is not None:
            raise ValueError("give users (closed loop) or generator.clients (rates), not both")
        if self.generator is not None and self.generator.continuations is not None:
            raise ValueError("continuations need arrival times, which users do not have")

    def _check_sessions(self) -> None:
        draws = self.sessions_per_h is not None
        if draws and self.trace is None:
            raise ValueError("sessions_per_h is for traces")
        if self.num_sessions is not None and not draws:
            raise ValueError("num_sessions needs sessions_per_h")
        if draws and (self.duration_s is None) == (self.num_sessions is None):
            raise ValueError("sessions_per_h needs either duration_s or num_sessions")
        if self.trace is not None and self.duration_s is not None and not draws:
            raise ValueError(
                "duration_s is for generated workloads, and for traces with sessions_per_h; cut a "
                "trace with window_s"
            )


class SloTargets(Section):
    """Latency targets in seconds, each for every request; None is no target."""

    ttft_s: Positive | None = Field(None, description="time to first token")
    tpot_s: Positive | None = Field(None, description="time per output token after the first")
    e2e_s: Positive | None = Field(None, description="from arrival to the last token")
    itl_s: Positive | None = Field(None, description="gap between tokens (ITL, TBT), by itl_of")
    itl_of: Literal["p50", "p90", "p95", "p99", "max", "longest_tenth"] = Field(
        "p99",
        description="what of each request's own gaps must keep within itl_s: a percentile, the "
        "longest, or the mean of the longest tenth",
    )


class RequestClass(Source):
    """A part of the workload with a name, and a priority and targets of its own."""

    name: str = Field(min_length=1, max_length=60)
    priority: Annotated[Whole, Field(ge=-(10**9), le=10**9)] | None = Field(
        None, description="lower is served first by the priority scheduler; None: 0"
    )
    slo: SloTargets = Field(
        SloTargets(), description="of this class; a target not given is the scenario's"
    )

    @model_validator(mode="after")
    def _open(self) -> Self:
        if self.max_concurrency is not None:
            raise ValueError("max_concurrency holds for a whole workload, not for one class of it")
        return self


class Workload(Source):
    """The requests: one source, or several classes of requests side by side.

    Beside ``classes``, ``duration_s`` is that of every class without a size of its own, and
    ``rate_per_s`` scales the classes' rates to this sum.
    """

    classes: list[RequestClass] = Field(default_factory=list)
    n: Annotated[Whole, Field(ge=1, le=1000)] = Field(
        1, description="answers to each request, which share its prompt's KV cache"
    )
    n_shortest: Annotated[Positive, Field(le=1)] = Field(
        1.0,
        description="output tokens of further answers, as a share of the first's, are uniform from "
        "this to 1",
    )
    beam_width: Annotated[Whole, Field(ge=1, le=256)] = Field(
        1,
        description="hypotheses of beam search, one answer comes out; they share what they have in "
        "common, copied on write; 1: no beam search",
    )
    beam_tail_tokens: Positive | None = Field(
        None,
        description="tokens that each beam beside the first does not share with any other; None: "
        "what beams with parents drawn uniformly hold (assumed)",
    )

    @model_validator(mode="after")
    def _one_way_to_decode(self) -> Self:
        if self.beam_width > 1 and self.n > 1:
            raise ValueError("a request has n answers or a beam_width, not both: set one to 1")
        if self.beam_tail_tokens is not None and self.beam_width == 1:
            raise ValueError("beam_tail_tokens is of beam search: set beam_width above 1 too")
        return self

    @model_validator(mode="after")
    def _fits_classes(self) -> Self:
        if not self.classes:
            return self
        names = [c.name for c in self.classes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two classes are named {name!r}")
        if self.window_s is not None or self.repeat > 1:
            raise ValueError("window_s and repeat go into the class whose trace they cut")
        without = [c.name for c in self.classes if c.rate_per_s is None]
        if self.rate_per_s is not None and without:
            raise ValueError(
                f"rate_per_s scales the classes' own rates, and class {without[0]!r} gives none"
            )
        return self
