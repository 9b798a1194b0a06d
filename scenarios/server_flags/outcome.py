"""The outcome of each flag and environment variable of a server command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scenarios.files.messages import nearest
from scenarios.server_flags import values
from scenarios.server_flags.argv import Given
from scenarios.server_flags.connectors import kv_tiers, total_gib
from scenarios.server_flags.positions import asked_positions, overridden_positions, rope_positions
from scenarios.server_flags.speculation import sglang_speculation, vllm_method, vllm_speculation
from scenarios.server_flags.table import Flag, Table
from scenarios.server_flags.values import Fields, NotPriced, Settings
from sim.errors import ScenarioError

READERS: dict[str, Callable[[str], Any]] = {
    "whole": values.whole,
    "number": values.number,
    "size": values.size,
    "size_or_auto": values.size_or_auto,
    "on": lambda text: text == "on",
    "how_many": lambda text: len(text.split()),
    "model": str,
    "chunk": values.chunk,
    "graph_size": values.graph_size,
    "largest": values.largest,
    "compilation": values.compilation,
    "redundant_experts": values.redundant_experts,
    "above_one": lambda text: values.whole(text) > 1 or None,
    "hicache_gib": values.hicache_gib,
    "vllm_speculation": vllm_speculation,
}
"""Readers of a flag's text, by the name that the tables use."""
WITH_OTHERS: dict[str, Callable[[str, Settings], Any]] = {
    "total_gib": total_gib,
    "kv_tiers": kv_tiers,
    "tokens_of_blocks": values.tokens_of_blocks,
    "bytes_of_blocks": values.bytes_of_blocks,
    "gpus_of_node": values.gpus_of_node,
    "rope_positions": rope_positions,
    "overridden_positions": overridden_positions,
    "asked_positions": asked_positions,
    "attention_by_ranks": values.attention_by_ranks,
    "vllm_method": vllm_method,
    "sglang_speculation": sglang_speculation,
}
"""Readers that run after all others, because they need what the other flags say or set."""

_OPEN = re.compile(r"\$\{?\(?\w+\)?\}?|<[^<>]+>|\{\{.*?\}\}")
"""What a value leaves open: a variable that is not set, or a placeholder."""

Kind = Literal["set", "reported", "no_effect", "refused", "unknown", "left_out"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one flag: ``shown`` is its text in the command."""

    shown: str
    kind: Kind
    because: str = ""
    """What the prediction does instead, or a note on what the flag set."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted fields that the flag sets, with their values."""
    with_experts: Outcome | None = None
    """The outcome for mixture-of-experts models, if it differs."""
    is_variable: bool = False
    """Whether it is an environment variable, not a flag."""

    @property
    def name(self) -> str:
        """The flag or variable without its value, which may be secret."""
        return self.shown.partition(" ")[0].partition("=")[0]


def settle(
    given: Sequence[Given],
    environment: Mapping[str, str],
    table: Table,
    ignored: Iterable[str],
) -> list[Outcome]:
    """Return the outcome of each flag and variable.

    What ``ignored`` names (a flag in any spelling, with or without dashes, or a variable) is left
    out. Raises `ScenarioError` for a value that cannot be read.
    """
    left_out = [_ignored(name, given, environment, table) for name in ignored]
    # Some flags are read together with the values of others.
    settings: dict[str, Any] = {
        one.flag.name: one.value for one in given if one.flag is not None and one not in left_out
    } | dict(environment)
    outcomes: dict[int, Outcome] = {}
    for n in sorted(range(len(given)), key=lambda n: _needs_others(given[n])):
        one = given[n]
        if one in left_out:
            because = one.flag.because if one.flag is not None else ""
            outcomes[n] = Outcome(str(one), "left_out", because)
        else:
            outcomes[n] = _settle(one, table, settings)
            settings |= outcomes[n].settings
    variables = [
        replace(_variable(name, value, table, settings, name in left_out), is_variable=True)
        for name, value in environment.items()
    ]
    return _without_replaced([outcomes[n] for n in range(len(given))], given) + variables


def _without_replaced(outcomes: Sequence[Outcome], given: Sequence[Given]) -> list[Outcome]:
    """Take the fields that a flag sets in place of others from those others."""
    kept = list(outcomes)
    for n, one in enumerate(given):
        if one.flag is None or one.flag.field or not outcomes[n].settings:
            continue
        for m, other in enumerate(kept):
            if m != n and set(other.settings) & set(outcomes[n].settings):
                because = f"read together with {one.spelled}"
                kept[m] = Outcome(other.shown, "set", because)
    return kept


def for_experts(outcome: Outcome) -> Outcome:
    """Return the outcome for a mixture-of-experts model."""
    return outcome.with_experts or outcome


def _settle(one: Given, table: Table, settings: Mapping[str, Any]) -> Outcome:
    flag, shown = one.flag, str(one)
    if flag is None and shown.startswith("$"):
        return Outcome(shown, "reported", "the command does not set it: put its value in its place")
    if flag is None:
        known = [name for name in table.flags if name.startswith("--")]
        hint = nearest(one.spelled, known, list_all=False)
        about = f"no flag of {table.engine} {table.version}"
        if hint or one.spelled[:2] != "--":
            return Outcome(shown, "unknown", f"{about}; {hint}" if hint else about)
        return Outcome(shown, "reported", f"{about}, and like none: taken to have no effect")
    if _is_harmless(flag, one.value):
        return Outcome(shown, "no_effect", "as the prediction has it anyway")
    if flag.fate != "mapped":
        return Outcome(shown, flag.fate, flag.because)
    try:
        value = read_value(flag, one.value, settings)
    except NotPriced as why:
        return Outcome(shown, why.gravity or flag.gravity, str(why) or flag.otherwise)
    except ValueError as error:
        open_ones = _OPEN.findall(one.value)
        if open_ones:
            names = " ".join(f"{name.strip('${}()')}=VALUE" for name in open_ones)
            is_variable = open_ones[0].startswith("$")
            because = (
                f"the command does not set that variable: put {names} before it"
                if is_variable
                else "a placeholder: put a value in its place"
            )
            return Outcome(shown, "unknown", because)
        raise ScenarioError(f"{shown}: {error}") from None
    if value is None and flag.takes == "json":
        return Outcome(shown, "reported", flag.note)
    if isinstance(value, Fields) and value:
        return Outcome(shown, "set", flag.note, value)
    if value is None or value == {}:
        return Outcome(shown, "no_effect", "as the prediction has it anyway")
    note = "; ".join(filter(None, [flag.note, flag.note_for.get(one.value)]))
    also = flag.also if _above_one(value) else {}
    other = None
    if flag.with_experts and _above_one(value):
        other = Outcome(shown, "set", flag.note_with_experts, {flag.with_experts: value})
    return Outcome(shown, "set", note, {flag.field: value, **also}, other)


def read_value(flag: Flag, text: str, settings: Settings) -> Any:
    """Return the field's value for a mapped flag's text; None leaves the field alone.

    ``settings`` holds what the other flags set. Raises `NotPriced`, or ValueError for invalid text.
    """
    if not flag.reads:
        known = {choice.lower(): choice for choice in flag.choices}
        if text.lower() not in known:
            raise NotPriced
        return flag.choices[known[text.lower()]]
    if flag.reads in WITH_OTHERS:
        return WITH_OTHERS[flag.reads](text, settings)
    return READERS[flag.reads](text)


def _needs_others(one: Given) -> bool:
    return one.flag is not None and one.flag.reads in WITH_OTHERS


def _above_one(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _is_harmless(flag: Flag, value: str) -> bool:
    """Return whether a value changes nothing, as a switch that is off."""
    if flag.takes in ("switch", "toggle") and value == "off" and "on" not in flag.harmless:
        return flag.fate != "mapped"
    return any(value == known or _same_number(value, known) for known in flag.harmless)


def _same_number(one: str, two: str) -> bool:
    try:
        return float(one) == float(two)
    except ValueError:
        return False


def _ignored(
    name: str, given: Sequence[Given], environment: Mapping[str, str], table: Table
) -> Given | str:
    """Return the flag or variable of the command that ``--ignore`` names. Raises
    `ScenarioError`."""
    if name in environment:
        return name
    bare = name.lstrip("-").replace("_", "-")
    spellings = [f"--{bare}", f"-{bare}"]
    flags = [flag for flag in map(table.find, spellings) if flag is not None]
    for one in given:
        if one.spelled in spellings or one.flag in flags:
            if one.flag is not None and one.flag.field == "model":
                raise ScenarioError(f"--ignore {name}: --model replaces the command's model")
            return one
    hint = nearest(spellings[0], [one.spelled for one in given if one.spelled])
    raise ScenarioError(f"--ignore {name}: the command has no such flag; {hint}")


def _variable(
    name: str, value: str, table: Table, settings: Settings, is_left_out: bool
) -> Outcome:
    known = table.environment.get(name)
    shown = f"{name}={value}"
    if is_left_out:
        return Outcome(shown, "left_out", known.because if known is not None else "")
    if known is None:
        if name.startswith(table.variables):
            return Outcome(shown, "reported", "not in the table: taken to have no effect")
        return Outcome(name, "no_effect", "not a variable of the engine")
    if known.fate == "mapped":
        found = read_value(known, value, settings)
        if found is not None:
            return Outcome(shown, "set", known.because, {known.field: found})
    if known.fate in ("mapped", "no_effect") or _is_harmless(known, value):
        return Outcome(name, "no_effect", known.because)
    return Outcome(shown, "refused" if known.fate == "refused" else "reported", known.because)
