"""fleetcast in Python: load a scenario, simulate it, and ask what-if, capacity, plan and sweep.

    from scenarios import load, simulate

    result = simulate(load("scenarios/demo.yaml"))
    print(result.figure("ttft", "p99"))

What a function needs is imported when it is called, so that the command line answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import __version__

if TYPE_CHECKING:
    import pandas as pd

    from scenarios.experiments.whatif.comparison import WhatIf
    from scenarios.run.result import RunResult
    from scenarios.schema import Scenario

__all__ = [
    "__version__",
    "capacity",
    "load",
    "plan",
    "simulate",
    "sweep",
    "trust_plugins",
    "whatif",
]


def load(path: str | Path, overrides: Iterable[str] = ()) -> Scenario:
    """Read a scenario file and apply overrides, each as ``section.key=value``.

    Raises `sim.errors.ScenarioError` naming file, line and field.
    """
    from scenarios.files.load import load_scenario

    return load_scenario(path, overrides)


def trust_plugins(*folders: str | Path) -> None:
    """Let scenarios run the policies in these folders, as ``--plugins`` does.

    Raises `sim.errors.ScenarioError` for what is not a folder.
    """
    from scenarios.files import trusted

    trusted.trust_plugins(map(Path, folders))


def simulate(
    scenario: Scenario, *, progress: Callable[[int, int], None] | None = None
) -> RunResult:
    """Simulate a scenario to its end, once for each of its replications.

    ``progress(sent, total)`` is called now and then with numbers of requests. Raises ScenarioError,
    TraceError or PolicyError (`sim.errors`), each with a message for the user.
    """
    from scenarios.run.simulate import simulate as run

    return run(scenario, progress=progress)


def whatif(path: str | Path, changes: Sequence[str], *, jobs: int | None = None) -> WhatIf:
    """Compare a scenario file with changes to it (``section.key=value``) on the same requests.

    Each change is simulated alone, and all of them together. ``jobs``: processes, by default one
    per core. Raises ScenarioError.
    """
    from scenarios.experiments.whatif.changes import changes_from_sets
    from scenarios.experiments.whatif.comparison import what_if
    from scenarios.files.scenario_file import read_scenario_file

    values, places = read_scenario_file(path)
    return what_if(values, changes_from_sets(changes), places=places, jobs=jobs)


def capacity(scenario: Scenario, *, jobs: int | None = None, **question: Any) -> dict[str, Any]:
    """Find the highest load that keeps the SLO, and what binds there: the content of capacity.json.

    ``question``: fields of `scenarios.experiments.capacity.question.Question`, such as
    ``attainment``, ``precision`` and ``load``. Raises ScenarioError.
    """
    from scenarios.experiments.capacity.find import find_capacity
    from scenarios.experiments.capacity.question import Question

    return find_capacity(scenario, Question(**question), jobs=jobs)


def plan(path: str | Path, *, jobs: int | None = None) -> dict[str, Any]:
    """Find the cheapest fleet that meets the targets of a plan file: the content of plan.json.

    Raises ScenarioError.
    """
    from scenarios.experiments.plan.candidates import read_plan
    from scenarios.experiments.plan.find import find_plan

    return find_plan(read_plan(Path(path)), jobs=jobs)


def sweep(
    path: str | Path, *, out: str | Path | None = None, jobs: int | None = None
) -> pd.DataFrame:
    """Simulate every point of a sweep file: one row per run, one column per axis and figure.

    Results are kept in ``out`` (by default ``results/<name of the file>``); what is there already
    is not run again. Raises ScenarioError.
    """
    from scenarios.experiments.sweep.run import run_sweep

    return run_sweep(Path(path), out=None if out is None else Path(out), jobs=jobs).table
