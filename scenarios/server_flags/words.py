"""Find the arguments that reach the engine in a command, however it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from scenarios.server_flags.manifests import Container, containers
from scenarios.server_flags.shell import ASSIGNMENT, Shell, expanded
from scenarios.server_flags.table import TABLES, Table, load_table
from sim.errors import ScenarioError

_CONTAINERS = ("docker", "podman", "nerdctl")
_SHELLS = ("bash", "sh", "zsh", "ash")
_SCRIPT = re.compile(r"-[a-z]*c")
_LONGEST = 200_000
_DEEPEST = 4
"""Commands within commands that are looked into: `docker run ... sh -c "ssh ... '...'"`."""
_PLACE = re.compile(r"[/\\=]")
_MODEL = re.compile(r"[\w.-]+/[\w./-]+")
_OTHER_ENGINES = {
    "trtllm-serve": "TensorRT-LLM",
    "tritonserver": "Triton",
    "text-generation-launcher": "TGI",
    "lmdeploy": "LMDeploy",
    "llama-server": "llama.cpp",
    "ollama": "Ollama",
}
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

    A text is shell, a manifest, or a list of arguments. Raises `ScenarioError` if the command
    starts no server of this engine.
    """
    if sum(map(len, command)) > _LONGEST:
        raise ScenarioError(
            f"the command is longer than {_LONGEST:,} characters: give the part that starts the "
            "server alone"
        )
    found = next(_found(command, table), None)
    if found is not None:
        return found
    for name in TABLES:
        other = load_table(name)
        if other.engine != table.engine and next(_found(command, other), None) is not None:
            raise ScenarioError(
                f"this command starts {other.engine}: read it with `fleetcast scenario from-{name}`"
            )
    for word, engine in _OTHER_ENGINES.items():
        if re.search(rf"\b{word}\b", " ".join(command)):
            raise ScenarioError(
                f"this command starts {engine}, whose flags are not known here; write its sizes as "
                f"a command of {table.engine}, which is what would be predicted"
            )
    known = ", ".join(f"`{' '.join(words)}`" for words in table.launchers)
    raise ScenarioError(f"the command starts no {table.engine} server; known are {known}")


def _found(command: Sequence[str], table: Table, depth: int = 0) -> Iterator[Words]:
    if depth > _DEEPEST:
        return
    if len(command) != 1:
        yield from _in_words(list(command), table, depth)
        return
    for container in containers(command[0]):
        found = _in_manifest(container, table, depth)
        if found is not None:
            yield found
    shell = Shell()
    for words in shell.commands(command[0]):
        for found in _in_words(words, table, depth):
            yield Words(found.arguments, shell.exported | found.environment, found.image)


def _in_manifest(container: Container, table: Table, depth: int) -> Words | None:
    variables = {name: [value] for name, value in container.environment.items()}
    words = [expanded(word, variables) for word in container.words]
    found = next(_in_words(words, table, depth), None)
    is_arguments = bool(words) and (words[0][:2] == "--" or words[0][:1] != "-")
    is_image = table.image_runs and table.image in (container.image or "")
    if found is None and is_arguments and is_image:
        found = Words(words, {})
    if found is None:
        return None
    return Words(found.arguments, {**container.environment, **found.environment}, container.image)


def _in_words(words: list[str], table: Table, depth: int) -> Iterator[Words]:
    """Yield the engine's arguments in one simple command, if it starts the engine."""
    for n, word in enumerate(words[1:-1], 1):
        if _SCRIPT.fullmatch(word) and PurePosixPath(words[n - 1]).name in _SHELLS:
            for inner in _found([words[n + 1]], table, depth + 1):
                environment = _assignments(words[:n]) | inner.environment
                yield Words(inner.arguments, environment, inner.image)
            return
    for n, word in enumerate(words):
        if PurePosixPath(word).name in _CONTAINERS and "run" in words[n + 1 : n + 3]:
            yield from _in_container(words[words.index("run", n) + 1 :], table, depth)
            return
    started = _started(words, table)
    if started is not None:
        yield started
        return
    for word in words:  # a script in one word, as for tmux or ssh
        if re.search(r"\s", word):
            yield from _found([word], table, depth + 1)


def _started(words: list[str], table: Table) -> Words | None:
    for launcher in table.launchers:
        for n in range(len(words) - len(launcher) + 1):
            first = _PLACE.split(words[n])[-1].removesuffix(".exe")
            if (first, *words[n + 1 : n + len(launcher)]) == launcher:
                return Words(words[n + len(launcher) :], _assignments(words[:n]))
    for n, word in enumerate(words):
        if any(word.endswith(f"{of[1].replace('.', '/')}.py") for of in table.launchers):
            return Words(words[n + 1 :], _assignments(words[:n]))
    if words[:1] == ["serve"] and table.model_by_position:
        return Words(words[1:], {})
    # Only the arguments, as in a container's manifest
    is_flags = bool(words) and words[0].startswith("-") and _knows(words[0], table)
    is_model = table.model_by_position and len(words) > 1 and _MODEL.fullmatch(words[0])
    if is_flags or (is_model and words[1].startswith("--") and _knows(words[1], table)):
        return Words(words, {})
    return None


def _knows(word: str, table: Table) -> bool:
    return table.find(word.partition("=")[0].replace("_", "-")) is not None


def _in_container(words: list[str], table: Table, depth: int) -> Iterator[Words]:
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
            entrypoint = [word for of in Shell().commands(value) for word in of]
    if not words:
        return
    image, *arguments = words
    inner = next(_in_words([*entrypoint, *arguments], table, depth), None)
    if inner is not None:
        yield Words(inner.arguments, environment | inner.environment, image)
    elif table.image in image and table.image_runs:
        yield Words(arguments, environment, image)


def _assignments(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words if ASSIGNMENT.fullmatch(word))
    return {name: value for name, _, value in pairs}
