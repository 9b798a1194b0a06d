"""Turn command-line options into a scenario: alone, or on top of a scenario file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.files.load import apply_override, apply_setting, validate
from scenarios.files.scenario_file import read_scenario_file
from scenarios.files.yaml_text import Places
from scenarios.schema import Scenario
from sim.errors import ScenarioError
from workloads.readers.columns import parse_columns

_FIELDS = {
    "--model": "model",
    "--gpu": "hardware.gpu",
    "--tp": "engine.tensor_parallel_size",
    "--pp": "engine.pipeline_parallel_size",
    "--dp": "engine.data_parallel_size",
    "--enable-expert-parallel": "engine.enable_expert_parallel",
    "--all2all-backend": "engine.all2all_backend",
    "--replicas": "pool.replicas",
    "--trace": "workload.trace.path",
    "--columns": "workload.trace.columns",
    "--preset": "workload.preset",
    "--input-tokens": "workload.generator.input_tokens",
    "--output-tokens": "workload.generator.output_tokens",
    "--rate": "workload.rate_per_s",
    "--concurrency": "workload.max_concurrency",
    "--users": "workload.users",
    "--num-requests": "workload.num_requests",
    "--slo-ttft": "slo.ttft_s",
    "--slo-tpot": "slo.tpot_s",
    "--slo-e2e": "slo.e2e_s",
    "--slo-itl": "slo.itl_s",
    "--seed": "seed",
}
_SOURCES = {
    "--trace": "trace",
    "--preset": "preset",
    "--input-tokens": "generator",
    "--output-tokens": "generator",
}

# A scenario needs a workload; what has nothing to simulate does not depend on it.
ANY_WORKLOAD = {
    "generator": {"input_tokens": {"fixed": 1}, "output_tokens": {"fixed": 1}},
    "rate_per_s": 1.0,
    "num_requests": 1,
}


def scenario_from_flags(
    path: Path | None,
    flags: Mapping[str, Any],
    overrides: Sequence[str],
    *,
    simulated: bool = True,
) -> Scenario:
    """Build a scenario from options (None: not given) and ``--set`` overrides, which win.

    Without a file they make the whole scenario, but for a workload if it is not to be
    ``simulated``; with one, a workload option replaces the file's source of requests. Raises
    `ScenarioError`.
    """
    given = {flag: value for flag, value in flags.items() if value is not None}
    values: dict[str, Any] = {}
    places: Places = {(): "command line"}
    if path is not None:
        values, places = read_scenario_file(path)
    elif not simulated:
        values = {"workload": dict(ANY_WORKLOAD)}
        if "--model" not in given and not any(item.startswith("model=") for item in overrides):
            raise ScenarioError("no model: give a scenario file, or --model and --gpu")
    else:
        _check_complete(given, sources_of(given), overrides)
    apply_flags(values, places, given)
    for override in overrides:
        apply_override(values, places, override)
    return validate(values, places)


def sources_of(given: Mapping[str, Any]) -> set[str]:
    """Return the sources of requests (trace, preset, generator) that the given options name."""
    return {_SOURCES[flag] for flag in given if flag in _SOURCES}


def apply_flags(values: dict[str, Any], places: Places, given: Mapping[str, Any]) -> None:
    """Set the fields of the given options in place; a source of requests replaces another."""
    _replace_source(values, sources_of(given))
    for flag, value in given.items():
        field = {"fixed": value} if flag.endswith("put-tokens") else value
        field = parse_columns(value) if flag == "--columns" else field
        apply_setting(values, places, _FIELDS[flag], field, f"{flag} {value}")


def _replace_source(values: dict[str, Any], sources: set[str]) -> None:
    workload = values.get("workload")
    if sources and isinstance(workload, dict):
        for other in {"trace", "preset", "generator", "classes"} - sources:
            workload.pop(other, None)


def _check_complete(given: Mapping[str, Any], sources: set[str], overrides: Sequence[str]) -> None:
    """Raise `ScenarioError` naming missing options, because the schema could only name fields."""
    fields = {override.partition("=")[0] for override in overrides}
    if "--model" not in given and "model" not in fields:
        raise ScenarioError(
            "nothing to simulate: give a scenario file, or --model with --trace, --preset, or "
            "--rate with --input-tokens and --output-tokens"
        )
    if any(field.startswith("workload.") for field in fields):
        return
    if ("--input-tokens" in given) != ("--output-tokens" in given):
        raise ScenarioError("--input-tokens and --output-tokens go together")
    if not sources:
        raise ScenarioError(
            "no workload: give --trace FILE, --preset NAME, or --input-tokens and --output-tokens "
            "with --rate or --concurrency"
        )
