"""Command-line options into a scenario: alone, or on top of a scenario file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.load import apply_overrides, load_scenario, parse_scenario
from scenarios.schema import Scenario
from sim.errors import ScenarioError


def scenario_from_flags(
    path: Path | None, flags: Mapping[str, Any], overrides: Sequence[str]
) -> Scenario:
    """A scenario from dotted fields (None: not given) and ``--set`` overrides.

    Without a file the fields make the whole scenario. Raises ScenarioError.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    settings = [*(f"{key}={value}" for key, value in given.items()), *overrides]
    if path is not None:
        return load_scenario(path, settings)
    if "model" not in given:
        raise ScenarioError(
            "nothing to simulate: give a scenario file, or --model with --trace, --preset, or "
            "--rate with --input-tokens and --output-tokens"
        )
    lengths = [key for key in given if key.startswith("workload.generator")]
    if len(lengths) == 1:
        raise ScenarioError("--input-tokens and --output-tokens go together")
    has_source = lengths or "workload.trace.path" in given or "workload.preset" in given
    if not has_source and not any(s.startswith("workload.") for s in overrides):
        raise ScenarioError(
            "no workload: give --trace FILE, --preset NAME, or --input-tokens and --output-tokens "
            "with --rate or --concurrency"
        )
    return parse_scenario(apply_overrides({}, settings), where="command line")
