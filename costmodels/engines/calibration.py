"""A calibration file: an engine's host terms and a GPU's efficiency, fitted to step logs.

Each file says which engine, GPU, machine and day it stands for, and the hash of every input; its
own hash covers all of that, so a changed input or constant is another calibration.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from costmodels.datafile import read_yaml_object
from costmodels.engines.api_server import (
    API_COSTS,
    ApiServerCosts,
    api_server_costs,
    built_in_api_server,
)
from costmodels.engines.profile import HOST_TERMS, SPREADS, EngineProfile, load_profile
from costmodels.hardware.efficiency import Efficiency, FittedRange, load_efficiency
from costmodels.hardware.gpus import GpuSpec
from sim.errors import ScenarioError
from sim.evidence import Evidence

_FORMAT = 1
_KEYS = (
    "format",
    "profile",
    "gpu",
    "machine",
    "date",
    "inputs",
    "range",
    "errors",
    "host",
    "spreads",
    "efficiency",
)
_API_SERVER = "api_server"
_CONSTANTS = tuple(
    f.name for f in fields(Efficiency) if f.name not in ("name", "fitted_range", "evidence")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted constants, and what they were fitted to."""

    profile: EngineProfile
    efficiency: Efficiency
    gpu: str
    """Name of the GPU that was measured."""
    machine: str
    date: str
    inputs: dict[str, str]
    """File name -> sha256 of its bytes."""
    api_server: ApiServerCosts | None = None
    """What was fitted of the API server; None: nothing."""
    errors: dict[str, float]
    """Median absolute relative error of a step on the GPU, by run."""


def save_calibration(calibration: Calibration, path: Path) -> str:
    """Write the file, and return its hash."""
    profile, efficiency = calibration.profile, calibration.efficiency
    content: dict[str, Any] = {
        "format": _FORMAT,
        "profile": profile.name,
        "gpu": calibration.gpu,
        "machine": calibration.machine,
        "date": calibration.date,
        "inputs": calibration.inputs,
        "range": (efficiency.fitted_range or FittedRange(0, 0))._asdict(),
        "errors": {run: _rounded(error) for run, error in calibration.errors.items()},
        "host": {term: _rounded(getattr(profile, term)) for term in HOST_TERMS},
        "spreads": {name: [_rounded(v) for v in getattr(profile, name)] for name in SPREADS},
        "efficiency": {name: _rounded(getattr(efficiency, name)) for name in _CONSTANTS},
    }
    if calibration.api_server is not None:
        costs = calibration.api_server
        content[_API_SERVER] = {name: _rounded(getattr(costs, name)) for name in API_COSTS}
    content["hash"] = content_hash(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return str(content["hash"])


def load_constants(name: str, gpu: GpuSpec) -> tuple[EngineProfile, Efficiency]:
    """Return host times and efficiencies of a built-in profile, or of a calibration file.

    Raises `ScenarioError` for an unknown name, and what `load_calibration` raises.
    """
    if name.endswith((".yaml", ".yml")):
        return load_calibration(Path(name), gpu)
    return load_profile(name), load_efficiency(gpu)


def load_api_server(name: str) -> ApiServerCosts:
    """Return the API server's costs of a built-in profile, or of a calibration file that
    `load_constants` has read; those of its base where it has none."""
    if not name.endswith((".yaml", ".yml")):
        return built_in_api_server(name)
    path = Path(name)
    content = read_yaml_object(path)
    if content.get(_API_SERVER) is None:
        return built_in_api_server(content["profile"])
    known = Evidence(label="fitted", source=f"{path.name} ({content['date']})")
    return api_server_costs(content[_API_SERVER], known)


def load_calibration(path: Path, gpu: GpuSpec) -> tuple[EngineProfile, Efficiency]:
    """Return a file's profile and efficiency. Raises `ScenarioError` naming the file and field.

    A file made on another GPU is refused, and so is one changed since it was written.
    """
    content = read_yaml_object(path)
    if content.get("format") != _FORMAT:
        raise ScenarioError(
            f"{path} is not a calibration of format {_FORMAT}; `fleetcast calibrate engine` "
            "writes them"
        )
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise ScenarioError(f"{path}: no {', '.join(missing)}")
    digest = content.pop("hash", None)
    if digest != content_hash(content):
        raise ScenarioError(
            f"{path}: changed since it was written (its hash does not fit its content); "
            "fit it again"
        )
    if content["gpu"] != gpu.name:
        raise ScenarioError(
            f"{path} was measured on {content['gpu']}, the scenario's GPU is {gpu.name}"
        )
    known = Evidence(label="fitted", source=f"{path.name} ({content['date']}, {digest[:12]})")
    values = {name: content["efficiency"].get(name) for name in _CONSTANTS}
    base = load_efficiency(gpu)
    lacking = [name for name, value in values.items() if value is None]
    if lacking:
        raise ScenarioError(f"{path}: efficiency lacks {', '.join(lacking)}")
    # Constants that no log of one device determines keep their labels.
    unseen = {name: base.evidence[name] for name in _CONSTANTS if name.startswith("all_reduce")}
    efficiency = replace(
        base,
        name=path.stem,
        fitted_range=FittedRange(**content["range"]),
        evidence=dict.fromkeys(_CONSTANTS, known) | unseen,
        **values,
    )
    spreads = {name: tuple(content["spreads"][name]) for name in SPREADS}
    terms: dict[str, Any] = {**content["host"], **spreads}
    profile = replace(load_profile(content["profile"]), host_evidence=known, **terms)
    return profile, efficiency


def content_hash(content: dict[str, Any]) -> str:
    """Return the sha256 of the content as canonical JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _rounded(value: float) -> float:
    """Round to the six significant digits that a fit can determine."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
