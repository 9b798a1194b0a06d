"""The generator spec of a scenario's preset or generator section."""

from __future__ import annotations

from scenarios.schema.generator import Generator
from scenarios.schema.workload import Source
from sim.errors import ScenarioError
from workloads.generator import plain
from workloads.generator.arrivals import ALL_AT_ONCE, Arrivals, weibull_cv
from workloads.generator.distributions import fixed_s
from workloads.generator.presets import preset_spec
from workloads.generator.rate_changes import Drift, OnOff
from workloads.generator.spec import GeneratorSpec, Users

_DEFAULT_DURATION_S = 600.0


def generator_spec(source: Source) -> GeneratorSpec:
    """Return the spec of a source that is not a trace.

    Raises `ScenarioError` for settings that do not fit, `TraceError` if a file of lengths cannot be
    read.
    """
    num_requests, duration_s = source.num_requests, source.duration_s
    users = _users(source)
    if users is not None and num_requests is None:
        raise ScenarioError("workload.num_requests (--num-requests): needed with users")
    if num_requests is None and duration_s is None:
        duration_s = _DEFAULT_DURATION_S
    drift = None if source.drift is None else plain.drift(source.drift.model_dump())
    if source.preset is not None:
        return preset_spec(
            source.preset,
            num_requests=num_requests,
            duration_s=duration_s,
            requests_per_s=source.rate_per_s,
            max_concurrency=source.max_concurrency,
            users=users,
            drift=drift,
        )
    generator = source.generator
    assert generator is not None
    arrivals = Arrivals(process=ALL_AT_ONCE)
    if users is None:
        arrivals = _arrivals(generator, source, drift)
        if arrivals.process == ALL_AT_ONCE and num_requests is None:
            raise ScenarioError(
                "workload.num_requests (--num-requests): needed where no rate bounds the workload"
            )
    how = f"{arrivals.process} arrivals" if users is None else f"{users.count:,} users"
    return GeneratorSpec(
        arrivals=arrivals,
        kinds=(plain.request_kind(generator.model_dump()),),
        num_requests=num_requests,
        duration_s=duration_s,
        max_concurrency=source.max_concurrency,
        users=users,
        block_tokens=generator.block_tokens,
        source=f"generated: {how}",
    )


def _users(source: Source) -> Users | None:
    if source.users is None:
        return None
    think = source.think_s
    return Users(
        count=source.users,
        think_s=fixed_s(0.0) if think is None else plain.durations(think.model_dump()),
    )


def _arrivals(generator: Generator, source: Source, drift: Drift | None) -> Arrivals:
    process, rate_per_s = generator.arrivals, source.rate_per_s
    on_off = None if generator.on_off is None else plain.on_off(generator.on_off.model_dump())
    if on_off is not None and rate_per_s is None:
        rate_per_s = _rate_of_bursts(generator, on_off)
    if rate_per_s is None and process != ALL_AT_ONCE:
        if source.max_concurrency is None:
            raise ScenarioError(
                f"workload.rate_per_s (--rate): {process} arrivals need a rate; without one, give "
                "max_concurrency (--concurrency), as load tools do, users, or arrivals: all-at-once"
            )
        # A load tool without a rate: only the concurrency holds it back.
        return Arrivals(process=ALL_AT_ONCE)
    cv = 1.0 if generator.cv is None else generator.cv
    if generator.shape is not None:
        cv = weibull_cv(generator.shape)
    return Arrivals(
        process=process,
        requests_per_s=rate_per_s,
        cv=cv,
        clients=None
        if generator.clients is None
        else plain.clients(generator.clients.model_dump()),
        on_off=on_off,
        drift=drift,
    )


def _rate_of_bursts(generator: Generator, on_off: OnOff) -> float | None:
    assert generator.on_off is not None
    gap_s = generator.on_off.gap_s
    return None if gap_s is None else on_off.on_fraction / gap_s
