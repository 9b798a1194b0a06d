"""Read a plan file, and list its candidates: every GPU, layout and combination of options.

A candidate is a fleet of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from scenarios.build.layout import replica_gpus
from scenarios.build.pools import pool_scenarios
from scenarios.files.load import apply_setting, validate
from scenarios.files.messages import explain
from scenarios.files.paths import anchor_paths
from scenarios.files.scenario_file import read_scenario_file
from scenarios.files.yaml_text import Places, parse_yaml, read_text
from scenarios.schema import Scenario
from scenarios.schema.fleet import Prices
from scenarios.schema.plan import EngineLayout, GpuOffer, LayoutChoice, PlanFile
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A plan file that was read."""

    plan: PlanFile
    values: dict[str, Any]
    """Values of the scenario that all candidates share, not validated yet."""
    places: Places
    """Where each of the values was given."""
    text: str


def read_plan(path: Path) -> Asked:
    """Read a plan file. Raises `ScenarioError` naming file, line and field."""
    text = read_text(path, "plan")
    values, places = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ScenarioError(f"{path}: a plan is a mapping with scenario, targets and gpus")
    return asked(values, places, folder=path.parent, text=text)


def asked(values: dict[str, Any], places: Places, *, folder: Path, text: str = "") -> Asked:
    """Read a plan from values in memory; relative paths start at ``folder``.

    Raises `ScenarioError` naming place and field.
    """
    try:
        plan = PlanFile.model_validate(values)
    except ValidationError as error:
        raise ScenarioError(explain(error, places, PlanFile)) from None
    if isinstance(plan.scenario, str):
        scenario, where = read_scenario_file(folder / plan.scenario)
        return Asked(plan=plan, values=scenario, places=where, text=text)
    scenario = values["scenario"]
    if "base" in scenario:
        raise ScenarioError(
            f"{places.get(('scenario', 'base'), places[()])}: scenario.base is for scenario files; "
            "give the file as `scenario: FILE`, and what differs as options with one value each"
        )
    anchor_paths(scenario, folder)
    inner = {key[1:]: place for key, place in places.items() if key[:1] == ("scenario",)}
    return Asked(plan=plan, values=scenario, places={(): places[()]} | inner, text=text)


_SIZES = {
    "tensor_parallel_size": "TP",
    "pipeline_parallel_size": "PP",
    "data_parallel_size": "DP",
}
_ROLES = ("prefill", "decode")
_ELSEWHERE = {
    "hardware.gpu": "gpus",
    **{f"engine.{name}": "layouts" for name in (*_SIZES, "enable_expert_parallel")},
    **dict.fromkeys(("pool.replicas", "pools"), "layouts"),
    **dict.fromkeys(("slo", "slo.ttft_s", "slo.tpot_s", "slo.itl_s", "slo.e2e_s"), "targets"),
    "workload.rate_per_s": "demand",
    "prices": "gpus",
}
"""Scenario fields that a plan sets by itself, and the part of a plan that sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of engine in a candidate."""

    role: str
    """mixed, prefill or decode."""
    gpu: str
    gpus: int
    """GPUs of one engine."""
    count: int
    """Engines in one unit of the candidate."""
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to build a fleet, of any number of units: replicas, or multiples of a P:D ratio."""

    name: str
    scenario: Scenario
    """Scenario of one unit."""
    engines: tuple[Engine, ...]
    options: Mapping[str, Any]
    prices: Mapping[str, GpuOffer]
    """Offers by GPU name."""

    @property
    def gpus(self) -> int:
        """GPUs of one unit."""
        return sum(engine.count * engine.gpus for engine in self.engines)

    @property
    def is_split(self) -> bool:
        """Whether prefill and decode have separate engines."""
        return len(self.engines) > 1

    def gpus_by_name(self, units: int, *, spare: int = 0) -> dict[str, int]:
        """Return the GPUs of a fleet by name; ``spare`` adds engines of each kind."""
        found: dict[str, int] = {}
        for engine in self.engines:
            engines = units * engine.count + spare
            found[engine.gpu] = found.get(engine.gpu, 0) + engines * engine.gpus
        return found

    def usd_per_h(self, units: int, *, spare: int = 0) -> float:
        """Return the rent of a fleet, in USD per hour."""
        by_name = self.gpus_by_name(units, spare=spare)
        return sum(count * self.prices[name].usd_per_gpu_h for name, count in by_name.items())

    def fleet(self, units: int, *, spare: int = 0, down: str = "") -> Scenario:
        """Return the scenario of this many units; ``down`` names a role of which one engine is
        missing."""
        counts = [units * engine.count + spare - (engine.role == down) for engine in self.engines]
        if not self.is_split:
            pool = self.scenario.pool.model_copy(update={"replicas": counts[0]})
            return self.scenario.model_copy(update={"pool": pool})
        pools = tuple(
            spec.model_copy(update={"replicas": count})
            for spec, count in zip(self.scenario.pools, counts, strict=True)
        )
        return self.scenario.model_copy(update={"pools": pools})


class Hardware(NamedTuple):
    """A GPU with a layout."""

    layout: str
    """Name of the layout, without the GPU if the layout leaves it open."""
    gpu: str
    settings: dict[str, Any]
    """Scenario fields by their paths."""
    name: str


def candidates(asked: Asked) -> list[Candidate]:
    """Return all candidates of a plan, sorted by name, so that the order in the file does not
    matter.

    Raises `ScenarioError` for unknown fields, or values that a field cannot take.
    """
    found: dict[str, Candidate] = {}
    axes = option_fields(asked)
    for one in hardware(asked):
        # Only sampled searches have ranges, see `PlanFile`.
        for values in product(*(list(asked.plan.options[axis]) for axis in axes)):
            new = candidate_of(asked, one, dict(zip(axes, values, strict=True)))
            found.setdefault(new.name, new)
    return [found[name] for name in sorted(found)]


def option_fields(asked: Asked) -> list[str]:
    """Return the scenario fields that are options, in order.

    Raises `ScenarioError` for fields that the plan sets itself.
    """
    fields = sorted(asked.plan.options)
    for name in fields:
        if name in _ELSEWHERE:
            raise ScenarioError(f"options: {name} is for the plan's {_ELSEWHERE[name]}")
    return fields


def hardware(asked: Asked) -> Iterator[Hardware]:
    """Yield each GPU with each layout."""
    for choice in asked.plan.layouts:
        names = [choice.gpu] if choice.gpu else [offer.gpu for offer in asked.plan.gpus]
        for gpu in names:
            if choice.prefill is None or choice.decode is None:
                for sizes in _sizes(choice):
                    own = {f"engine.{key}": value for key, value in sizes.items()}
                    settings = {"hardware.gpu": gpu, "pools": [], **own}
                    text = _layout_text(sizes)
                    name = f"{gpu} {text}"
                    yield Hardware(name if choice.gpu else text, gpu, settings, name)
            else:
                yield from _split(choice, gpu)


def _split(choice: LayoutChoice, gpu: str) -> Iterator[Hardware]:
    """Yield prefill and decode pools: each pair of their layouts in each ratio."""
    assert choice.prefill is not None
    assert choice.decode is not None
    for sizes in product(_sizes(choice.prefill), _sizes(choice.decode)):
        own = [layout.gpu or gpu for layout in (choice.prefill, choice.decode)]
        for ratio in choice.ratios:
            counts = [int(part) for part in ratio.split(":")]
            pools = [
                {
                    "name": role,
                    "role": role,
                    "replicas": n,
                    "hardware": {"gpu": g},
                    "engine": dict(s),
                }
                for role, n, g, s in zip(_ROLES, counts, own, sizes, strict=True)
            ]
            parts = [f"{g} {_layout_text(s)}" for g, s in zip(own, sizes, strict=True)]
            fixed = [layout.gpu or choice.gpu or "" for layout in (choice.prefill, choice.decode)]
            open_ = [f"{g} {_layout_text(s)}" for g, s in zip(fixed, sizes, strict=True)]
            yield Hardware(
                layout=f"{ratio} P {open_[0]}, D {open_[1]}",
                gpu=gpu,
                settings={"hardware.gpu": gpu, "pools": pools},
                name=f"{ratio} P {parts[0]}, D {parts[1]}",
            )


def _sizes(layout: EngineLayout) -> Iterator[dict[str, Any]]:
    """Yield the engine options of every combination of sizes."""
    every = [getattr(layout, name) for name in _SIZES]
    for values in product(*(one if isinstance(one, list) else [one] for one in every)):
        sizes = dict(zip(_SIZES, values, strict=True))
        if layout.enable_expert_parallel:
            sizes["enable_expert_parallel"] = True
        yield sizes


def _layout_text(sizes: Mapping[str, Any]) -> str:
    """Return the sizes of a layout in short: ``TP 4, DP 2 EP``."""
    parts = [
        f"{short} {sizes[name]}"
        for name, short in _SIZES.items()
        if sizes[name] > 1 or name == "tensor_parallel_size"
    ]
    return " ".join(parts) + (" EP" if sizes.get("enable_expert_parallel") else "")


def candidate_of(asked: Asked, on: Hardware, options: Mapping[str, Any]) -> Candidate:
    """Return one candidate.

    Raises `ScenarioError` for unknown fields, or values that a field cannot take.
    """
    values, places = deepcopy(asked.values), dict(asked.places)
    for key, value in on.settings.items():
        apply_setting(values, places, key, value, f"layout {on.name}")
    for key, value in options.items():
        apply_setting(values, places, key, value, f"options {key}={value}")
    values |= {"replications": 1, "bands": False}
    told = [f"{key.rpartition('.')[2]} {_value_text(value)}" for key, value in options.items()]
    offers = {offer.gpu: offer for offer in asked.plan.gpus}
    scenario = validate(values, places)
    engines = tuple(
        Engine(
            role=role,
            gpu=of.hardware.gpu,
            gpus=replica_gpus(of),
            count=of.pool.replicas if scenario.pools else 1,
            layout=_layout_text(of.engine.model_dump(include={*_SIZES, "enable_expert_parallel"})),
        )
        for _, role, of in pool_scenarios(scenario)
    )
    scenario = _priced(scenario, [offers[engine.gpu] for engine in engines])
    return Candidate(
        name=", ".join([on.name, *told]),
        scenario=scenario,
        engines=engines,
        options=options,
        prices=offers,
    )


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _priced(scenario: Scenario, offers: list[GpuOffer]) -> Scenario:
    """Return the scenario with the offers' prices; its own powers are kept."""
    first = offers[0]
    known = scenario.prices.model_dump(exclude_unset=True) if scenario.prices else {}
    update: dict[str, Any] = {"usd_per_gpu_h": first.usd_per_gpu_h, "by_pool": {}}
    if any(offer.gpu != first.gpu for offer in offers):
        names = [spec.name for spec in scenario.pools]
        rents = [offer.usd_per_gpu_h for offer in offers]
        update["by_pool"] = dict(zip(names, rents, strict=True))
    update |= {key: getattr(first, key) for key in ("date", "source")}
    given = {key: value for key, value in (known | update).items() if value not in (None, {})}
    return scenario.model_copy(update={"prices": Prices(**given)})
