"""The arguments of a server command into flags and their values, as argparse would take them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scenarios.serve_command.table import Flag, Table
from scenarios.yaml_text import parse_yaml
from sim.errors import ScenarioError

_NUMBER = re.compile(r"-\d.*")
_TRUTH = {"true": "on", "false": "off"}


@dataclass(frozen=True, slots=True)
class Given:
    """A flag of the command."""

    spelled: str
    """As the command has it, without its value; empty for the model that stands by itself."""
    flag: Flag | None
    """None: the table does not have it."""
    value: str
    """Several values are joined by spaces; a flag without one is ``on`` or ``off``."""

    def __str__(self) -> str:
        if self.flag is not None and self.value in ("on", "off") and self.flag.takes != "value":
            return self.spelled
        return f"{self.spelled} {self.value}".strip()


def read_given(arguments: Sequence[str], table: Table) -> list[Given]:
    """All flags, in order; those of a ``--config`` file first, as the engine has it.

    The first word that belongs to no flag is the model. Raises ScenarioError for a flag whose value
    is missing, words too many, and a config file that cannot be read.
    """
    given: list[Given] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            continue
        if not _is_flag(word):
            given.append(_positional(word, given, table))
            continue
        name, equals, inline = word.partition("=")
        head, _, key = _dashed(name).partition(".")
        if head == "--config":
            given = _from_config(inline if equals else _value(words, word), table) + given
        else:
            given.append(_one(head, key, inline if equals else None, words, word, table))
    return _merged(given)


def _one(
    head: str, key: str, inline: str | None, words: list[str], word: str, table: Table
) -> Given:
    flag = table.find(head)
    if flag is None and head[:2] == "-O" and head != "-O":  # -O3
        flag, inline, head = table.find("-O"), head[2:], "-O"
    if flag is None and head.startswith("--no-"):
        flag = table.find(f"--{head[5:]}")
        if flag is not None and flag.takes == "toggle":
            return Given(head, flag, "off")
        flag = None
    if key:
        value = inline if inline is not None else _value(words, word)
        return Given(head, flag, json.dumps(_nested(key, value)))
    if flag is None:
        bare = inline if inline is not None else _next(words)
        return Given(head, None, bare or "")
    if flag.takes in ("switch", "toggle"):
        if inline is None and words and words[0].lower() in _TRUTH:
            inline = words.pop(0)
        return Given(head, flag, _TRUTH.get(inline.lower(), inline) if inline else "on")
    if inline is not None:
        return Given(head, flag, inline)
    if flag.takes == "optional":
        return Given(head, flag, _next(words) or "on")
    values = [_value(words, word)]
    while flag.takes == "values" and words and not _is_flag(words[0]):
        values.append(words.pop(0))
    return Given(head, flag, " ".join(values))


def _positional(word: str, given: list[Given], table: Table) -> Given:
    model = next(f for f in table.flags.values() if f.field == "model")
    named = [g for g in given if g.flag is model]
    if named:
        raise ScenarioError(
            f"{word!r} belongs to no flag, and the model is {named[0].value!r} already"
        )
    return Given("", model, word)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word)


def _dashed(name: str) -> str:
    """Dashes for underscores up to the first dot; both are taken."""
    head, dot, key = name.partition(".")
    return f"{head.replace('_', '-')}{dot}{key}" if head.startswith("--") else name


def _next(words: list[str]) -> str | None:
    return words.pop(0) if words and not _is_flag(words[0]) else None


def _value(words: list[str], word: str) -> str:
    value = _next(words)
    if value is None:
        raise ScenarioError(f"{word} needs a value, and the command gives none")
    return value


def _nested(key: str, value: str) -> dict[str, Any]:
    """``a.b`` and a value as nested mappings; the value is JSON where it can be."""
    try:
        nested: Any = json.loads(value)
    except ValueError:
        nested = value
    for part in reversed(key.split(".")):
        nested = {part.removesuffix("+"): nested}
    return dict(nested)


def _from_config(name: str, table: Table) -> list[Given]:
    """The flags of the YAML file that ``--config`` names."""
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ScenarioError(
            f"--config {name}: cannot be read here; give the path of the file, or put its options "
            "into the command"
        ) from None
    values, _ = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ScenarioError(f"{path}: a config file is a mapping of options (`port: 8000`)")
    words: list[str] = []
    for key, value in values.items():
        if value is False:
            continue  # as vLLM does: off is the absence of the flag
        words.append(f"--{key}")
        if isinstance(value, list):
            words += [str(item) for item in value]
        elif isinstance(value, dict):
            words.append(json.dumps(value))
        elif value is not True:
            words.append(str(value))
    return read_given(words, table)


def _merged(given: list[Given]) -> list[Given]:
    """The last of several equal flags; of JSON values, all their keys."""
    last: dict[int, Given] = {}
    for position, one in enumerate(given):
        key = -position - 1 if one.flag is None else id(one.flag)
        before = last.pop(key, None)
        if before is not None:
            both = _both(before.value, one.value)
            one = replace(one, value=both) if both else one
        last[key] = one
    return list(last.values())


def _both(first: str, second: str) -> str | None:
    try:
        one, two = json.loads(first), json.loads(second)
    except ValueError:
        return None
    return json.dumps(one | two) if isinstance(one, dict) and isinstance(two, dict) else None
