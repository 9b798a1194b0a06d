"""Scenario fields of distributions: token counts, times, numbers of turns, shares."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from scenarios.schema.fields import LONGEST_S, MOST_TOKENS, Number, Positive, Section, Tokens, Whole
from workloads.generator.distributions import DEFAULT_MAX_TOKENS
from workloads.generator.distributions import MOST_COUNTS as MOST

Share = Annotated[Number, Field(ge=0, le=1)]


class Distribution(Section):
    """A few numbers that `scenario init` writes on one line."""

    on_one_line: ClassVar[bool] = True


class Lognormal(Section):
    """A component: ln(x) is normal. Also written as a list, [weight, mu, sigma]."""

    weight: Positive = Field(1.0, description="share of this component")
    mu: Number = Field(description="mean of ln(x)")
    sigma: Positive = Field(description="standard deviation of ln(x)")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return _named(value, "weight", "mu", "sigma")


class Gamma(Section):
    """A component: gamma, mean shape * scale. Also written as a list, [weight, shape, scale]."""

    weight: Positive = Field(1.0, description="share of this component")
    shape: Positive = Field(description="1: exponential; higher: narrower")
    scale: Positive = Field(description="mean over shape")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return _named(value, "weight", "shape", "scale")


class Lengths(Distribution):
    """Tokens: a fixed length, a clipped mixture of lognormals and gammas, or those of a file."""

    fixed: Annotated[Whole, Field(ge=0, le=MOST_TOKENS)] | None = Field(
        None, description="always this many tokens"
    )
    lognormal: list[Lognormal] = Field(default_factory=list, description="of tokens")
    gamma: list[Gamma] = Field(default_factory=list, description="of tokens")
    from_file: str | None = Field(
        None,
        description="drawn from a file: CSV with input_tokens and output_tokens, or any trace",
    )
    min: Tokens = Field(1, description="shorter ones are this long")
    max: Tokens = Field(DEFAULT_MAX_TOKENS, description="longer ones are this long")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        mixture = [*self.lognormal, *self.gamma]
        given = [self.fixed is not None, bool(mixture), self.from_file is not None]
        if sum(given) != 1:
            raise ValueError("give either fixed or lognormal (or gamma, or from_file)")
        if not mixture and (self.min, self.max) != (1, DEFAULT_MAX_TOKENS):
            raise ValueError("min and max clip lognormal lengths; a fixed length has none")
        if self.min > self.max:
            raise ValueError(f"min {self.min} must not be above max {self.max}")
        _check_weights(mixture)
        return self


class Durations(Distribution):
    """Seconds: a fixed time, an exponential one, or a clipped mixture."""

    fixed: Annotated[Number, Field(ge=0, le=1e8)] | None = Field(None, description="always this")
    mean: Annotated[Positive, Field(le=1e8)] | None = Field(
        None, description="exponential with this mean"
    )
    lognormal: list[Lognormal] = Field(default_factory=list, description="of seconds")
    gamma: list[Gamma] = Field(default_factory=list, description="of seconds")
    min: Positive | None = Field(None, description="shorter ones last this long")
    max: Annotated[Positive, Field(le=LONGEST_S)] | None = Field(
        None, description="longer ones last this long"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        mixture = [*self.lognormal, *self.gamma]
        given = [self.fixed is not None, self.mean is not None, bool(mixture)]
        if sum(given) != 1:
            raise ValueError("give exactly one of fixed, mean, and lognormal (or gamma)")
        if not mixture and (self.min, self.max) != (None, None):
            raise ValueError("min and max clip lognormal or gamma times")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} must not be above max {self.max:g}")
        _check_weights(mixture)
        return self


class Counts(Distribution):
    """How many, at least one: fixed, geometric, by the probability of another, or a mixture."""

    fixed: Annotated[Whole, Field(ge=1, le=MOST)] | None = Field(
        None, description="always this many"
    )
    mean: Annotated[Number, Field(ge=1, le=MOST)] | None = Field(
        None, description="geometric with this mean: another always has the same probability"
    )
    another: list[Share] = Field(
        default_factory=list,
        description="probability of another after the first, the second, ...; the last holds on",
    )
    lognormal: list[Lognormal] = Field(default_factory=list, description="rounded")
    gamma: list[Gamma] = Field(default_factory=list, description="rounded")
    min: Annotated[Whole, Field(ge=1, le=MOST)] | None = Field(
        None, description="of lognormal or gamma"
    )
    max: Annotated[Whole, Field(ge=1, le=MOST)] | None = Field(
        None, description="at most this many"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        mixture = [*self.lognormal, *self.gamma]
        kinds = (self.fixed is not None, self.mean is not None, bool(self.another), bool(mixture))
        if sum(kinds) != 1:
            raise ValueError("give exactly one of fixed, mean, another, and lognormal (or gamma)")
        if self.fixed is not None and self.max is not None:
            raise ValueError("max is for what varies; fixed has none")
        if self.min is not None and not mixture:
            raise ValueError("min clips lognormal or gamma counts")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} must not be above max {self.max}")
        if self.another and self.another[-1] == 1 and self.max is None and 0 not in self.another:
            raise ValueError("the last probability of another is 1, so give max")
        _check_weights(mixture)
        return self


class Percentiles(Distribution):
    """A distribution by some of its percentiles, linear between them; or one fixed value."""

    fixed: Number | None = Field(None, description="always this value")
    p10: Number | None = Field(None, description="10 % lie below")
    p25: Number | None = Field(None, description="25 % lie below")
    p50: Number | None = Field(None, description="the median")
    p75: Number | None = Field(None, description="75 % lie below")
    p90: Number | None = Field(None, description="90 % lie below")
    p99: Number | None = Field(None, description="99 % lie below")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        values = [v for n, v in self.given().items() if n != "fixed"]
        if (self.fixed is None) == (not values):
            raise ValueError("give either fixed or percentiles (p10, p25, p50, p75, p90, p99)")
        if values != sorted(values):
            raise ValueError("a higher percentile must not have a lower value")
        return self

    def given(self) -> dict[str, float]:
        """Return the values that are given, in order."""
        return {n: v for n in type(self).model_fields if (v := getattr(self, n)) is not None}


def check_range(percentiles: Percentiles, what: str, least: float, most: float) -> None:
    """Raise ValueError for a value outside ``[least, most]``."""
    for value in percentiles.given().values():
        if not least <= value <= most:
            raise ValueError(f"{what} must be from {least:g} to {most:g}, not {value:g}")


def _named(value: Any, *names: str) -> Any:
    if isinstance(value, list):
        if len(value) != len(names):
            raise ValueError(f"a component is a list of {', '.join(names)}, not {value}")
        return dict(zip(names, value, strict=True))
    return value


def _check_weights(components: list[Any]) -> None:
    total = sum(component.weight for component in components)
    if components and abs(total - 1) > 0.025:
        raise ValueError(f"the weights of lognormal must sum to 1, not {total:g}")
