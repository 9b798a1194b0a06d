"""Write a starting scenario, or a starting sweep, from the schema."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.build.layout import replica_gpus
from scenarios.files.flags import apply_flags, sources_of
from scenarios.files.load import apply_override, validate
from scenarios.files.paths import relocated
from scenarios.files.schema_yaml import scenario_lines
from scenarios.files.yaml_lines import EMPTY, Line, prose, render, scalar
from scenarios.files.yaml_text import Places
from scenarios.schema import Scenario
from scenarios.schema.sweep import PlotSpec, RandomAxes, SweepFile

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
"""The fields that are set; all others come from the schema, including future ones."""

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
"""Values to show for fields whose default is missing or empty."""

_BASE = Line("# ", "base: other.yaml", "a scenario file to start from; what stands here wins")
"""A line for ``base``, which is not in the schema: `scenarios.files.scenario_file` resolves it."""


def starting_scenario(
    given: Mapping[str, Any], overrides: Sequence[str] = (), path: Path | None = None
) -> str:
    """Return the YAML text of a scenario with the given options set. Raises `ScenarioError`."""
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


def _title(scenario: Scenario) -> str:
    gpus = scenario.pool.replicas * replica_gpus(scenario)
    return f"{gpus} \N{MULTIPLICATION SIGN} {scenario.hardware.gpu} serving {scenario.model}"


_LIVE: dict[str, Any] = {
    "workload.rate_per_s": {"from": 2, "to": 20, "steps": 10},
    "engine.max_num_seqs": [64, 256],
}
_SHOWN: dict[str, Any] = {
    "set": {"workload.num_requests": 2000},
    "zipped": [{"hardware.gpu": ["H100", "H200"], "prices.usd_per_gpu_h": [2.5, 3.3]}],
    "constraints": ["engine.max_num_seqs >= 4 * workload.rate_per_s"],
    "replications": 3,
    "best": "goodput_per_gpu",
    "require": "attainment >= 0.99",
}
_RANDOM: dict[str, Any] = {
    "draws": 100,
    "seed": 0,
    "axes": {
        "engine.max_num_batched_tokens": {"from": 512, "to": 16384, "scale": "log", "whole": True}
    },
}
_PLOT: dict[str, Any] = {
    "figure": "ttft.p99",
    "x": "workload.rate_per_s",
    "by": "engine.max_num_seqs",
    "kind": "auto",
}


def starting_sweep(scenario: str, path: Path | None = None) -> str:
    """Return the YAML text of a starting sweep over a scenario file."""
    fields = SweepFile.model_fields
    lines = [
        Line(text='# A field behind "# " is not set: take the "# " away to set it.'),
        EMPTY,
        Line("", f"scenario: {scalar(scenario)}", fields["scenario"].description or ""),
        Line("", "axes:", fields["axes"].description or ""),
        *(Line("  ", f"{key}: {_inline(value)}") for key, value in _LIVE.items()),
    ]
    for name, value in _SHOWN.items():
        lines += _field("# ", name, value, fields[name].description)
    lines += [Line("# ", "random:", fields["random"].description or "")]
    for name, value in _RANDOM.items():
        lines += _field("#   ", name, value, RandomAxes.model_fields[name].description)
    lines += [Line("# ", "plots:", fields["plots"].description or "")]
    for index, (name, value) in enumerate(_PLOT.items()):
        start = "#     " if index else "#   - "
        lines += _field(start, name, value, PlotSpec.model_fields[name].description)
    lines += [EMPTY, Line(text=f"# Run it, or go on with it:   fleetcast sweep {path or 'FILE'}")]
    return render(lines)


def _field(indent: str, name: str, value: Any, comment: str | None) -> list[Line]:
    """Return a field on one line, followed by a line for each item of a section or list."""
    if isinstance(value, dict):
        inside = [f"{key}: {_inline(item)}" for key, item in value.items()]
    elif isinstance(value, list):
        inside = [f"- {_inline(item)}" for item in value]
    else:
        return [Line(indent, f"{name}: {_inline(value)}", comment or "")]
    return [Line(indent, f"{name}:", comment or ""), *(Line(f"{indent}  ", t) for t in inside)]


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_inline(item)}" for key, item in value.items()) + "}"
    return scalar(value)
