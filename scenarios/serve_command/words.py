"""A command line as people paste it into the words that reach the engine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from scenarios.serve_command.table import TABLES, Table, load_table
from sim.errors import ScenarioError

_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_REDIRECTION = re.compile(r"\d*[<>].*")
_ENDS = frozenset(";&|\n")
_CONTAINERS = ("docker", "podman", "nerdctl")
_SHELLS = ("bash", "sh", "zsh")
# Options of `docker run` without a value; every other one has one.
_BARE_OPTIONS = (
    *("--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable"),
    *("--privileged", "--publish-all", "--quiet", "--read-only", "--rm", "--tty"),
)
_BARE_LETTERS = frozenset("ditqP")


@dataclass(frozen=True, slots=True)
class Words:
    """What a command line says to the engine."""

    arguments: list[str]
    environment: dict[str, str]
    image: str | None = None
    """The container image, if the command runs one."""


def read_words(command: Sequence[str], table: Table) -> Words:
    """Find the engine's arguments in one text, or in words that a shell has split.

    Raises ScenarioError where the command starts no server of this engine.
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
    """The simple commands of a shell text, as words without quotes and comments."""
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
    return [_cut(words) for words in commands if words]


def _cut(words: list[str]) -> list[str]:
    """Without the prompt in front, and without redirections and comments behind."""
    words = words[1:] if words[0] in ("$", "%") else words
    ends = (n for n, w in enumerate(words) if w.startswith("#") or _REDIRECTION.fullmatch(w))
    return words[: next(ends, len(words))]


def _find(words: list[str], table: Table, assigned: Mapping[str, str]) -> Words | None:
    """The engine's arguments in one simple command, if it starts the engine."""
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
    if words[0].startswith("--"):  # the arguments alone, as a container's manifest has them
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
    """A word with the shell variables that the text sets, or gives a default."""

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
