"""What a scenario may say of its workload: a trace, a preset or a generator."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scenarios.schema_fields import (
    MOST_TOKENS,
    Count,
    Number,
    Positive,
    Seconds,
    Section,
    Tokens,
    Whole,
)

_DEFAULT_MAX_TOKENS = 131_072


class Trace(Section):
    """A recorded workload."""

    path: str = Field(description="the file; relative paths start at the scenario's folder")
    format: str | None = Field(None, description="its format; None: detected from the content")
    skip_bad_rows: bool = Field(False, description="count malformed rows instead of stopping")
    spread_ticks: bool = Field(True, description="spread Mooncake's 3 s ticks")


class Lognormal(Section):
    """A component of a length distribution: ln(tokens) is normal."""

    weight: Positive = 1.0
    mu: Number
    sigma: Positive


class Lengths(Section):
    """A fixed length, or a clipped mixture of lognormals."""

    fixed: Annotated[Whole, Field(ge=0, le=MOST_TOKENS)] | None = None
    lognormal: list[Lognormal] = Field(default_factory=list)
    min: Tokens = 1
    max: Tokens = _DEFAULT_MAX_TOKENS

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.fixed is None) == (not self.lognormal):
            raise ValueError("give either fixed or lognormal")
        if self.fixed is not None and (self.min, self.max) != (1, _DEFAULT_MAX_TOKENS):
            raise ValueError("min and max clip lognormal lengths; a fixed length has none")
        if self.min > self.max:
            raise ValueError(f"min {self.min} must not be above max {self.max}")
        total = sum(component.weight for component in self.lognormal)
        if self.lognormal and abs(total - 1) > 0.025:
            raise ValueError(f"the weights of lognormal must sum to 1, not {total:g}")
        return self


class Generator(Section):
    """A synthetic workload."""

    arrivals: Literal["poisson", "gamma", "constant", "all-at-once"] = "poisson"
    cv: Annotated[Number, Field(ge=0.01, le=100)] = Field(
        1.0, description="of the gaps between arrivals, for gamma"
    )
    input_tokens: Lengths
    output_tokens: Lengths

    @model_validator(mode="after")
    def _has_prompts(self) -> Self:
        if self.input_tokens.fixed == 0:
            raise ValueError("input_tokens must be at least 1; only output_tokens may be 0")
        return self


class Source(Section):
    """Who asks what, when: a trace, a preset, or a generator, and what is done to it."""

    trace: Trace | None = None
    preset: str | None = Field(None, description="a name of `fleetcast list presets`")
    generator: Generator | None = None
    rate_per_s: Annotated[Positive, Field(ge=1e-9, le=1e9)] | None = Field(
        None, description="mean arrival rate; a trace's time is stretched to it"
    )
    num_requests: Count | None = Field(
        None, description="generate, or keep from a trace, this many"
    )
    duration_s: Seconds | None = Field(None, description="generate arrivals for this long")
    window_s: tuple[Number, Number] | None = Field(
        None, description="[start, end) of a trace to keep, before its rate is scaled"
    )
    repeat: Count = Field(1, description="play a trace this many times, one after another")
    max_concurrency: Count | None = Field(
        None, description="closed loop: at most this many requests in flight"
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
        if self.trace is not None and self.duration_s is not None:
            raise ValueError("duration_s is for generated workloads; cut a trace with window_s")
        if self.trace is None and (self.window_s is not None or self.repeat > 1):
            raise ValueError("window_s and repeat are for traces")
        if (
            self.generator is not None
            and self.generator.arrivals == "all-at-once"
            and (self.rate_per_s is not None or self.duration_s is not None)
        ):
            raise ValueError("all-at-once arrivals have no rate_per_s and no duration_s")
        if self.num_requests is not None and self.duration_s is not None:
            raise ValueError("give num_requests or duration_s, not both")
        if self.window_s is not None and not 0 <= self.window_s[0] < self.window_s[1]:
            start, end = self.window_s
            raise ValueError(
                f"window_s must be [start, end] with 0 <= start < end, not [{start:g}, {end:g}]"
            )
        return self


class SloTargets(Section):
    """Latency targets in seconds, each for every request; None is no target."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None


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
