"""Optional features: what each adds to a replica, to the workload, and to a run's summary.

A feature is a module with the functions of `FeatureModule`. One that a scenario does not ask for
adds nothing. docs/extending.md adds one step by step.
"""

from __future__ import annotations

from typing import Any, Protocol

from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.models.spec import ModelSpec
from scenarios.build import compiling, lora
from scenarios.build.replica import Added
from scenarios.schema import Scenario
from sim.fleet.cluster import RunLog
from sim.request_table import RequestTable


class FeatureModule(Protocol):
    """The functions of a feature; each looks whether the scenario asks for it."""

    def added(
        self, scenario: Scenario, model: ModelSpec, gpu: GpuSpec, layout: Layout, /
    ) -> Added | None:
        """Return what the feature adds to a replica. Raises `ScenarioError` for a replica in which
        it is not modeled."""
        ...

    def with_columns(self, scenario: Scenario, table: RequestTable, /) -> RequestTable:
        """Return the workload with what the feature must know of each request."""
        ...

    def facts(self, log: RunLog, /) -> dict[str, Any] | None:
        """Return what the feature did in a run, for the summary: a ``title``, and ``facts``, each a
        ``name`` with a ``value`` in words."""
        ...


FEATURES: tuple[FeatureModule, ...] = (lora,)


def added(scenario: Scenario, model: ModelSpec, gpu: GpuSpec, layout: Layout) -> tuple[Added, ...]:
    """Return what each feature that the scenario asks for adds to a replica."""
    found = (feature.added(scenario, model, gpu, layout) for feature in FEATURES)
    return tuple(one for one in found if one is not None)


def with_columns(scenario: Scenario, table: RequestTable) -> RequestTable:
    """Return the workload with what features must know of each request."""
    for feature in FEATURES:
        table = feature.with_columns(scenario, table)
    return table


def facts(log: RunLog) -> list[dict[str, Any]]:
    """Return what each feature did in a run."""
    told = [feature.facts for feature in FEATURES] + [compiling.facts]
    return [found for facts_of in told if (found := facts_of(log)) is not None]
