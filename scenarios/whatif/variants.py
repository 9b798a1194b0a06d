"""The scenarios a what-if simulates: the baseline, each change alone, and all of them together."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scenarios.build import build
from scenarios.load import validate
from scenarios.schema import Scenario
from scenarios.whatif.changes import BASELINE, TOGETHER, Change, all_together, check_changes
from scenarios.yaml_text import Places
from sim.errors import FleetcastError, ScenarioError

Kind = Literal["baseline", "single", "together"]


@dataclass(kw_only=True)
class Variant:
    """One column of the comparison; ``refused`` says why it cannot be run, if it cannot."""

    name: str
    kind: Kind
    settings: Mapping[str, Any] = field(default_factory=dict)
    scenario: Scenario | None = None
    refused: str | None = None
    joins: bool = False
    """Whether it is part of "all together"."""

    def refuse(self, reason: FleetcastError) -> None:
        """Take it out of the comparison."""
        self.refused = str(reason)


def make_variants(
    values: Mapping[str, Any], places: Places, changes: Sequence[Change]
) -> tuple[list[Variant], str]:
    """The baseline first, the changes in order, then all that join, together.

    Also why the last is missing, where that is not plain. What cannot be built is marked as
    refused. Raises ScenarioError for a field that does not exist or a value it cannot have, and
    for a baseline that cannot be built.
    """
    check_changes(changes)
    baseline = Variant(name=BASELINE, kind="baseline", scenario=validate(values, places))
    together, why_not = all_together(changes)
    variants = [baseline]
    for change in (*changes, *([together] if together else [])):
        kind: Kind = "together" if change is together else "single"
        variant = Variant(
            name=change.name,
            kind=kind,
            settings=dict(change.settings),
            joins=change.joins and kind == "single",
        )
        try:
            variant.scenario = _changed(values, places, change)
        except ScenarioError as error:
            if change is not together:
                raise
            variant.refuse(error)  # each is right by itself; two fields may exclude each other
        variants.append(variant)
    for variant in variants:
        _try_to_build(variant)
    return variants, why_not


def check_refusals(variants: Sequence[Variant]) -> None:
    """Raise ScenarioError where nothing is left to compare."""
    baseline, *others = variants
    if baseline.refused is not None:
        raise ScenarioError(f"the baseline cannot be run: {baseline.refused}")
    if all(variant.refused is not None for variant in others):
        lines = [f"{variant.name}: {variant.refused}" for variant in others]
        raise ScenarioError("\n".join(["no change can be run:", *lines]))


def _changed(values: Mapping[str, Any], places: Places, change: Change) -> Scenario:
    changed, where = copy.deepcopy(dict(values)), dict(places)
    change.apply(changed, where)
    return validate(changed, where)


def _try_to_build(variant: Variant) -> None:
    """Find out before any simulation what cannot be built, such as a model that does not fit."""
    if variant.scenario is None:
        return
    try:
        build(variant.scenario)
    except FleetcastError as error:
        variant.refuse(error)


__all__ = ["BASELINE", "TOGETHER", "Variant", "check_refusals", "make_variants"]
