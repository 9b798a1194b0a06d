"""The result folder, which is all that passes from a run to its report."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.errors import ScenarioError


def make_folder(folder: Path) -> None:
    """Make the folder before a long run, so that an unwritable place is found early.

    Raises `ScenarioError`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ScenarioError(f"cannot write the result folder {folder}: {error.strerror}") from None


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by their paths in the folder, in order, so that the last marks it as complete.

    Raises `ScenarioError`.
    """
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write the result folder {folder}: {error.strerror}") from error


def json_text(content: dict[str, Any]) -> str:
    """Return the text of a JSON file in a result folder."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
