"""Parse an engine's arguments into its flags, as argparse and vLLM read them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from scenarios.files.yaml_text import parse_yaml
from scenarios.server_flags.manifests import option_words
from scenarios.server_flags.table import Flag, Table
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True)
class Given:
    """A flag of the command."""

    spelled: str
    """Spelling in the command, without the value; empty for a positional model."""
    flag: Flag | None
    """The flag in the table; None if the table lacks it."""
    value: str
    """Value as text: several are joined by spaces; a flag without one is ``on`` or ``off``."""

    def __str__(self) -> str:
        if self.flag is not None and self.value in ("on", "off") and self.flag.takes != "value":
            return self.spelled
        return f"{self.spelled} {self.value}".strip()


def read_given(arguments: Sequence[str], table: Table) -> list[Given]:
    """Return all flags in order, with those of a ``--config`` file first, as the engine reads them.

    The word that belongs to no flag is the model. Raises `ScenarioError` for a flag whose value is
    missing, for extra words, and for a config file that cannot be read.
    """
    # argparse would stop at two dashes, and drop them where they are a value
    words = [word.removesuffix("=--") for word in arguments if word not in ("--", "...", "\u2026")]
    has_truth: dict[str, bool] = {}
    for word, following in pairwise([*words, ""]):
        if word.startswith("-") and not re.match(r"-(\d|$)", word):
            name, is_inline, _ = word.partition("=")
            says = bool(is_inline) or following.lower() in ("true", "false")
            has_truth[name] = says or has_truth.get(name, False)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, says in has_truth.items():
        parser.add_argument(name, dest="given", **_option(name, table, has_truth=says))
    try:
        parsed, models = parser.parse_known_args(words, argparse.Namespace(given=[]))
    except argparse.ArgumentError as error:
        what = str(error.message)
        if what.startswith("expected"):
            what = "needs a value, and the command gives none"
        raise ScenarioError(f"{error.argument_name} {what}") from None
    given: list[Given] = [one if isinstance(one, Given) else _joined(one) for one in parsed.given]
    configs = [one for one in given if one.spelled == "--config"]
    from_config = [one for file in reversed(configs) for one in _from_config(file.value, table)]
    given = [*_positional(models, given, table), *(one for one in given if one not in configs)]
    return _merged([*from_config, *given])


def _positional(words: Sequence[str], given: Sequence[Given], table: Table) -> list[Given]:
    """Return the model without a flag, if there is one, and variables that are not set.

    Raises `ScenarioError` for other words.
    """
    model = next(flag for flag in table.flags.values() if flag.field == "model")
    named = [*(one.value for one in given if one.flag is model), *words]
    unset = [word for word in words if word.startswith("$") and word != named[0]]
    words = [word for word in words if word not in unset]
    for word in words:
        if word != named[0]:
            raise ScenarioError(
                f"{word!r} belongs to no flag, and the model is {named[0]!r} already"
            )
    return [*(Given("", model, word) for word in words[:1]), *(Given(w, None, "") for w in unset)]


def _option(name: str, table: Table, *, has_truth: bool) -> dict[str, Any]:
    """Return the arguments of `add_argument` for a flag, by its spelling in the command.

    ``has_truth`` says that a word such as true follows, which a switch of the engines does not take
    and one here does.
    """
    head, _, key = name.partition(".")
    if head.startswith("--"):
        head = head.replace("_", "-")
    flag = None if head == "--config" else table.find(head)
    if flag is None and re.fullmatch("-O.+", head):  # -O3
        return {"action": "append_const", "const": Given("-O", table.find("-O"), head[2:])}
    if flag is None and head.startswith("--no-"):
        toggle = table.find(f"--{head[5:]}")
        if toggle is not None and toggle.takes == "toggle":
            return {"action": "append_const", "const": Given(head, toggle, "off")}
    takes = "value" if key or head == "--config" else flag.takes if flag else "unknown"
    is_switch = takes in ("switch", "toggle")
    alone = Given(head, flag, "" if takes == "unknown" else "on")
    if is_switch and not has_truth:
        return {"action": "append_const", "const": alone}
    read = partial(_nested, key) if key else _truth if is_switch else str
    option = {"action": "append", "type": lambda text: Given(head, flag, read(text))}
    if is_switch or takes in ("optional", "unknown"):
        return option | {"nargs": "?", "const": alone}
    return option | {"nargs": "+"} if takes == "values" else option


def _truth(text: str) -> str:
    return {"true": "on", "false": "off", "": "on"}.get(text.lower(), text)


def _joined(values: Sequence[Given]) -> Given:
    return replace(values[0], value=" ".join(one.value for one in values))


def _nested(key: str, value: str) -> str:
    """Return the JSON of a value under ``a.b``; the value is parsed as JSON if possible."""
    try:
        nested: Any = json.loads(value)
    except ValueError:
        nested = value
    for part in reversed(key.split(".")):
        nested = {part.removesuffix("+"): nested}
    return json.dumps(nested)


def _from_config(name: str, table: Table) -> list[Given]:
    """Read the flags of the YAML file that ``--config`` names. Raises `ScenarioError`."""
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
    return read_given(option_words(values), table)


def _merged(given: list[Given]) -> list[Given]:
    """Keep the last of several equal flags; JSON values are merged by their keys."""
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
    """Return two JSON objects as one; None if either is something else."""
    try:
        one, two = json.loads(first), json.loads(second)
    except ValueError:
        return None
    both = isinstance(one, dict) and isinstance(two, dict)
    return json.dumps(_joined_objects(one, two)) if both else None


def _joined_objects(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    found = dict(one)
    for key, value in two.items():
        before: Any = found.get(key)
        is_inner = isinstance(before, dict) and isinstance(value, dict)
        found[key] = _joined_objects(before, value) if is_inner else value
    return found
