"""The folders whose Python files a scenario may run: none, unless a person names them.

A scenario, plan or sweep is data. It names policies; which of those may be files of its own is said
on the command line (``--plugins``) or in Python (`scenarios.trust_plugins`), never in the data.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sim.errors import ScenarioError
from sim.paths import is_file, is_folder

PLUGINS = "FLEETCAST_PLUGINS"
"""Environment variable with the trusted folders, which the processes of a search inherit."""
_POLICIES = Path(__file__).resolve().parents[2] / "policies"


def trust_plugins(folders: Iterable[Path]) -> None:
    """Let scenarios name policies that are written in these folders, beside those trusted before.

    A scenario is data: without this it can only name policies that fleetcast or an installed
    distribution declares. Raises `ScenarioError` for what is not a folder.
    """
    known = [str(folder) for folder in trusted_folders()]
    for folder in folders:
        if not is_folder(folder):
            raise ScenarioError(f"--plugins: {folder} is not a folder")
        known.append(str(folder.resolve()))
    os.environ[PLUGINS] = os.pathsep.join(dict.fromkeys(known))


def trusted_folders() -> list[Path]:
    """Return the folders whose Python files a scenario may run."""
    named = os.environ.get(PLUGINS, "").split(os.pathsep)
    return [Path(folder).resolve() for folder in named if folder]


def trusted_file(module_name: str) -> Path | None:
    """Return the file of a module in a trusted folder; None if none has it."""
    if module_name.endswith(".py"):
        file = Path(module_name).resolve()
        return file if is_file(file) and is_trusted(file) else None
    inside = Path(*module_name.split("."))
    places = [folder / inside for folder in trusted_folders()]
    files = [one for at in places for one in (at.with_suffix(".py"), at / "__init__.py")]
    return next((file.resolve() for file in files if is_file(file) and is_trusted(file)), None)


def is_trusted(file: str | Path) -> bool:
    """Return whether a scenario may run a file: it is in a trusted folder, or one of ours."""
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in (*trusted_folders(), _POLICIES))
