"""Search a space that is too large to list: Optuna chooses what to try, and we judge it.

Each trial is a candidate that was not tried before. It is bounded first, and simulated only if no
bound rules it out. Optuna learns only what it then costs, or by how much it misses.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from scenarios.experiments.plan.candidates import (
    Asked,
    Candidate,
    Hardware,
    candidate_of,
    hardware,
    option_fields,
)
from scenarios.experiments.plan.judge import Judge
from scenarios.experiments.plan.search import Outcome, Search
from scenarios.experiments.plan.targets import check_targets, with_slo
from scenarios.schema.plan import Range, SearchMethod
from sim.errors import ScenarioError


class Levels(NamedTuple):
    """An axis of listed values, in an order that does not depend on the plan file's."""

    values: tuple[Any, ...]
    is_ordered: bool
    """Whether the values are numbers, so that neighbors are alike."""


Axis = Levels | Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The space of candidates; its axes are ``layout``, ``gpu`` and each option by its field."""

    asked: Asked
    by_layout: Mapping[str, Mapping[str, Hardware]]
    """Layout -> GPU -> hardware."""
    axes: Mapping[str, Axis]

    @property
    def candidates(self) -> int | None:
        """The number of candidates; None if a range is continuous."""
        sizes = [_size(axis) for key, axis in self.axes.items() if key not in ("layout", "gpu")]
        names = {one.name for gpus in self.by_layout.values() for one in gpus.values()}
        return None if None in sizes else math.prod([len(names), *(n for n in sizes if n)])

    def candidate(self, choice: Mapping[str, Any]) -> Candidate:
        """Return the candidate of a choice, which has a position per list and a number per range.

        The candidate has the targets as its SLO. Raises `ScenarioError` if its values do not fit
        together.
        """
        values = {key: _value(axis, choice[key]) for key, axis in self.axes.items()}
        gpus = self.by_layout[values.pop("layout")]
        gpu = values.pop("gpu")
        # A layout that names its GPU uses that one, whichever GPU is chosen.
        one = candidate_of(self.asked, gpus.get(gpu) or next(iter(gpus.values())), values)
        return replace(one, scenario=with_slo(one.scenario, self.asked.plan.targets))

    def start(self) -> Candidate:
        """Return one candidate, after checking that each value of each axis is valid with some
        others.

        Raises `ScenarioError` for values that are not, and for targets that do not fit.
        """
        places = {key: _places(axis) for key, axis in self.axes.items()}
        ends = [{key: of_axis[end] for key, of_axis in places.items()} for end in (0, -1)]
        found = self._any_of(ends)
        check_targets(self.asked.plan.targets, found.scenario)
        for key, of_axis in places.items():
            for place in of_axis:
                self._any_of([end | {key: place} for end in ends])
        return found

    def _any_of(self, choices: Sequence[Mapping[str, Any]]) -> Candidate:
        """Return the first choice that makes a valid scenario. Raises `ScenarioError` if there
        is none."""
        faults = []
        for choice in choices:
            try:
                return self.candidate(choice)
            except ScenarioError as error:
                faults.append(error)
        raise faults[0]


def space_of(asked: Asked) -> Space:
    """Return the space of a plan. Raises `ScenarioError` for unknown options."""
    by_layout: dict[str, dict[str, Hardware]] = {}
    for one in hardware(asked):
        by_layout.setdefault(one.layout, {}).setdefault(one.gpu, one)
    axes: dict[str, Axis] = {
        "layout": _levels(list(by_layout)),
        "gpu": _levels(sorted({gpu for gpus in by_layout.values() for gpu in gpus})),
    }
    for key in option_fields(asked):
        given = asked.plan.options[key]
        axes[key] = given if isinstance(given, Range) else _levels(given)
    return Space(asked=asked, by_layout=by_layout, axes=axes)


def _levels(values: list[Any]) -> Levels:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return Levels(tuple(sorted(set(values))), is_ordered=True)
    by_text = {json.dumps(value, sort_keys=True, default=str): value for value in values}
    return Levels(tuple(by_text[text] for text in sorted(by_text)), is_ordered=False)


def _places(axis: Axis) -> Sequence[Any]:
    """Return the positions of a list, or the ends of a range."""
    return range(len(axis.values)) if isinstance(axis, Levels) else (axis.start, axis.to)


def _size(axis: Axis) -> int | None:
    if isinstance(axis, Levels):
        return len(axis.values)
    return int(axis.to - axis.start) + 1 if axis.whole else None


def _value(axis: Axis, chosen: Any) -> Any:
    """Return a field's value; a continuous value has four digits, so that it can be typed again."""
    if isinstance(axis, Levels):
        return axis.values[chosen]
    if axis.whole:
        return int(chosen)
    return min(max(float(f"{chosen:.4g}"), axis.start), axis.to)


_REPEATS = 10
"""Suggestions in a row that were tried before, after which one is drawn uniformly instead."""
_DRAWS = 1000
"""Uniform draws in a row that were tried before, after which the search ends."""


@dataclass(kw_only=True)
class Suggestions:
    """Candidates of a space as Optuna would try them, reproducible for equal seeds and answers."""

    space: Space
    seed: int
    _seen: set[str] = field(default_factory=set)
    """Choices, names and contents that were tried."""

    def __post_init__(self) -> None:
        optuna = _import()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._rng = np.random.default_rng(self.seed)
        self._axes = {key: _distribution(optuna, axis) for key, axis in self.space.axes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns that some options are experimental
            sampler = optuna.samplers.TPESampler(seed=self.seed, multivariate=True)
        self._study = optuna.create_study(sampler=sampler)
        self._failed = optuna.trial.TrialState.FAIL
        self._trial: Any = None

    def ask(self) -> Candidate | ScenarioError | None:
        """Return the next candidate, or why its values do not fit together; None if there is no
        other."""
        for draw in range(_REPEATS + _DRAWS):
            if draw >= _REPEATS:
                self._study.enqueue_trial(self._drawn())
            self._trial = self._study.ask(self._axes)
            if self._is_new(repr(sorted(self._trial.params.items()))):
                try:
                    found = self.space.candidate(self._trial.params)
                except ScenarioError as error:
                    return error
                # Different values may make the same scenario.
                if self._is_new(found.name) and self._is_new(found.scenario.model_dump_json()):
                    return found
            self._study.tell(self._trial, state=self._failed)  # TPE ignores failed trials
        return None

    def tell(self, value: float) -> None:
        """Report how good the last candidate was; less is better."""
        self._study.tell(self._trial, value)

    def _is_new(self, key: str) -> bool:
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _drawn(self) -> dict[str, Any]:
        """Draw a choice uniformly."""
        found: dict[str, Any] = {}
        for key, axis in self.space.axes.items():
            if isinstance(axis, Levels):
                found[key] = int(self._rng.integers(len(axis.values)))
                continue
            share = float(self._rng.random())
            value = axis.start + (axis.to - axis.start) * share
            if axis.scale == "log":
                value = axis.start * (axis.to / axis.start) ** share
            found[key] = round(value) if axis.whole else value
        return found


def _distribution(optuna: Any, axis: Axis) -> Any:
    kinds = optuna.distributions
    if not isinstance(axis, Levels):
        log = axis.scale == "log"
        if axis.whole:
            return kinds.IntDistribution(int(axis.start), int(axis.to), log=log)
        return kinds.FloatDistribution(axis.start, axis.to, log=log)
    if axis.is_ordered:
        return kinds.IntDistribution(0, len(axis.values) - 1)
    return kinds.CategoricalDistribution(tuple(range(len(axis.values))))


def _import() -> Any:
    try:
        import optuna
    except ImportError:
        raise ScenarioError(
            "search.method optuna needs Optuna: pip install 'fleetcast[optuna]' (in a checkout: "
            "pip install -e '.[optuna]')"
        ) from None
    return optuna


_WORSE = 1e12
"""USD per hour above the cost of any fleet."""
UNREADABLE = 6 * _WORSE
"""Objective of values that do not fit together."""


def objective(outcome: Outcome, judge: Judge) -> float:
    """Return the objective of a candidate that a search has settled.

    If only some of its fleets are known to fail, those that may pass cost more than these: the
    cheapest of them is taken, and the misses of the last one are added.
    """
    candidate = outcome.candidate
    if outcome.units is not None:
        return candidate.usd_per_h(outcome.units)
    if outcome.stage == "memory":
        return 5 * _WORSE
    assert outcome.bounds is not None
    if outcome.stage == "latency":
        pairs = zip(outcome.bounds.least_s, judge.targets, strict=True)
        return _infeasible(3, max(least / target.within_s for least, target in pairs) - 1)
    if outcome.stage == "supply":
        return _infeasible(2, outcome.bounds.units / max(outcome.most, 0.5) - 1)
    if outcome.tried is None:  # even its least cost is too high
        return candidate.usd_per_h(outcome.bounds.units)
    missed = _missed(outcome, judge)
    if outcome.alone or outcome.tried >= outcome.most:
        return _infeasible(1, missed)
    return candidate.usd_per_h(outcome.tried + 1) * (1 + missed)


def _missed(outcome: Outcome, judge: Judge) -> float:
    """Return the share of required requests that its largest fleet lacks for the target it
    misses."""
    assert outcome.tried is not None
    verdict = judge.verdict_so_far(outcome.candidate, outcome.tried)
    if not verdict.runs:  # a look at the beginning was enough
        return 1.0
    share = min(run.met[verdict.worst].share for run in verdict.runs)
    return max(1 - share / judge.targets[verdict.worst].share, 0.0)


def _infeasible(rank: int, by: float) -> float:
    """Return a value between a rank and the next, however large the miss is."""
    return _WORSE * (rank + (by / (1 + by) if math.isfinite(by) else 1.0))


@dataclass(kw_only=True)
class Sampled:
    """The record of a sampled search: what it tried and found."""

    method: SearchMethod
    candidates: int | None
    """Candidates in the space; None if a range is continuous."""
    tried: int = 0
    simulated: int = 0
    """Tried candidates with any simulated fleet; the others were ruled out by bounds."""
    best: list[tuple[int, float]] = field(default_factory=list)
    """Trials after which a cheaper fleet was found, and its USD per hour."""
    unreadable: list[str] = field(default_factory=list)
    """Reasons why the values of tried candidates do not fit together."""


def sample(space: Space, search: Search) -> Sampled:
    """Try as many candidates as the plan says, with ``search``; equal seeds try the same ones.

    Raises `ScenarioError` without Optuna, or if there are enough trials for all candidates.
    """
    method = space.asked.plan.search
    found = Sampled(method=method, candidates=space.candidates)
    if found.candidates is not None and method.trials >= found.candidates:
        raise ScenarioError(
            f"search: {method.trials:,} trials are enough for all {found.candidates:,} candidates: "
            "give fewer, or leave search out, and every one is looked at"
        )
    suggestions = Suggestions(space=space, seed=method.seed)
    while found.tried < method.trials:
        candidate = suggestions.ask()
        if candidate is None:
            break
        found.tried += 1
        if isinstance(candidate, ScenarioError):
            found.unreadable.append(str(candidate))
            suggestions.tell(UNREADABLE)
            continue
        outcome = search.consider(candidate)
        suggestions.tell(objective(outcome, search.judge))
        if outcome in search.ranked[:1]:
            usd_per_h = candidate.usd_per_h(outcome.units or 1)
            if not found.best or usd_per_h < found.best[-1][1] - 1e-9:
                found.best.append((found.tried, usd_per_h))
    if not search.outcomes:
        raise ScenarioError(found.unreadable[0])
    found.simulated = sum(outcome.is_simulated for outcome in search.outcomes.values())
    return found
