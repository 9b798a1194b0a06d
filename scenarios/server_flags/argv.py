"""Parse a command line as people paste it into the arguments that reach the engine."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from scenarios.files.yaml_text import parse_yaml
from scenarios.server_flags.table import TABLES, Flag, Table, load_table
from sim.errors import ScenarioError

_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_REDIRECTION = re.compile(r"\d*[<>].*")
_ENDS = frozenset(";&|\n")
_CONTAINERS = ("docker", "podman", "nerdctl")
_SHELLS = ("bash", "sh", "zsh")
# Options of `docker run` without a value; all others have one.
_BARE_OPTIONS = (
    *("--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable"),
    *("--privileged", "--publish-all", "--quiet", "--read-only", "--rm", "--tty"),
)
_BARE_LETTERS = frozenset("ditqP")


@dataclass(frozen=True, slots=True)
class Words:
    """What a command line passes to the engine."""

    arguments: list[str]
    environment: dict[str, str]
    image: str | None = None
    """The container image, if the command runs one."""


def read_words(command: Sequence[str], table: Table) -> Words:
    """Find the engine's arguments in one text, or in words that a shell has split.

    Raises `ScenarioError` if the command starts no server of this engine.
    """
    commands = _commands(command[0]) if len(command) == 1 else [list(command)]
    assigned: dict[str, str] = {}
    for words in commands:
        found = _find(words, table, assigned)
        if found is not None:
            return found
        exported = words[1:] if words[:1] == ["export"] else words
        if exported and all(map(_ASSIGNMENT.fullmatch, exported)):
            assigned |= _assignments(exported)
    raise ScenarioError(_not_found(command, table))


def _commands(text: str) -> list[list[str]]:
    """Split a shell text into simple commands, as words without quotes and comments."""
    text = _CONTINUED.sub(" ", text)
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="".join(_ENDS))
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise ScenarioError(f"the command cannot be read: {str(error).lower()}") from None
    commands: list[list[str]] = [[]]
    for word in words:
        if word and set(word) <= _ENDS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [cut for words in commands if (cut := _cut(words))]


def _cut(words: list[str]) -> list[str]:
    """Remove the prompt before a command, and redirections and comments after it."""
    words = words[1:] if words[:1] in (["$"], ["%"], [">"]) else words
    ends = (n for n, w in enumerate(words) if w.startswith("#") or _REDIRECTION.fullmatch(w))
    return words[: next(ends, len(words))]


def _find(words: list[str], table: Table, assigned: Mapping[str, str]) -> Words | None:
    """Return the engine's arguments in one simple command, if it starts the engine."""
    words = [_expanded(word, assigned) for word in words]
    for n, word in enumerate(words[:-1]):
        if word in ("-c", "-lc") and n and PurePosixPath(words[n - 1]).name in _SHELLS:
            inner = read_words([words[n + 1]], table)
            return Words(inner.arguments, _assignments(words[:n]) | inner.environment, inner.image)
    for n, word in enumerate(words):
        if PurePosixPath(word).name in _CONTAINERS and "run" in words[n + 1 : n + 3]:
            return _in_container(words[words.index("run", n) + 1 :], table)
    return _started(words, table)


def _started(words: list[str], table: Table) -> Words | None:
    for launcher in table.launchers:
        for n in range(len(words) - len(launcher) + 1):
            first = PurePosixPath(words[n]).name
            if (first, *words[n + 1 : n + len(launcher)]) == launcher:
                return Words(words[n + len(launcher) :], _assignments(words[:n]))
    if words[0].startswith("--"):  # only the arguments, as in a container's manifest
        return Words(words, {})
    return None


def _in_container(words: list[str], table: Table) -> Words | None:
    environment: dict[str, str] = {}
    entrypoint: list[str] = []
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if option in _BARE_OPTIONS or (option[:2] != "--" and set(option[1:]) <= _BARE_LETTERS):
            continue
        if option[:2] == "-e" and len(option) > 2:
            option, value = "-e", f"{option[2:]}{equals}{value}"
        elif not equals and (option.startswith("--") or len(option) == 2):
            value = words.pop(0) if words else ""
        if option in ("-e", "--env"):
            environment |= _assignments([value])
        elif option == "--entrypoint":
            entrypoint = shlex.split(value)
    if not words:
        return None
    image, *arguments = words
    inner = _find([*entrypoint, *arguments], table, {}) if entrypoint or arguments else None
    if inner is not None:
        return Words(inner.arguments, environment | inner.environment, image)
    if table.image in image and table.image_runs:
        return Words(arguments, environment, image)
    return None


def _expanded(word: str, assigned: Mapping[str, str]) -> str:
    """Expand the shell variables in a word that the text sets, or that have a default."""

    def value(match: re.Match[str]) -> str:
        return assigned.get(match[1] or match[3], match[2] or match[0])

    return _VARIABLE.sub(value, word)


def _assignments(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words if _ASSIGNMENT.fullmatch(word))
    return {name: value for name, _, value in pairs}


def _not_found(command: Sequence[str], table: Table) -> str:
    for name in TABLES:
        other = load_table(name)
        if other.engine != table.engine and _tried(command, other):
            return (
                f"this command starts {other.engine}: read it with `fleetcast scenario from-{name}`"
            )
    known = ", ".join(f"`{' '.join(words)}`" for words in table.launchers)
    return f"the command starts no {table.engine} server; known are {known}"


def _tried(command: Sequence[str], table: Table) -> bool:
    commands = _commands(command[0]) if len(command) == 1 else [list(command)]
    return any(_find(words, table, {}) is not None for words in commands)


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
    words = [word.removesuffix("=--") for word in arguments if word != "--"]
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
    """Return the model without a flag, if there is one. Raises `ScenarioError` for other words."""
    model = next(flag for flag in table.flags.values() if flag.field == "model")
    named = [*(one.value for one in given if one.flag is model), *words]
    for word in words:
        if word != named[0]:
            raise ScenarioError(
                f"{word!r} belongs to no flag, and the model is {named[0]!r} already"
            )
    return [Given("", model, word) for word in words[:1]]


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
    words: list[str] = []
    for key, value in values.items():
        if value is False:
            continue  # as vLLM does: off means that the flag is absent
        words.append(f"--{key}")
        if isinstance(value, list):
            words += [str(item) for item in value]
        elif isinstance(value, dict):
            words.append(json.dumps(value))
        elif value is not True:
            words.append(str(value))
    return read_given(words, table)


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
    try:
        one, two = json.loads(first), json.loads(second)
    except ValueError:
        return None
    return json.dumps(one | two) if isinstance(one, dict) and isinstance(two, dict) else None
