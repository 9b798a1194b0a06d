"""``fleetcast scenario init-sweep``: a sweep to start from, every field there is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.init.command import write_new
from scenarios.init.yaml_lines import EMPTY, Line, render, scalar
from scenarios.sweep.schema import PlotSpec, RandomAxes, SweepFile

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


def run_init_sweep(path: Path | None, scenario: str, *, force: bool) -> str:
    """Write the sweep to ``path``; returns what to print: the sweep itself, without a path.

    Raises ScenarioError for a file that is there already.
    """
    text = starting_sweep(scenario, path)
    if path is None:
        return text
    write_new(path, text, force=force)
    return f"wrote {path}; run it with: fleetcast sweep {path}\n"


def starting_sweep(scenario: str, path: Path | None = None) -> str:
    """The YAML text of a sweep of a scenario file."""
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
    """A field on one line; what is in a section or a list on lines of its own."""
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
