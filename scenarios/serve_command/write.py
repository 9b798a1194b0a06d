"""The scenario of a command as YAML: what was given, and beside it by what."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from scenarios.init.schema_yaml import section_of
from scenarios.init.yaml_lines import EMPTY, WIDTH, Line, prose, render, scalar
from scenarios.schema import Scenario
from scenarios.serve_command.outcome import Outcome
from scenarios.serve_command.table import Table

_PLACEHOLDER = """\
# The command does not say who asks what: take the "# " away from one of these workloads.
# workload:
#   preset: azure-conv # a name of `fleetcast list presets`
#   rate_per_s: 8
#   num_requests: 5000
# workload:
#   trace:
#     path: my_trace.csv
# workload:
#   generator:
#     input_tokens:
#       fixed: 1024
#     output_tokens:
#       fixed: 128
#   max_concurrency: 32
#   num_requests: 1000"""


def scenario_text(
    values: Mapping[str, Any],
    comments: Mapping[str, str],
    outcomes: Sequence[Outcome],
    table: Table,
    *,
    name: str,
) -> str:
    """The YAML of nested values, in the schema's order, each field with its comment.

    Without a workload in the values, some stand there commented out.
    """
    head = [*_command(outcomes, table), f"# Read by the flags of {table.engine} {table.version}."]
    for text in table.semantics:
        head += prose(text)
    for outcome in outcomes:
        if outcome.kind in ("reported", "left_out"):
            how = "Ignored" if outcome.kind == "reported" else "Left out"
            said = f", not modelled: {outcome.because}" if outcome.because else ""
            head += prose(f"{how}: {outcome.shown}{said}.")
    head += [
        f"# Run it:      fleetcast simulate {name}",
        f"# Change it:   fleetcast simulate {name} --set pool.replicas=2",
    ]
    lines = [Line(text=text) for text in head]
    lines += _lines(values, comments, Scenario, "", "")
    if "workload" not in values:
        lines += [EMPTY, *(Line(text=text) for text in _PLACEHOLDER.splitlines())]
    return render(lines)


def _command(outcomes: Sequence[Outcome], table: Table) -> list[str]:
    """The command in short: what has no effect is left out, and with it what may be secret."""
    start = " ".join(table.launchers[0]).replace("-m ", "python -m ")
    said = [outcome for outcome in outcomes if outcome.kind != "no_effect"]
    text = " ".join(
        [
            *(outcome.shown for outcome in said if outcome.is_variable),
            start,
            *(outcome.shown for outcome in said if not outcome.is_variable),
        ]
    )
    lines = textwrap.wrap(
        text, WIDTH - 4, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
    return [f"# {line}" for line in lines]


def _lines(
    values: Mapping[str, Any],
    comments: Mapping[str, str],
    section: type[BaseModel],
    indent: str,
    path: str,
) -> list[Line]:
    lines = []
    for name, field in section.model_fields.items():
        if name not in values:
            continue
        dotted, value = f"{path}{name}", values[name]
        inner = section_of(field.annotation)
        if isinstance(value, Mapping) and inner is not None:
            lines.append(Line(indent, f"{name}:"))
            lines += _lines(value, comments, inner, f"{indent}  ", f"{dotted}.")
        else:
            lines.append(Line(indent, f"{name}: {scalar(value)}", comments.get(dotted, "")))
    return lines
