"""Finds a device by the names its owners use: those of drivers, clusters and clouds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from costmodels.datafile import read_data
from sim.errors import ScenarioError

FILES = ("gpus.yaml", "further_gpus.yaml", "workstation_gpus.yaml", "consumer_gpus.yaml")
# Words of driver names that tell no two devices apart.
_NOISE = frozenset(
    (
        *("nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "radeon", "graphics", "gpu"),
        *("generation", "edition", "server", "workstation", "superchip", "oam", "vf", "ac"),
        *("hbm2", "hbm2e", "hbm3", "hbm3e"),
    )
)
_MEMORY = re.compile(r"(\d{1,5})gb?")
_COUNTED = re.compile(r"(?:gpu_)?(\d+)x[ _-]?([a-z].*)|([a-z].*?)(?::|[ _-]?x)(\d+)")
_NEAR_MEMORY = 0.08
_LONGEST_NAME = 120
_DESCRIBE = (
    "a device that is not built in is described in a file: hardware.gpu takes a YAML file with "
    "name, label, source, bf16_flop_per_s, hbm_bytes and hbm_bytes_per_s (docs/extending.md)"
)


class FoundGpu(NamedTuple):
    """A device that a name stands for."""

    name: str
    """Name of its row."""
    gpus_per_node: int | None = None
    """Devices in a node, if the name says so."""
    network_bytes_per_s: float | None = None
    """Bandwidth between nodes, per device and direction, if the name's instance type has one."""


@cache
def gpu_rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of all files of devices, by name."""
    rows: dict[str, Mapping[str, Any]] = {}
    for file in FILES:
        rows |= read_data(f"hardware/{file}")["gpus"]
    return rows


def find_gpu(name: str) -> FoundGpu:
    """Return the device of a name: a row's, a driver's (``NVIDIA H100 80GB HBM3``), a cloud's
    (``p5.48xlarge``), or one with a count (``8xH100``).

    Case, separators and vendors' words do not matter. Raises `ScenarioError` with devices of a like
    name.
    """
    if len(name) > _LONGEST_NAME:
        raise ScenarioError(f"unknown GPU {name[:_LONGEST_NAME]!r}...; {_DESCRIBE}")
    plain = name.strip().casefold()
    instance = _instance(plain)
    if instance is not None:
        return instance
    words = _words(plain)
    if any(word.startswith("mig") for word in words):
        raise ScenarioError(
            f"GPU {name!r} is a MIG slice; name the whole device, or give the slice's share of it: "
            f"{_DESCRIBE}"
        )
    found = _row_of(words)
    if found is not None:
        return FoundGpu(found)
    counted = _COUNTED.fullmatch(plain)
    if counted is not None:
        found = _row_of(_words(counted[2] or counted[3]))
        if found is not None:
            return FoundGpu(found, int(counted[1] or counted[4]))
    near = ", ".join(_near(words))
    hint = f"did you mean {near}?" if near else "`fleetcast list gpus` has all names."
    raise ScenarioError(f"unknown GPU {name!r}; {hint} {_DESCRIBE[0].upper()}{_DESCRIBE[1:]}")


def gpu_note(name: str) -> str | None:
    """Return a sentence on what was made of a name that says more than the device; else None."""
    if name.endswith((".yaml", ".yml")):
        return None
    found = find_gpu(name)
    if found.gpus_per_node is None:
        return None
    network = found.network_bytes_per_s
    between = "" if network is None else f", {network / 1e9:.3g} GB/s a GPU between nodes"
    return f"{name} is read as nodes of {found.gpus_per_node} {found.name}{between}"


def _instance(name: str) -> FoundGpu | None:
    rows = read_data("hardware/instances.yaml")["instances"]
    bare = name.replace(" ", "_")
    for spelling in (bare, f"standard_{bare}"):
        row = rows.get(spelling) or next(
            (rows[one] for one in rows if one[-1] == "*" and spelling.startswith(one[:-1])), None
        )
        if row is not None:
            gpu, count, gbit_per_s = row
            network = None if gbit_per_s is None else gbit_per_s * 1e9 / 8 / count
            return FoundGpu(gpu, count, network)
    return None


def _words(name: str) -> list[str]:
    words = re.split(r"[^a-z0-9.]+", re.sub(r"sxm\d\b", "sxm", name.casefold()))
    words = [f"{word}b" if re.fullmatch(r"\d+g", word) else word for word in words]
    return [word for word in words if word and word not in _NOISE]


def _row_of(words: list[str]) -> str | None:
    """Return the row of a name's words, of which one may be the device's memory."""
    found = _spelled(words)
    if found is not None:
        return found
    for word in words:
        memory = _MEMORY.fullmatch(word)
        row = _spelled([other for other in words if other != word]) if memory else None
        if memory is not None and row is not None:
            size = gpu_rows()[row]["hbm_bytes"] / 1e9
            return row if abs(size / max(int(memory[1]), 1) - 1) < _NEAR_MEMORY else None
    return None


def _spelled(words: list[str]) -> str | None:
    joined = "".join(words)
    return _spellings().get(joined) or _spellings().get(f"rtx{joined}")


@cache
def _spellings() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, row in gpu_rows().items():
        for spelling in (name, *row.get("aliases", ())):
            found["".join(_words(spelling))] = name
    return found


def _near(words: list[str]) -> list[str]:
    """Return the devices of the same model, or else those whose model is one character off.

    The model is the first word with a digit: ``h100`` of ``H100 PCIe``.
    """
    model = _model(words)
    if not model:
        return []
    models = {name: _model(_words(name)) for name in gpu_rows()}
    same = [name for name, known in models.items() if known == model]
    return same or [name for name, known in models.items() if _off_by_one(model, known)]


def _model(words: list[str]) -> str:
    return next((word for word in words if any(map(str.isdigit, word))), "")


def _off_by_one(one: str, two: str) -> bool:
    if abs(len(one) - len(two)) == 1 and (one.startswith(two) or two.startswith(one)):
        return True
    if re.sub(r"\d", "", one) != re.sub(r"\d", "", two):
        return False
    unlike = sum(a != b for a, b in zip(one, two, strict=False))
    return unlike + abs(len(one) - len(two)) <= 1
