"""`fleetcast scenario init`: a scenario to start from, written from the schema."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.flags import apply_flags, sources_of
from scenarios.init.schema_yaml import scenario_lines
from scenarios.init.yaml_lines import EMPTY, Line, prose, render
from scenarios.layout import replica_gpus
from scenarios.load import apply_override, validate
from scenarios.paths import relocated
from scenarios.schema import Scenario
from scenarios.yaml_text import Places
from sim.errors import ScenarioError

LIVE: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"gpu": "H200"},
    "engine": {"profile": "vllm-0.25", "tensor_parallel_size": 1},
    "kv": {"gpu_memory_utilization": 0.92, "enable_prefix_caching": True},
    "pool": {"replicas": 1, "router": "round_robin"},
    "workload": {"preset": "azure-conv", "rate_per_s": 8, "num_requests": 5000},
    "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
    "seed": 0,
}
"""The fields that are set; the schema has all the others, and those to come."""

EXAMPLES: dict[str, Any] = {
    "engine.speculative.method": "eagle",
    "kv.policy.kind": "snapkv",
    "kv.policy.budget_tokens": 1024,
    "workload.trace.path": "my_trace.csv",
    "workload.generator.input_tokens": {"fixed": 1024},
    "workload.generator.output_tokens": {"fixed": 128},
    "workload.generator.on_off.on_s": {"mean": 30},
    "workload.generator.on_off.off_s": {"mean": 120},
    "workload.generator.system_prompts.tokens": 500,
    "workload.generator.documents.tokens": {"lognormal": [[1, 6.0, 0.5]], "max": 4000},
    "workload.generator.sessions.turns": {"mean": 4},
    "workload.generator.sessions.resets.probability": 0.02,
    "workload.generator.continuations.probability": 0.35,
    "workload.generator.continuations.shared": {"p10": 0.3, "p50": 0.85},
    "workload.generator.continuations.delay_s": {"mean": 60},
    "faults.schedule": [{"at_s": 60, "kind": "engine_crash", "replica": 0}],
    "autoscaler.policy": "queue_threshold",
    "workload.classes": [{"name": "chat", "preset": "azure-conv", "rate_per_s": 8}],
}
"""What to show where a field has no default, or an empty one."""

_BASE = Line("# ", "base: other.yaml", "a scenario file to start from; what stands here wins")
"""Not of the schema: `scenarios.scenario_file` resolves it."""


def run_init(
    path: Path | None, flags: Mapping[str, Any], overrides: Sequence[str], *, force: bool
) -> str:
    """Write a scenario to ``path``; returns what to print: the scenario itself, without a path.

    Raises ScenarioError for options that make no scenario, and for a file that is there already.
    """
    given = {flag: value for flag, value in flags.items() if value is not None}
    text = starting_scenario(given, overrides, path)
    if path is None:
        return text
    write_new(path, text, force=force)
    return f"wrote {path}; run it with: fleetcast simulate {path}\n"


def starting_scenario(
    given: Mapping[str, Any], overrides: Sequence[str] = (), path: Path | None = None
) -> str:
    """The YAML text of a scenario with the given options set. Raises ScenarioError."""
    values = copy.deepcopy(LIVE)
    places: Places = {(): "scenario init"}
    if sources_of(given) and sources_of(given) != {"preset"}:
        del values["workload"]["rate_per_s"]
    if "trace" in sources_of(given):
        del values["workload"]["num_requests"]
    if "--concurrency" in given and "--rate" not in given:
        values["workload"].pop("rate_per_s", None)
    apply_flags(values, places, given)
    for override in overrides:
        apply_override(values, places, override)
    scenario = validate(values, places)
    values = relocated(values, path.parent if path is not None else Path())
    name = path or "scenario.yaml"
    about = prose(
        'A field behind "# " is at its default: take the "# " away to set it; null is not set.'
    )
    run = [
        f"# Run it:      fleetcast simulate {name} --out results/{Path(name).stem}",
        f"# Change it:   fleetcast simulate {name} --set pool.replicas=2",
    ]
    lines = [
        *(Line(text=text) for text in (f"# {_title(scenario)}.", *about)),
        EMPTY,
        _BASE,
        *scenario_lines(Scenario, values, EXAMPLES),
        *(Line(text=text) for text in run),
    ]
    return render(lines)


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there yet, or is to be overwritten. Raises ScenarioError."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ScenarioError(f"{path} exists already; give --force to overwrite it") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be written: {error.strerror}") from None


def _title(scenario: Scenario) -> str:
    gpus = scenario.pool.replicas * replica_gpus(scenario)
    return f"{gpus} \N{MULTIPLICATION SIGN} {scenario.hardware.gpu} serving {scenario.model}"
