"""Write the scenario of a command as YAML, with the flag that set each value beside it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from scenarios.files.schema_yaml import section_of
from scenarios.files.yaml_lines import EMPTY, WIDTH, Line, prose, render, scalar
from scenarios.schema import Scenario
from scenarios.server_flags.outcome import Kind, Outcome
from scenarios.server_flags.table import Table

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
    """Return the YAML of nested values, in the schema's order, each field with its comment.

    Without a workload in the values, some examples are added, commented out.
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
    """Return the command without flags that have no effect, because their values may be secret."""
    start = " ".join(table.launchers[0]).replace("-m ", "python -m ")
    said = [o for o in outcomes if o.shown and o.kind != "no_effect"]
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


_WIDTH = 100
_MOST_COLUMN = 44
_VERSION = re.compile(r":v?(\d+\.\d+(?:\.\w+)*)")


def refusal(outcomes: Sequence[Outcome], table: Table) -> str | None:
    """Explain why the command makes no scenario, one line per flag; None if it makes one."""
    lines = [f"{o.shown}: {o.because}" for o in outcomes if o.kind == "unknown"]
    lines += [f"{o.shown}: not modelled: {o.because}" for o in outcomes if o.kind == "refused"]
    if not lines:
        return None
    names = " ".join(
        f"--ignore {o.name.lstrip('-')}" for o in outcomes if o.kind in ("unknown", "refused")
    )
    return "\n".join(
        [
            f"this command of {table.engine} would be predicted wrongly:",
            *(f"  {line}" for line in lines),
            f"to predict it without {'it' if len(lines) == 1 else 'them'}: {names}",
        ]
    )


def report(
    outcomes: Sequence[Outcome],
    table: Table,
    *,
    image: str | None,
    further: Sequence[str],
    verbose: bool,
) -> str:
    """Return the report: what each flag set, what is ignored, what the reader must know."""
    lines = [f"Read by the flags of {table.engine} {table.version}."]
    lines += [line for text in table.semantics for line in _wrapped(text)]
    found = _VERSION.search(image or "")
    if found is not None and not table.version.startswith(found[1]):
        lines += _wrapped(
            f"The image is tagged {found[1]}: where its flags or defaults differ, those of "
            f"{table.engine} {table.version} hold."
        )
    lines += ["", _counted(outcomes)]
    lines += _block("sets", (_settings(o) for o in _of(outcomes, "set")))
    notes = ((o.name, o.because) for o in _of(outcomes, "set") if o.because)
    lines += _block("read with a difference", notes)
    ignored = ((o.shown, o.because) for o in _of(outcomes, "reported"))
    lines += _block("not modelled, the prediction ignores it", ignored)
    left_out = ((o.shown, o.because) for o in _of(outcomes, "left_out"))
    lines += _block("left out with --ignore", left_out)
    without = _of(outcomes, "no_effect")
    if verbose:
        lines += _block("no effect on timing", ((o.name, o.because) for o in without))
    elif without:
        count = "1 other has" if len(without) == 1 else f"{len(without)} others have"
        lines += ["", f"{count} no effect on timing; --verbose lists them"]
    if further:
        lines += ["", *(line for text in further for line in _wrapped(text))]
    return "\n".join(lines) + "\n"


def _counted(outcomes: Sequence[Outcome]) -> str:
    """Return how many flags and variables there are, by what became of them."""
    kinds: dict[Kind, str] = {
        "set": "set something",
        "reported": "not modelled and ignored",
        "left_out": "left out",
        "no_effect": "without effect on timing",
    }
    counts = [(len(_of(outcomes, kind)), words) for kind, words in kinds.items()]
    parts = ", ".join(f"{count} {words}" for count, words in counts if count)
    one = "flag or variable" if len(outcomes) == 1 else "flags and variables"
    return f"{len(outcomes)} {one}: {parts}."


def _of(outcomes: Sequence[Outcome], kind: Kind) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind == kind]


def _settings(outcome: Outcome) -> tuple[str, str]:
    pairs = (f"{field}: {scalar(value)}" for field, value in outcome.settings.items())
    return outcome.shown, ", ".join(pairs)


def _block(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a titled table of two columns, of which the second is wrapped."""
    pairs = list(rows)
    if not pairs:
        return []
    column = max((len(a) for a, _ in pairs if len(a) <= _MOST_COLUMN), default=_MOST_COLUMN) + 4
    lines = ["", title]
    for first, second in pairs:
        parts = textwrap.wrap(second, _WIDTH - column, break_on_hyphens=False) or [""]
        start = f"  {first}"
        if len(start) > column - 2:
            lines.append(start)
            start = ""
        starts = [start] + [""] * (len(parts) - 1)
        lines += [f"{s:{column}}{part}".rstrip() for s, part in zip(starts, parts, strict=True)]
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
