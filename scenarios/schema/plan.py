"""Fields of a plan file: a workload and its growth, targets, and what fleets may be made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from scenarios.schema.fields import Count, Number, Positive, Seconds, Section, Whole

Size = Annotated[Whole, Field(ge=1, le=1024)]
Sizes = Size | Annotated[list[Size], Field(min_length=1)]


class Demand(Section):
    """How much load there is, and will be: what the fleet is planned for is their product."""

    now: Positive | None = Field(
        None,
        description="mean load today, in the unit of the workload: requests/s, sessions/h or "
        "users; None: the scenario's own rate",
    )
    growth_per_year: Annotated[Number, Field(gt=-1, le=100)] = Field(
        0.0, description="0.5 is half as much again after a year, compounded"
    )
    years: Annotated[Number, Field(ge=0, le=50)] = Field(0.0, description="until the plan's date")
    peak: Annotated[Number, Field(gt=0, le=1000)] = Field(
        1.0, description="the busiest time over the mean; what the workload's own bursts are not"
    )


class Target(Section):
    """A percentile of a latency that must keep within a time; several may be given."""

    metric: Literal["ttft", "tpot", "itl", "e2e"]
    itl_of: Literal["p50", "p90", "p95", "p99", "max", "longest_tenth"] = Field(
        "p99",
        description="of metric itl: what of each request's own gaps between tokens counts, a "
        "percentile, the longest, or the mean of the longest tenth",
    )
    percentile: Annotated[Number, Field(gt=0, lt=100)] = Field(
        99.0,
        description="so many percent of the requests that arrive must finish and keep within the "
        "target; those that are rejected or never finish miss it",
    )
    within_s: Seconds
    of_class: str | None = Field(
        None, description="a class of the workload; None: all requests together"
    )

    @property
    def share(self) -> float:
        """The percentile as a share of requests."""
        return self.percentile / 100


class GpuOffer(Section):
    """A GPU that can be had, and its price."""

    gpu: str = Field(description="a name of `fleetcast list gpus`")
    usd_per_gpu_h: Annotated[Number, Field(ge=0)] = Field(description="rent")
    available: Annotated[Whole, Field(ge=0)] | None = Field(
        None, description="how many there are to be had; None: as many as one likes"
    )
    date: str | None = Field(None, description="when that price held")
    source: str | None = Field(None, description="where it is from; None: it is assumed")


class EngineLayout(Section):
    """How one engine lies on its GPUs. Lists are alternatives; all their combinations count."""

    tensor_parallel_size: Sizes = 1
    pipeline_parallel_size: Sizes = 1
    data_parallel_size: Sizes = 1
    enable_expert_parallel: bool = False
    gpu: str | None = Field(
        None, description="a GPU of `gpus`; None: each of them, the same for prefill and decode"
    )


class LayoutChoice(EngineLayout):
    """Engines that do all of a request, or with `prefill` and `decode` engines of two kinds."""

    prefill: EngineLayout | None = None
    decode: EngineLayout | None = None
    ratios: list[Annotated[str, Field(pattern=r"^[1-9][0-9]*:[1-9][0-9]*$")]] = Field(
        ["1:1"], min_length=1, description="prefill to decode engines; fleets are multiples of it"
    )

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.prefill is None) != (self.decode is None):
            raise ValueError("prefill and decode come together")
        own = self.model_fields_set - {"prefill", "decode", "ratios", "gpu"}
        if self.prefill is not None and own:
            raise ValueError(f"{sorted(own)[0]} goes into prefill and decode")
        if self.prefill is None and "ratios" in self.model_fields_set:
            raise ValueError("ratios are those of prefill and decode engines")
        return self


class Range(Section):
    """Values of an option between two ends, both included; for sampled searches only."""

    start: Number = Field(alias="from", description="lowest value")
    to: Number = Field(description="highest value")
    scale: Literal["linear", "log"] = Field(
        "linear", description="log: equal ratios are equally far apart, for sizes and rates"
    )
    whole: bool = Field(
        False, description="whole numbers only, for counts; others are tried to four digits"
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.to <= self.start:
            raise ValueError(f"to {self.to:g} must be above from {self.start:g}")
        if self.scale == "log" and self.start <= 0:
            raise ValueError(f"from {self.start:g} must be above 0 on a log scale")
        if self.whole and not (self.start.is_integer() and self.to.is_integer()):
            raise ValueError("from and to of a whole range are whole numbers")
        return self


def _is_option(given: Any) -> Any:
    """Take a list unchanged and a mapping as a range, with errors in terms of one field, not a
    union."""
    kinds = "a list of values or a range {from, to, scale: linear|log, whole}"
    if isinstance(given, dict):
        try:
            return Range.model_validate(given)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            message = fault["msg"].removeprefix("Value error, ")
            where = "".join(f"{part}: " for part in fault["loc"])
            raise ValueError(f"{where}{message}; an option is {kinds}") from None
    if not isinstance(given, list | Range) or given == []:
        raise ValueError(f"must be {kinds}")
    return given


Option = Annotated[Annotated[list[Any], Field(min_length=1)] | Range, BeforeValidator(_is_option)]


class SearchMethod(Section):
    """How the candidates are searched: all of them, or a sample of a space too large for that."""

    method: Literal["exhaustive", "optuna"] = Field(
        "exhaustive",
        description="optuna: its TPE sampler chooses which candidates to try (pip install "
        "'fleetcast[optuna]'); a cheaper fleet may be missed",
    )
    trials: Annotated[Whole, Field(ge=1, le=100_000)] = Field(
        200,
        description="of optuna: candidates to try; those that bounds rule out unsimulated count",
    )
    seed: Annotated[Whole, Field(ge=0, le=2**32 - 1)] = Field(
        0, description="of optuna, not of the simulations: the same seed tries the same candidates"
    )

    @model_validator(mode="after")
    def _of_optuna(self) -> Self:
        own = sorted(self.model_fields_set & {"trials", "seed"})
        if self.method == "exhaustive" and own:
            raise ValueError(f"{own[0]} is for method: optuna")
        return self


class PlanFile(Section):
    """A planning question. Everything not given has a default; unknown keys are refused."""

    scenario: str | dict[str, Any] = Field(
        description="what all candidates share: a scenario file, or its fields here"
    )
    demand: Demand = Demand()
    targets: list[Target] = Field(min_length=1, description="all of them must be met")
    gpus: list[GpuOffer] = Field(min_length=1)
    layouts: list[LayoutChoice] = Field(
        [LayoutChoice()], min_length=1, description="how engines may lie on GPUs"
    )
    options: dict[str, Option] = Field(
        {},
        description="any scenario field by its dotted path, and the values to try; all "
        "combinations are candidates. With search.method optuna also a range: {from, to, scale: "
        "linear|log, whole}",
    )
    search: SearchMethod = SearchMethod()
    most_replicas: Annotated[Whole, Field(ge=1, le=10_000)] = Field(
        10_000, description="of a candidate, or multiples of its ratio"
    )
    budget_usd_per_h: Positive | None = Field(None, description="None: the cheapest, at any cost")
    confidence: Annotated[Number, Field(ge=0.5, le=0.995)] = Field(
        0.95,
        description="with which a further run, as long as those simulated, meets the targets; 0.95 "
        "takes 19 runs of a fleet, 0.9 takes 9",
    )
    num_requests: Count | None = Field(
        None,
        description="requests counted in each run, what a percentile is taken over; None: by the "
        "highest percentile",
    )
    ranked: Annotated[Whole, Field(ge=1, le=100)] = Field(
        3, description="how many candidates to rank, each with the fewest replicas that do"
    )

    @model_validator(mode="after")
    def _known_gpus(self) -> Self:
        names = [offer.gpu for offer in self.gpus]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"gpus: {name} is offered twice")
        for choice in self.layouts:
            for layout in (choice, choice.prefill, choice.decode):
                if layout is not None and layout.gpu not in (None, *names):
                    raise ValueError(f"layouts: {layout.gpu} is none of gpus: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _ranges_are_sampled(self) -> Self:
        ranges = sorted(key for key, given in self.options.items() if isinstance(given, Range))
        if ranges and self.search.method == "exhaustive":
            raise ValueError(
                f"options: {ranges[0]} is a range, which has too many values to try them all: add "
                "`search: {method: optuna}`, or list the values"
            )
        return self
