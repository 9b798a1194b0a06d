"""The source of a what-if's intervals: replications, or sections of one run."""

from __future__ import annotations

from dataclasses import dataclass

from scenarios.build.workload.table import build_table
from scenarios.schema import Scenario
from sim.errors import ScenarioError

# Total simulated requests above which a what-if with default settings uses fewer replications: half
# a minute of one core.
_REQUESTS_IN_ALL = 200_000
_MOST, _FEWEST = 10, 3


@dataclass(frozen=True, kw_only=True)
class Method:
    """The seeds with which each variant is simulated."""

    seeds: tuple[int, ...]
    is_recorded: bool
    """Whether requests come from a trace, so that they are equal for all seeds."""

    @property
    def independent(self) -> bool:
        """Whether there are replications; otherwise the one run is cut into sections."""
        return len(self.seeds) > 1


def choose_method(scenario: Scenario, num_scenarios: int, replications: int | None) -> Method:
    """Choose the number of replications: as asked for, or by the size of the workload.

    A recorded trace runs once. Raises `ScenarioError` for replications of a trace, and for fewer
    than one.
    """
    recorded = _is_recorded(scenario)
    if replications is not None and replications < 1:
        raise ScenarioError(f"--replications {replications}: must be at least 1")
    if recorded:
        if replications is not None and replications > 1:
            raise ScenarioError(
                f"--replications {replications}: the requests of a recorded trace are the same "
                "whatever the seed, so replications would say nothing of how sure a difference "
                "is; leave the option out, and intervals come from sections of the one run"
            )
        replications = 1
    elif replications is None and scenario.replications > 1:
        replications = scenario.replications
    elif replications is None:
        affordable = _REQUESTS_IN_ALL // (num_scenarios * max(len(build_table(scenario)), 1))
        # With two replications Student's t is 12.7; a run that long has enough requests to be cut.
        replications = min(affordable, _MOST) if affordable >= _FEWEST else 1
    seeds = tuple(scenario.seed + i for i in range(replications))
    return Method(seeds=seeds, is_recorded=recorded)


def _is_recorded(scenario: Scenario) -> bool:
    workload = scenario.workload
    return any(source.trace is not None for source in (workload, *workload.classes))
