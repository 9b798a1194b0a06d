"""The result folder: the only thing that passes from a run to its report."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sim.errors import ScenarioError


def make_folder(folder: Path) -> None:
    """Make the folder, so that a place that cannot be written is known before a long run.

    Raises ScenarioError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ScenarioError(f"cannot write the result folder {folder}: {error.strerror}") from None
