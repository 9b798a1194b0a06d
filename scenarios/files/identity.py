"""The address of a result: one hash of everything that determines it."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scenarios.files.trusted import trusted_file
from scenarios.schema import Scenario
from sim.paths import file_sha256, is_file, is_folder

CHECKOUT = Path(__file__).resolve().parents[2]
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LARGE_BYTES = 1 << 26
"""Size above which a file in a folder is identified by size and time.

Such files are weights beside a model's config, which are never read.
"""


def with_contents(values: Any) -> Any:
    """Replace every file, folder and user's policy module in nested plain values by its hash.

    Every field that names an existing file counts, so a new field with a file is never forgotten.
    Policies count together with the modules beside theirs, which they may import.
    """
    if isinstance(values, dict):
        return {key: with_contents(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [with_contents(value) for value in values]
    return _content_of_text(values) if isinstance(values, str) else values


def _content_of_text(text: str) -> Any:
    if "/" not in text and "." not in text and ":" not in text:
        return text  # a name, not a path
    module, colon, attribute = text.rpartition(":")
    if colon and module.endswith(".py") and is_file(Path(module)):
        return [_folder_content(Path(module).parent, "*.py"), Path(module).name, attribute]
    if _MODULE.fullmatch(text):
        return _of_module(module, attribute)
    parts = [part.strip() for part in text.split(",")]
    found = [path_content(file) for part in parts for file in _files_of(Path(part))]
    return text if None in found else found


def _files_of(path: Path) -> list[Path]:
    from workloads.readers.detect import files_of

    return files_of(path) if is_file(path) else [path]


def path_content(path: Path) -> str | None:
    """Return the hash of a file, or of a folder's files; None if there is neither."""
    if is_folder(path):
        return _folder_content(path, "**/*")
    try:
        stat = path.stat()
    except OSError:
        return None
    return _file_content(path, stat.st_mtime_ns, stat.st_size)


def _of_module(module: str, attribute: str) -> list[str]:
    file = trusted_file(module)
    if file is None:  # built in, declared by an installed distribution, or refused
        return [module, attribute]
    return [_folder_content(file.parent, "*.py"), file.name, attribute]


def _folder_content(folder: Path, pattern: str) -> str:
    parts: list[Any] = []
    for file in sorted(folder.glob(pattern)):
        if not is_file(file):
            continue
        stat = file.stat()
        is_large = stat.st_size > _LARGE_BYTES
        stamps = (stat.st_mtime_ns, stat.st_size)
        content = list(stamps) if is_large else _file_content(file, *stamps)
        parts.append((str(file.relative_to(folder)), content))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _file_content(path: Path, mtime_ns: int, size_bytes: int) -> str:
    """Return the SHA-256 of a file, cached by its time and size."""
    return file_sha256(path)


_PACKAGES = ("sim", "costmodels", "workloads", "policies", "scenarios")
_CODE, _DATA = (".py",), (".py", ".yaml", ".csv", ".parquet", ".json")
_LIBRARIES = ("numpy", "pandas", "pydantic", "scipy", "simpy")
_AIC = "aiconfigurator-core"


def result_address(scenario: Scenario) -> str:
    """Return the SHA-256 of a scenario with defaults, its files' contents, the code and its data.

    Calibration files, operator tables, device and model descriptions, traces and a user's policies
    count by their content, not by their path. Equal addresses mean equal results.
    """
    values = scenario.model_dump(mode="json")
    if scenario.pools:  # a pool takes what it leaves out from the scenario's own sections
        values["pools"] = scenario.model_dump(mode="json", exclude_unset=True)["pools"]
    content = {
        "scenario": with_contents(values),
        "code": code_address(),
        # Tables of an installed package; our own tables are part of the code's data.
        "aic": _version(_AIC) if "aic" in json.dumps(values["engine"]["operators"]) else None,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def code_address() -> str:
    """Return the SHA-256 of the simulator: its sources and data, Python, and numerical
    libraries."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name in _LIBRARIES:
        digest.update(f"{name} {_version(name)}\n".encode())
    for package in _PACKAGES:
        # Shipped scenarios do not count: a scenario's own content is hashed already.
        kinds = _CODE if package == "scenarios" else _DATA
        for path in sorted((CHECKOUT / package).rglob("*")):
            if path.suffix in kinds and is_file(path):
                digest.update(str(path.relative_to(CHECKOUT)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
