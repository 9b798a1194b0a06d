"""Find commands in manifests: lists of arguments, Kubernetes, Helm, compose, Dockerfiles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scenarios.files.yaml_text import parse_yaml
from scenarios.server_flags.shell import Shell
from sim.errors import ScenarioError

_DOCUMENT = re.compile(r"^---.*$", re.MULTILINE)
_LOOKS_LIKE_YAML = re.compile(r"\s*(?:\[|\{|- |-\n|(?:#.*\n\s*)*[\w.-]+:(?:\s|$))")
_TEMPLATE_LINE = re.compile(r"^\s*\{\{[^}]*\}\}\s*$\n?", re.MULTILINE)
_TEMPLATE = re.compile(r"(?<=[-:] )(\{\{[^}]*\}\})")
_LIST = re.compile(r"\[(?:[^\[\]\"']|\"(?:[^\"\\]|\\.)*\"|'[^'\n]*')*\]")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Container:
    """A command as a manifest has it."""

    words: list[str]
    image: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def containers(text: str) -> Iterator[Container]:
    """Yield what a text would start, in its order, if it is YAML or JSON, or holds lists of
    words."""
    if _LOOKS_LIKE_YAML.match(text):
        for part in _DOCUMENT.split(text):
            yield from _in(_parsed(part))
    lists = [words for match in _LIST.finditer(text) if (words := _words(_parsed(match[0])))]
    if "ENTRYPOINT" in text and len(lists) > 1:
        yield Container([word for words in lists for word in words])
    yield from map(Container, lists)


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return the flags of a mapping of options, such as the YAML file of ``--config``."""
    words: list[str] = []
    for key, value in options.items():
        if value is False or value is None:
            continue  # as vLLM does: off means that the flag is absent
        words.append(f"--{key}")
        if isinstance(value, list):
            words += [str(item) for item in value]
        elif isinstance(value, dict):
            words.append(json.dumps(value))
        elif value is not True:
            words.append(str(value))
    return words


def _parsed(text: str) -> Any:
    try:
        return parse_yaml(_TEMPLATE.sub(r"'\1'", _TEMPLATE_LINE.sub("", text)), "command")[0]
    except ScenarioError:
        return None


def _in(value: Any) -> Iterator[Container]:
    """Yield the containers of a document, from the outside in."""
    if isinstance(value, list):
        words = _words(value)
        if words:
            yield Container(words)
        else:
            for item in value:
                yield from _in(item)
    elif isinstance(value, dict):
        if isinstance(value.get("modelURL"), str):
            yield _of_production_stack(value)
        starts = [_words(value.get(key)) for key in ("entrypoint", "command", "args")]
        if any(starts):
            image = value.get("image")
            yield Container(
                [word for words in starts for word in words],
                image if isinstance(image, str) else None,
                _environment(value.get("env", value.get("environment"))),
            )
        options = {str(key).replace("_", "-"): item for key, item in value.items()}
        if isinstance(options.get("model", options.get("model-path")), str) and not any(starts):
            yield Container(option_words(options))
        for item in value.values():
            yield from _in(item)


def _words(value: Any) -> list[str]:
    """Return the words of a command line given as a list or as a text; none of anything else."""
    if isinstance(value, str):
        return [word for words in Shell().commands(value) for word in words]
    if not isinstance(value, list) or any(isinstance(item, list | dict) for item in value):
        return []
    words: list[str] = []
    for item in value:
        text = json.dumps(item) if isinstance(item, bool) else str(item)
        # `--flag value` in one item is no list of words, but is meant as two
        is_two = re.match(r"--?[\w-]+\s", text) is not None
        words += _words(text) if is_two else [text]
    return words


def _environment(value: Any) -> dict[str, str]:
    """Return the variables of Kubernetes (name and value), or of compose (a mapping, or texts)."""
    if isinstance(value, dict):
        return {str(name): str(text) for name, text in value.items()}
    found: dict[str, str] = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and "value" in item:
            found[str(item.get("name"))] = str(item["value"])
        elif isinstance(item, str):
            name, _, text = item.partition("=")
            found[name] = text
    return found


def _of_production_stack(spec: Mapping[str, Any]) -> Container:
    """Return the command that the Helm chart of vLLM's production stack makes of a modelSpec."""
    config = dict(spec.get("vllmConfig") or {})
    engine = [config.pop(name, None) for name in ("v1", "v0")]
    extra = config.pop("extraArgs", None)
    options = {_CAPITAL.sub("-", str(key)).lower(): item for key, item in config.items()}
    words = ["--model", str(spec["modelURL"]), *option_words(options), *_words(extra)]
    environment = _environment(spec.get("env"))
    if engine[1] or str(engine[0]) == "0":
        environment["VLLM_USE_V1"] = "0"
    cache = spec.get("lmcacheConfig")
    if isinstance(cache, dict) and cache.get("enabled"):
        words += ["--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1"}']
        size = cache.get("cpuOffloadingBufferSize")
        environment |= {} if size is None else {"LMCACHE_MAX_LOCAL_CPU_SIZE": str(size)}
    return Container(words, None, environment)
