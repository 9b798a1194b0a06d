"""The address of a result: one hash of everything that decides it."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from scenarios.contents import CHECKOUT, with_contents
from scenarios.schema import Scenario

_PACKAGES = ("sim", "costmodels", "workloads", "policies", "scenarios")
_CODE, _DATA = (".py",), (".py", ".yaml", ".csv", ".parquet", ".json")
_LIBRARIES = ("numpy", "pandas", "pydantic", "scipy", "simpy")
_AIC = "aiconfigurator-core"


def result_address(scenario: Scenario) -> str:
    """SHA-256 of a scenario after defaults, its files' contents, the code and its data.

    Calibration files, operator tables, device and model descriptions, traces and a user's policies
    count by what is in them, not by where they lie. Equal addresses mean equal results.
    """
    values = scenario.model_dump(mode="json")
    if scenario.pools:  # what a pool leaves out it has from the scenario's own sections
        values["pools"] = scenario.model_dump(mode="json", exclude_unset=True)["pools"]
    content = {
        "scenario": with_contents(values),
        "code": code_address(),
        # Tables of an installed package; ours are data of the code.
        "aic": _version(_AIC) if "aic" in json.dumps(values["engine"]["operators"]) else None,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def code_address() -> str:
    """SHA-256 of the simulator: its sources and data, Python, the libraries it computes with."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name in _LIBRARIES:
        digest.update(f"{name} {_version(name)}\n".encode())
    for package in _PACKAGES:
        # Scenarios that are shipped are questions: what one says is in the scenario itself.
        kinds = _CODE if package == "scenarios" else _DATA
        for path in sorted((CHECKOUT / package).rglob("*")):
            if path.suffix in kinds and path.is_file():
                digest.update(str(path.relative_to(CHECKOUT)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
