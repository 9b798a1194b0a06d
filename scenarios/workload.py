"""The scenario's workload as a request table."""

from __future__ import annotations

from scenarios.classes import build_classes
from scenarios.schema import Scenario
from scenarios.workload_schema import Lengths, Source
from sim.clock import to_s
from sim.errors import ScenarioError
from sim.request_table import RequestTable
from workloads import transform
from workloads.arrivals import Arrivals
from workloads.detect import read_trace
from workloads.generate import GeneratorSpec, generate
from workloads.lengths import Lengths as LengthSpec
from workloads.lengths import Lognormal, fixed
from workloads.presets import preset_spec

_DEFAULT_DURATION_S = 600.0


def build_table(scenario: Scenario) -> RequestTable:
    """Read or generate the requests and apply what the scenario says about them.

    Raises TraceError for a file that cannot be read, ScenarioError for settings that do not fit.
    """
    workload = scenario.workload
    if not workload.classes:
        return _build_source(workload, scenario.seed)
    table = build_classes(scenario, _build_source)
    if workload.num_requests is not None:
        table = transform.limit(table, workload.num_requests)
    if workload.max_concurrency is not None:
        table = transform.with_concurrency(table, workload.max_concurrency)
    return table


def _build_source(source: Source, seed: int) -> RequestTable:
    if source.trace is not None:
        return _from_trace(source)
    return generate(_generator_spec(source), seed)


def _from_trace(workload: Source) -> RequestTable:
    trace = workload.trace
    assert trace is not None
    table = read_trace(
        trace.path,
        format=trace.format,
        skip_bad_rows=trace.skip_bad_rows,
        spread_ticks=trace.spread_ticks,
    )
    if workload.window_s is not None:
        table = transform.window(table, *workload.window_s)
    if workload.repeat > 1:
        table = transform.repeat(table, workload.repeat)
    if workload.num_requests is not None:
        table = transform.limit(table, workload.num_requests)
    if workload.rate_per_s is not None and len(table):  # nothing has no rate, and needs none
        table = transform.scale_rate(table, workload.rate_per_s)
    if workload.max_concurrency is not None:
        table = transform.with_concurrency(table, workload.max_concurrency)
    return table


def _generator_spec(workload: Source) -> GeneratorSpec:
    num_requests, duration_s = workload.num_requests, workload.duration_s
    if num_requests is None and duration_s is None:
        duration_s = _DEFAULT_DURATION_S
    if workload.preset is not None:
        return preset_spec(
            workload.preset,
            num_requests=num_requests,
            duration_s=duration_s,
            requests_per_s=workload.rate_per_s,
            max_concurrency=workload.max_concurrency,
        )
    generator = workload.generator
    assert generator is not None
    process = generator.arrivals
    if workload.rate_per_s is None and process != "all-at-once":
        if workload.max_concurrency is None:
            raise ScenarioError(
                f"workload.rate_per_s (--rate): {process} arrivals need a rate; without one, give "
                "max_concurrency (--concurrency), as load tools do, or arrivals: all-at-once"
            )
        process = "all-at-once"  # a load tool without a rate: the concurrency alone holds it back
    if process == "all-at-once" and num_requests is None:
        raise ScenarioError(
            "workload.num_requests (--num-requests): needed where no rate bounds the workload"
        )
    return GeneratorSpec(
        arrivals=Arrivals(
            process=process,
            requests_per_s=None if process == "all-at-once" else workload.rate_per_s,
            cv=generator.cv,
        ),
        prompt_tokens=_lengths(generator.input_tokens),
        output_tokens=_lengths(generator.output_tokens),
        num_requests=num_requests,
        duration_s=duration_s,
        max_concurrency=workload.max_concurrency,
        source=f"generated: {process} arrivals",
    )


def _lengths(lengths: Lengths) -> LengthSpec:
    if lengths.fixed is not None:
        return fixed(lengths.fixed)
    components = tuple(
        Lognormal(weight=c.weight, mu=c.mu, sigma=c.sigma) for c in lengths.lognormal
    )
    return LengthSpec(components=components, min_tokens=lengths.min, max_tokens=lengths.max)


def describe_workload(scenario: Scenario, table: RequestTable) -> str:
    """One line for the result's conditions."""
    text = f"{len(table):,} requests, {table.source}"
    if table.max_concurrency is not None:
        text += f", at most {table.max_concurrency} in flight"
    if scenario.workload.rate_per_s is not None:
        text += f", {scenario.workload.rate_per_s:g} requests/s"
    return text


def check_warmup(scenario: Scenario, table: RequestTable) -> None:
    """Raise ScenarioError where no request would be left to measure."""
    if not len(table) or not table.is_open_loop:
        return
    last_s = to_s(int(table.arrival_ns[-1]))
    if scenario.warmup_s > last_s:
        raise ScenarioError(
            f"warmup_s {scenario.warmup_s:g} leaves no request to measure: the last one arrives "
            f"at {last_s:.6g} s"
        )
