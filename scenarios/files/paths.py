"""Paths in a scenario: resolved against its folder when read, and written so that they still
hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sim.paths import is_file, is_folder

_LENGTHS = ("input_tokens", "output_tokens")
_POLICIES = (
    ("engine", "scheduler"),
    ("kv", "eviction"),
    ("pool", "router"),
    ("autoscaler", "policy"),
    ("", "router"),
    ("", "admission"),
)
"""Section and field of each policy of a scenario and of its pools; without a section, their own
field."""


def anchor_paths(values: dict[str, Any], folder: Path) -> None:
    """Make the relative paths of a scenario file's values start at ``folder``, in place.

    These are the trace, a model's config.json, a GPU's file, calibrations, and policies:
    ``my_module:attribute`` becomes ``<folder>/my_module.py:attribute`` if that file exists.
    """
    for holder, key in _files(values):
        holder[key] = str(folder / holder[key])
    for holder in (values, *_speculations(values)):
        model = holder.get("model")
        if isinstance(model, str) and _is_config(model, folder):
            holder["model"] = str(folder / model)
    for holder, key in _own_sources(values, folder):
        holder[key] = ",".join(str(folder / part.strip()) for part in holder[key].split(","))
    for holder, key in _described(values):
        holder[key] = str(folder / holder[key])
    for holder, name in _policies(values):
        if isinstance(holder.get(name), str):
            holder[name] = anchored_policy(holder[name], folder)


def anchored_policy(name: str, folder: Path) -> str:
    """Return ``my_module:attribute`` or ``file.py:attribute`` with the file's path if in
    ``folder``."""
    module, colon, attribute = name.rpartition(":")
    if not colon or not module:
        return name
    file = folder / (module if module.endswith(".py") else f"{module}.py")
    return f"{file}:{attribute}" if is_file(file) else name


def relocated(values: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Rewrite the paths in scenario values so that they hold wherever they are read.

    They become absolute; or, for a scenario to be saved in ``folder``, relative to it. A file in
    the user's home, seen from outside, is left with its base name: what is shared names no user.
    """

    def moved(path: str) -> str:
        absolute = Path(path).absolute()
        if folder is None:
            return str(absolute)
        home, here = Path.home(), folder.absolute()
        if absolute.is_relative_to(home) and not here.is_relative_to(home):
            return absolute.name
        return os.path.relpath(absolute, here)

    for holder, key in _files(values):
        holder[key] = moved(holder[key])
    for named in (values, *_speculations(values)):
        if isinstance(named.get("model"), str) and _is_config(named["model"], Path()):
            named["model"] = moved(named["model"])
    for holder, name in _policies(values):
        if isinstance(holder.get(name), str):
            file, _, attribute = anchored_policy(holder[name], Path()).rpartition(":")
            if file.endswith(".py"):
                file = moved(file)
                beside = Path(file).parent == Path()  # found there by its module name
                holder[name] = f"{file.removesuffix('.py') if beside else file}:{attribute}"
    for holder, key in _own_sources(values, Path()):
        holder[key] = ",".join(moved(part.strip()) for part in holder[key].split(","))
    for holder, key in _described(values):
        holder[key] = moved(holder[key])
    return values


def _policies(values: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return where the names of policies stand: (holder, key) each."""
    holders = [
        (_section(one, section) if section else one, key)
        for one in _pools(values)
        for section, key in _POLICIES
    ]
    holders += [(section, "acceptance_policy") for section in _speculations(values)]
    return [_policy(holder, key) for holder, key in holders]


def _policy(policies: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return where the name of a policy stands: (holder, key); one with options is a section."""
    with_options = isinstance(policies.get(key), dict)
    return (policies[key], "name") if with_options else (policies, key)


def _is_config(model: str, folder: Path) -> bool:
    return model.endswith(".json") or is_file(folder / model / "config.json")


def is_gpu_file(gpu: Any) -> bool:
    """Return whether hardware.gpu is a file that describes a device, not a name."""
    return isinstance(gpu, str) and gpu.endswith((".yaml", ".yml"))


def _own_sources(values: dict[str, Any], folder: Path) -> list[tuple[dict[str, Any], str]]:
    """Return where engine.operators names folders or files of tables: (section, key)."""
    places: list[tuple[dict[str, Any], str]] = []
    for one in _pools(values):
        engine = _section(one, "engine")
        named = _section(engine, "operators")
        places += [(engine, "operators"), *((named, family) for family in named)]
    return [
        (holder, key)
        for holder, key in places
        if isinstance(holder.get(key), str) and _is_tables(holder[key], folder)
    ]


def _described(values: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the fields that name files of a device, a host or an engine's calibration: (section,
    key)."""
    sections = [(_section(one, "hardware"), "gpu") for one in _pools(values)]
    for key in ("profile", "host"):
        sections += [(_section(one, "engine"), key) for one in _pools(values)]
    return [(section, key) for section, key in sections if is_gpu_file(section.get(key))]


def _pools(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return everything with sections of hardware and engine: the scenario, and each of its
    pools."""
    pools = values.get("pools")
    listed = pools if isinstance(pools, list) else []
    return [values, *(one for one in listed if isinstance(one, dict))]


def _is_tables(source: str, folder: Path) -> bool:
    return source.endswith(".parquet") or "/" in source or is_folder(folder / source)


def _files(values: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the fields with traces and files of lengths of the workload and its classes."""
    workload = _section(values, "workload")
    classes = workload.get("classes")
    sources = [workload, *(classes if isinstance(classes, list) else [])]
    found = []
    for source in sources:
        if isinstance(source, dict):
            generator = _section(source, "generator")
            found.append((_section(source, "trace"), "path"))
            found += [(_section(generator, key), "from_file") for key in _LENGTHS]
            found.append((_section(_section(generator, "sessions"), "new_tokens"), "from_file"))
            found.append((_section(_section(generator, "documents"), "tokens"), "from_file"))
    found += [(section, "acceptance_file") for section in _speculations(values)]
    return [(section, key) for section, key in found if isinstance(section.get(key), str)]


def _speculations(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the speculation of the engine, and of pools with their own engine options."""
    pools = values.get("pools")
    holders = [values, *(pools if isinstance(pools, list | tuple) else [])]
    engines = [_section(holder, "engine") for holder in holders if isinstance(holder, dict)]
    return [_section(engine, "speculative") for engine in engines]


def _section(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a section of values that are not validated yet; {} if there is none."""
    section = values.get(key)
    return section if isinstance(section, dict) else {}
