"""The generator: right distributions, stable random streams, clear errors."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sim.errors import ScenarioError
from sim.request_table import RequestTable
from workloads.generator.arrivals import Arrivals
from workloads.generator.distributions import (
    Gamma,
    Lengths,
    Lognormal,
    fixed,
    mean_tokens,
    sample_tokens,
)
from workloads.generator.generate import generate
from workloads.generator.spec import GeneratorSpec, RequestKind
from workloads.statistics.describe import describe

MIXED = Lengths(
    components=(
        Lognormal(weight=0.6, mu=5.0, sigma=1.0),
        Gamma(weight=0.4, shape=2.0, scale=300.0),
    ),
    min_tokens=2,
    max_tokens=4000,
)
KIND = RequestKind(prompt_tokens=MIXED, output_tokens=MIXED)
SPEC = GeneratorSpec(
    arrivals=Arrivals(process="gamma", requests_per_s=4.0, cv=2.0),
    kinds=(KIND,),
    num_requests=500,
)
PROCESSES = {
    "poisson": Arrivals(requests_per_s=4.0),
    "gamma": Arrivals(process="gamma", requests_per_s=4.0, cv=2.0),
    "weibull": Arrivals(process="weibull", requests_per_s=4.0, cv=2.0),
    "constant": Arrivals(process="constant", requests_per_s=4.0),
    "all-at-once": Arrivals(process="all-at-once"),
}


def columns(table: RequestTable) -> list[list[int]]:
    return [
        column.tolist()
        for column in (table.arrival_ns, table.prompt_tokens, table.output_tokens, table.priority)
    ]


def test_same_seed_same_table_other_seed_another() -> None:
    assert columns(generate(SPEC, 1)) == columns(generate(SPEC, 1))
    assert columns(generate(SPEC, 1))[:3] != columns(generate(SPEC, 2))[:3]


def test_streams_differ_from_each_other() -> None:
    _, prompts, outputs, _ = columns(generate(SPEC, 1))
    assert abs(np.corrcoef(prompts, outputs)[0, 1]) < 0.15


@pytest.mark.parametrize("arrivals", PROCESSES.values(), ids=PROCESSES)
def test_a_longer_run_starts_with_the_shorter_one(arrivals: Arrivals) -> None:
    short = generate(replace(SPEC, arrivals=arrivals, num_requests=200), 3)
    long = generate(replace(SPEC, arrivals=arrivals, num_requests=5000), 3)
    assert [column[:200] for column in columns(long)] == columns(short)


@pytest.mark.parametrize("name", ["poisson", "gamma", "weibull", "constant"])
def test_duration_takes_those_that_arrive_within(name: str) -> None:
    spec = replace(SPEC, arrivals=PROCESSES[name], num_requests=None, duration_s=100.0)
    table = generate(spec, 3)
    longer = generate(replace(SPEC, arrivals=PROCESSES[name], num_requests=2000), 3)
    assert len(table) == int((longer.arrival_ns < 100e9).sum())
    assert columns(table) == [column[: len(table)] for column in columns(longer)]


def test_bursts_longer_than_the_first_guess_are_drawn_on() -> None:
    arrivals = Arrivals(process="gamma", requests_per_s=1.0, cv=50.0)
    spec = replace(SPEC, arrivals=arrivals, num_requests=None, duration_s=10.0)
    sizes = [len(generate(spec, seed)) for seed in range(20)]
    assert max(sizes) > 75


CHANGES: dict[str, tuple[dict[str, object], int]] = {
    "arrivals": ({"arrivals": PROCESSES["poisson"]}, 0),
    "prompt": ({"kinds": (replace(KIND, prompt_tokens=fixed(9)),)}, 1),
    "output": ({"kinds": (replace(KIND, output_tokens=fixed(0)),)}, 2),
}


@pytest.mark.parametrize(("change", "changed_column"), CHANGES.values(), ids=CHANGES)
def test_changing_one_stream_leaves_the_others(
    change: dict[str, object], changed_column: int
) -> None:
    before = columns(generate(SPEC, 5))
    after = columns(generate(replace(SPEC, **change), 5))  # type: ignore[arg-type]
    assert [a != b for a, b in zip(before, after, strict=True)] == [
        column == changed_column for column in range(4)
    ]


@pytest.mark.parametrize("name", ["poisson", "gamma", "weibull", "constant"])
def test_gaps_scale_with_the_rate(name: str) -> None:
    arrivals = PROCESSES[name]
    slow = generate(replace(SPEC, arrivals=arrivals), 5)
    fast = generate(replace(SPEC, arrivals=replace(arrivals, requests_per_s=16.0)), 5)
    np.testing.assert_allclose(fast.arrival_ns * 4, slow.arrival_ns, rtol=0, atol=3)


@pytest.mark.parametrize(
    ("name", "cv", "idc"),
    [("poisson", 1.0, 1.0), ("gamma", 2.0, 4.0), ("weibull", 2.0, 4.0), ("constant", 0.0, 0.0)],
)
def test_arrivals_have_their_rate_and_burstiness(name: str, cv: float, idc: float) -> None:
    table = generate(replace(SPEC, arrivals=PROCESSES[name], num_requests=50_000), 7)
    statistics = describe(table)
    assert statistics["requests_per_s"] == pytest.approx(4.0, rel=0.03)
    assert statistics["interarrival_cv"] == pytest.approx(cv, rel=0.03, abs=1e-6)
    # A renewal process tends to IDC = CV^2 in long windows.
    assert statistics["idc_60s"] == pytest.approx(idc, rel=0.25, abs=1e-6)


def test_constant_spacing_starts_at_zero_and_all_at_once_stays_there() -> None:
    constant = replace(SPEC, arrivals=PROCESSES["constant"], num_requests=None, duration_s=1.0)
    assert generate(constant, 0).arrival_ns.tolist() == [0, 250_000_000, 500_000_000, 750_000_000]
    closed = replace(SPEC, arrivals=PROCESSES["all-at-once"], max_concurrency=8)
    assert not generate(closed, 0).arrival_ns.any()
    assert generate(closed, 0).max_concurrency == 8


def one(component: Lognormal | Gamma) -> Lengths:
    return Lengths(components=(component,), min_tokens=1, max_tokens=10**7)


MOMENTS: dict[str, tuple[Lengths, float, float]] = {
    "lognormal": (one(Lognormal(mu=6.0, sigma=0.5)), math.exp(6.125), math.exp(6.0)),
    "exponential": (one(Gamma(shape=1.0, scale=1000.0)), 1000.0, 1000.0 * math.log(2)),
    # Median of a gamma with shape 2: the root of (1 + x) exp(-x) = 1/2.
    "gamma": (one(Gamma(shape=2.0, scale=500.0)), 1000.0, 500.0 * 1.678347),
    "narrow gamma": (one(Gamma(shape=4000.0, scale=1.0)), 4000.0, 3999.67),
}


@pytest.mark.parametrize(("lengths", "mean", "median"), MOMENTS.values(), ids=MOMENTS)
def test_lengths_have_their_closed_form_moments(
    lengths: Lengths, mean: float, median: float
) -> None:
    tokens = sample_tokens(lengths, np.random.default_rng(0).random(200_000))
    assert tokens.mean() == pytest.approx(mean, rel=0.01)
    assert mean_tokens(lengths) == pytest.approx(mean, rel=1e-3)
    assert np.median(tokens) == pytest.approx(median, rel=0.01)


def test_mixture_is_clipped_and_weighted() -> None:
    two_spikes = Lengths(
        components=(
            Lognormal(weight=0.25, mu=math.log(100), sigma=0.01),
            Lognormal(weight=0.75, mu=math.log(10_000), sigma=0.01),
        ),
        min_tokens=50,
        max_tokens=5000,
    )
    tokens = sample_tokens(two_spikes, np.random.default_rng(0).random(100_000))
    assert (tokens == 5000).mean() == pytest.approx(0.75, abs=0.01)
    assert tokens.min() >= 95


BAD_SPECS: dict[str, tuple[Callable[[], object], str]] = {
    "process": (lambda: Arrivals(process="pareto"), "'pareto' is unknown; known: poisson"),
    "rate": (lambda: Arrivals(requests_per_s=0), "requests_per_s is 0"),
    "no rate": (lambda: Arrivals(), "requests_per_s is None"),
    "rate inf": (lambda: Arrivals(requests_per_s=math.inf), "requests_per_s is inf"),
    "rate at once": (
        lambda: Arrivals(process="all-at-once", requests_per_s=1),
        "have no requests_per_s",
    ),
    "cv": (lambda: Arrivals(requests_per_s=1, cv=math.nan), "cv of arrivals is nan"),
    "clip": (lambda: Lengths(min_tokens=5, max_tokens=4), "expected 0 <= min <= max"),
    "no component": (lambda: Lengths(min_tokens=1, max_tokens=4), "weights must sum to 1"),
    "from 0": (lambda: Lengths(min_tokens=0, max_tokens=4), "min_tokens of at least 1"),
    "sigma": (lambda: one(Lognormal(mu=1, sigma=0)), "must be above 0"),
    "mu": (lambda: one(Lognormal(mu=math.nan, sigma=1)), "must be a number"),
    "weights": (lambda: one(Gamma(weight=0.5, shape=1, scale=1)), "sum to 1"),
    "no prompt": (lambda: replace(KIND, prompt_tokens=fixed(0)), "must be at least 1"),
    "no size": (lambda: replace(SPEC, num_requests=None), "num_requests or duration_s"),
    "two sizes": (lambda: replace(SPEC, duration_s=1.0), "num_requests or duration_s"),
    "size 0": (lambda: replace(SPEC, num_requests=0), "num_requests is 0"),
    "endless": (
        lambda: replace(SPEC, num_requests=None, duration_s=math.inf),
        "duration_s is inf",
    ),
    "at once for": (
        lambda: replace(SPEC, arrivals=PROCESSES["all-at-once"], num_requests=None, duration_s=1.0),
        "need num_requests",
    ),
    "in flight": (lambda: replace(SPEC, max_concurrency=0), "max_concurrency is 0"),
    "seed": (lambda: generate(SPEC, -1), "seed is -1"),
    "slow": (
        lambda: generate(replace(SPEC, arrivals=Arrivals(requests_per_s=1e-9)), 0),
        "146 years",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD_SPECS.values(), ids=BAD_SPECS)
def test_bad_specs(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        call()
