"""Scenario fields of arrivals: drift, bursts and silences, clients."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from scenarios.schema.distributions import Durations, Percentiles, Share, check_range
from scenarios.schema.fields import LONGEST_S, Number, Positive, Section, Whole

Zipf = Annotated[Number, Field(ge=0, le=20)]

_DAY_S = 86_400.0


class Drift(Section):
    """A mean rate that changes in time: a measured profile, a swing, or factors of your own."""

    profile: str | None = Field(
        None, description="azure-conv (an hour), m-large, m-small, deepseek-r1, ragpulse (a day)"
    )
    amplitude: Share | None = Field(None, description="a sine: 0.4 swings by 40 % around the mean")
    factors: list[Annotated[Number, Field(ge=0, le=1e6)]] = Field(
        default_factory=lambda: [1.0],
        min_length=1,
        description="rates in equal parts of the period, relative to each other (24: hours)",
    )
    period_s: Annotated[Positive, Field(le=LONGEST_S)] = Field(
        _DAY_S, description="of amplitude or factors, which then repeat; a profile has its own"
    )
    start_s: Annotated[Number, Field(ge=0, le=LONGEST_S)] = Field(
        0.0, description="where in the period the run starts"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        has_factors = self.factors != [1.0]
        given = [self.profile is not None, has_factors, self.amplitude is not None]
        if sum(given) > 1:
            raise ValueError("give one of profile, factors, amplitude")
        if self.profile is not None and self.period_s != _DAY_S:
            raise ValueError("factors and amplitude have a period_s; a profile has its own")
        if not any(self.factors):
            raise ValueError("factors are all 0: nothing would ever arrive")
        return self


class OnOff(Section):
    """Bursts and silences: all requests arrive in bursts, at the mean rate over both."""

    on_s: Durations = Field(description="how long bursts last")
    off_s: Durations = Field(description="how long silences last")
    gap_s: Positive | None = Field(
        None, description="mean gap inside a burst, instead of the workload's rate_per_s"
    )

    @model_validator(mode="after")
    def _has_bursts(self) -> Self:
        if self.on_s.fixed == 0:
            raise ValueError("on_s must be above 0: requests arrive in bursts only")
        return self


class Clients(Section):
    """Many clients, each with its own rate and variability; a few carry most of the load."""

    count: Annotated[Whole, Field(ge=1, le=100_000)] = Field(100, description="how many clients")
    zipf: Zipf | None = Field(
        None, description="the k-th largest has a share like k ** -zipf; None: 1"
    )
    top_10_share: Share | None = Field(
        None, description="instead of zipf: the share of the load of the ten largest"
    )
    shares: list[Annotated[Number, Field(ge=0)]] = Field(
        default_factory=list, description="instead of count and zipf: the rate of each, relative"
    )
    cv: Percentiles = Field(
        Percentiles(fixed=1.0),
        description="of each client's gaps, by percentile of the load; 1 is Poisson",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.shares and (self.zipf is not None or self.top_10_share is not None):
            raise ValueError("zipf and top_10_share go with count; shares say it all")
        if self.shares and not any(self.shares):
            raise ValueError("shares are all 0")
        if self.zipf is not None and self.top_10_share is not None:
            raise ValueError("give zipf or top_10_share, not both")
        count, top = self.count, self.top_10_share
        if top is not None and not (count > 10 and 10 / count < top < 1):
            raise ValueError(
                f"the ten largest of {count} clients cannot have a share of {top:g}; equal clients "
                f"have {min(10 / count, 1):.3g} already"
            )
        check_range(self.cv, "cv", 0.01, 100)
        return self
