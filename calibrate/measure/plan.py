"""Plan which cases a run measures, in what order, and how long that should take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from calibrate.measure.case import Case, Variant, num_copies
from calibrate.measure.kernels import FAMILIES, modules_of
from calibrate.measure.timing import foreseen_s

# Rates of the measured devices, rather too low than too high. They only predict a run's length.
_FLOP_PER_S = {"cuda": 5e14, "cpu": 5e10}
_BYTES_PER_S = {"cuda": 3.5e12, "cpu": 8e9}
_FIXED_S = {"cuda": 3e-6, "cpu": 1e-5}
_PREPARE_S = {"cuda": 0.04, "cpu": 0.005}
"""Time for inputs, check and graph, part of which falls into the pause after the previous case."""
_L2_BYTES = {"cuda": 60_000_000, "cpu": 0}


@dataclass(frozen=True, slots=True)
class Planned:
    """A case, the module that measures it, and the seconds that it should take."""

    case: Case
    module: ModuleType
    seconds: float

    @property
    def unit(self) -> str:
        """Return the name of the group that is measured at once: the family, or all cases that
        the module measures together."""
        if hasattr(self.module, "measure"):
            return self.module.__name__.rpartition(".")[2]
        return self.case.family


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases by family, in the order in which they are measured."""

    families: dict[str, list[Planned]]
    variants: dict[Variant, list[Planned]] = field(default_factory=dict)
    """All cases of each kernel and formats, regardless of the part, smallest first."""

    def without(self, done: set[str]) -> Plan:
        """Return the plan without the cases that have these keys."""
        left = {
            family: [one for one in cases if one.case.key not in done]
            for family, cases in self.families.items()
        }
        return Plan(left, self.variants)

    def units(self) -> dict[str, list[Planned]]:
        """Return the cases grouped by `Planned.unit`; units without cases are omitted."""
        units: dict[str, list[Planned]] = {}
        for cases in self.families.values():
            for one in cases:
                units.setdefault(one.unit, []).append(one)
        return units


def make_plan(families: Iterable[str], quick: bool, device: str, part: tuple[int, int]) -> Plan:
    """Plan the cases of ``families``, which are keys of `FAMILIES`. ``part`` (1, 2) is the first
    of two halves."""
    plan = Plan({})
    for family in families:
        cases = _cases(family, quick, device)
        for one in cases:
            plan.variants.setdefault(one.case.variant, []).append(one)
        number, parts = part
        plan.families[family] = _spread(_dealt(cases, parts)[number - 1])
    return plan


def all_families() -> tuple[str, ...]:
    """Return all families in the order in which they are measured."""
    return tuple(FAMILIES)


def _cases(family: str, quick: bool, device: str) -> list[Planned]:
    planned = []
    for module in modules_of(family):
        for case in module.cases(quick, device):
            if case.family == family:
                planned.append(Planned(case, module, _case_s(case, module, device)))
    return planned


def _case_s(case: Case, module: ModuleType, device: str) -> float:
    work = getattr(module, "work", None)
    flops, num_bytes = work(case) if work is not None else (0.0, 0.0)
    busy_s = max(flops / _FLOP_PER_S[device], num_bytes / _BYTES_PER_S[device])
    copies = num_copies(num_bytes, _L2_BYTES[device])
    return _PREPARE_S[device] + foreseen_s(_FIXED_S[device] + busy_s, copies, device)


def _dealt(cases: Sequence[Planned], parts: int) -> list[list[Planned]]:
    """Deal cases to parts, so that each part gets a share of every curve.

    Of every ``parts`` consecutive cases each part gets one; the longest goes to the part with the
    least load.
    """
    dealt: list[list[Planned]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for first in range(0, len(cases), parts):
        neighbors = sorted(cases[first : first + parts], key=lambda one: -one.seconds)
        lightest = sorted(range(parts), key=loads.__getitem__)
        for part, one in zip(lightest, neighbors, strict=False):
            dealt[part].append(one)
            loads[part] += one.seconds
    return dealt


def _spread(cases: Sequence[Planned]) -> list[Planned]:
    """Reorder cases to every fourth one, then those between, so that a run that is cut short has
    covered the grid."""
    return [one for first in (0, 2, 1, 3) for one in cases[first::4]]
