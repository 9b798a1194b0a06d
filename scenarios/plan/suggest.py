"""Optuna's TPE, asked for candidates one at a time; none is suggested twice."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scenarios.plan.candidates import Candidate
from scenarios.plan.space import Axis, Levels, Space
from sim.errors import ScenarioError

_REPEATS = 10
"""Suggestions in a row that were there before, until one is drawn evenly instead."""
_DRAWS = 1000
"""Even draws in a row that were there before, until no more are sought."""


@dataclass(kw_only=True)
class Suggestions:
    """Candidates of a space, as Optuna would try them: the same for the same seed and answers."""

    space: Space
    seed: int
    _seen: set[str] = field(default_factory=set)
    """Choices, names and contents."""

    def __post_init__(self) -> None:
        optuna = _import()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._rng = np.random.default_rng(self.seed)
        self._axes = {key: _distribution(optuna, axis) for key, axis in self.space.axes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options that may change in another version
            sampler = optuna.samplers.TPESampler(seed=self.seed, multivariate=True)
        self._study = optuna.create_study(sampler=sampler)
        self._failed = optuna.trial.TrialState.FAIL
        self._trial: Any = None

    def ask(self) -> Candidate | ScenarioError | None:
        """The next, or why its values do not go together; None: no other was found."""
        for draw in range(_REPEATS + _DRAWS):
            if draw >= _REPEATS:
                self._study.enqueue_trial(self._drawn())
            self._trial = self._study.ask(self._axes)
            if self._is_new(repr(sorted(self._trial.params.items()))):
                try:
                    found = self.space.candidate(self._trial.params)
                except ScenarioError as error:
                    return error
                # Values may differ and make the same scenario of it.
                if self._is_new(found.name) and self._is_new(found.scenario.model_dump_json()):
                    return found
            self._study.tell(self._trial, state=self._failed)  # TPE learns nothing from it
        return None

    def tell(self, value: float) -> None:
        """How good the last one was; less is better."""
        self._study.tell(self._trial, value)

    def _is_new(self, key: str) -> bool:
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _drawn(self) -> dict[str, Any]:
        """A choice, evenly."""
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
