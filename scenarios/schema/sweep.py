"""Fields of a sweep file: its scenario, axes, constraints and plots."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from scenarios.schema.fields import Number, Section, Whole

MOST_POINTS = 200_000
_Steps = Annotated[Whole, Field(ge=2, le=10_000)]


class Span(Section):
    """Numbers between two ends, both included; of a random axis, what is drawn from."""

    start: Number = Field(alias="from", description="lowest value")
    to: Number = Field(description="highest value")
    steps: _Steps | None = Field(None, description="how many values; a random axis has none")
    scale: Literal["linear", "log"] = Field(
        "linear", description="log: equal ratios, for rates and sizes"
    )
    whole: bool = Field(False, description="round to whole numbers, for counts of tokens or GPUs")

    @model_validator(mode="after")
    def _is_a_span(self) -> Span:
        if self.to <= self.start:
            raise ValueError(f"to {self.to:g} must be above from {self.start:g}")
        if self.scale == "log" and self.start <= 0:
            raise ValueError(f"from {self.start:g} must be above 0 on a log scale")
        return self


Values = Annotated[list[Any], Field(min_length=1)]
Axis = Annotated[
    Annotated[Values, Tag("list")] | Annotated[Span, Tag("span")],
    Discriminator(lambda given: "span" if isinstance(given, dict | Span) else "list"),
]
Axes = dict[str, Axis]


class RandomAxes(Section):
    """Points drawn at random, each draw with every combination of the other axes."""

    draws: Annotated[Whole, Field(ge=1, le=MOST_POINTS)] = Field(
        description="how many; more draws keep the first ones"
    )
    seed: Annotated[Whole, Field(ge=0)] = Field(
        0, description="of the draws, not of the simulations; each axis has a stream of its own"
    )
    axes: Annotated[Axes, Field(min_length=1)] = Field(
        description="field: {from, to, scale, whole}, drawn evenly; or a list, drawn from"
    )


class PlotSpec(Section):
    """One figure of the page over one or two axes."""

    figure: str = Field(description="a column, e.g. ttft.p99, attainment, goodput_per_gpu")
    x: str = Field(description="the axis across")
    by: str | None = Field(None, description="a second axis: one line, or one row, a value")
    kind: Literal["auto", "lines", "heatmap"] = Field(
        "auto", description="auto: lines; a heat map where `by` has more than six values"
    )


class SweepFile(Section):
    """One sweep. Everything but `scenario` and an axis has a default; unknown keys are refused."""

    scenario: str | dict[str, Any] = Field(
        description="a scenario file, from this file's folder, or a scenario itself"
    )
    set: dict[str, Any] = Field(
        {}, description="fields that all points have on top of it, as section.key: value"
    )
    axes: Axes = Field(
        {},
        description="field: a list of values, or {from, to, steps, scale: linear|log, whole}; "
        "every combination is a point",
    )
    zipped: tuple[dict[str, Values], ...] = Field(
        (),
        description="blocks of lists of one length: the first values go together, the second, ...; "
        "a block counts as one axis",
    )
    random: RandomAxes | None = Field(None, description="axes that are drawn at random")
    constraints: tuple[str, ...] = Field(
        (),
        description="points that do not hold are left out: comparisons of axes, e.g. "
        "engine.tensor_parallel_size * pool.replicas <= 8",
    )
    replications: Annotated[Whole, Field(ge=1, le=10_000)] | None = Field(
        None,
        description="runs of each point, with seeds from the scenario's on, the same for all "
        "points; None: the scenario's",
    )
    best: str | None = Field(
        None,
        description="the column that says which point is best, e.g. goodput_per_gpu, "
        "usd_per_good_request, ttft.p99; None: by the scenario",
    )
    require: str | None = Field(
        None,
        description="what a point must keep to be best: a comparison of columns, e.g. attainment "
        ">= 0.99",
    )
    plots: tuple[PlotSpec, ...] = Field(
        (), description="figures of the page; none: those of the first axes"
    )
