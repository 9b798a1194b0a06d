"""Request classes: one table of several workloads, and the targets of each class."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scenarios.schema import Scenario
from scenarios.schema.workload import RequestClass, Source
from sim.books.metrics import Slo
from sim.request_table import RequestTable
from workloads.merge import merge


def build_classes(
    scenario: Scenario, build_source: Callable[[Source, int], RequestTable]
) -> RequestTable:
    """Return the requests of all classes in order of arrival.

    Each class has its own random streams, seeded by its name, so changing one class leaves the
    others alone.
    """
    workload = scenario.workload
    rates = [c.rate_per_s or 0.0 for c in workload.classes]
    factor = 1.0 if workload.rate_per_s is None else workload.rate_per_s / sum(rates)
    tables = {}
    for request_class in workload.classes:
        source = _sized(request_class, workload, factor)
        table = build_source(source, _seed(scenario.seed, request_class.name))
        if request_class.priority is not None:
            table = replace(table, priority=np.full(len(table), request_class.priority))
        tables[request_class.name] = table
    if not scenario.kv.share_across_tenants:
        return merge(tables)
    # Repeated traces and drawn sessions do not share content with other classes.
    return merge(
        tables,
        {
            c.name: c.trace.path
            for c in workload.classes
            if c.trace is not None and c.repeat == 1 and c.sessions_per_h is None
        },
    )


def class_slos(scenario: Scenario) -> list[Slo]:
    """Return the targets of each class, or only the scenario's if it has no classes."""
    common = scenario.slo.model_dump()
    if not scenario.workload.classes:
        return [Slo(**common)]
    every = []
    for one in scenario.workload.classes:
        own = {name: value for name, value in one.slo.model_dump().items() if value is not None}
        if one.slo.itl_s is None:  # the scenario's gaps, by the scenario's own statistic
            own.pop("itl_of")
        every.append(Slo(**common | own))
    return every


def _sized(request_class: RequestClass, workload: Source, factor: float) -> RequestClass:
    changed: dict[str, float] = {}
    if request_class.rate_per_s is not None and factor != 1.0:
        changed["rate_per_s"] = request_class.rate_per_s * factor
    sized = request_class.num_requests is not None or request_class.duration_s is not None
    if not sized and request_class.trace is None and workload.duration_s is not None:
        changed["duration_s"] = workload.duration_s
    return request_class.model_copy(update=changed)


def _seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
