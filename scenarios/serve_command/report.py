"""What became of each flag of a command, in words."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from scenarios.init.yaml_lines import scalar
from scenarios.serve_command.outcome import Kind, Outcome
from scenarios.serve_command.table import Table

_WIDTH = 100
_MOST_COLUMN = 44
_VERSION = re.compile(r":v?(\d+\.\d+(?:\.\w+)*)")


def refusal(outcomes: Sequence[Outcome], table: Table) -> str | None:
    """Why the command makes no scenario, a line a flag; None if it makes one."""
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
    """The report: what each flag set, what is ignored, what the reader must know."""
    lines = [f"Read by the flags of {table.engine} {table.version}."]
    lines += [line for text in table.semantics for line in _wrapped(text)]
    found = _VERSION.search(image or "")
    if found is not None and not table.version.startswith(found[1]):
        lines += _wrapped(
            f"The image is tagged {found[1]}: where its flags or defaults differ, those of "
            f"{table.engine} {table.version} hold."
        )
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


def _of(outcomes: Sequence[Outcome], kind: Kind) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind == kind]


def _settings(outcome: Outcome) -> tuple[str, str]:
    pairs = (f"{field}: {scalar(value)}" for field, value in outcome.settings.items())
    return outcome.shown, ", ".join(pairs)


def _block(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """A titled table of two columns; the second is wrapped."""
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
