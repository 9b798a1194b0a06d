"""The result folder, which is all that passes from a run to its report."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def replaced(folder: Path, marker: str, *, stale: Collection[str] = ()) -> Iterator[Path]:
    """Give an empty folder to write in, whose files then take the places of those in ``folder``.

    ``marker`` comes last and marks the folder as complete; it and the ``stale`` files are taken
    away first, so that parts of two results never stand together as one. If the block fails, the
    folder stays as it was. Raises `ScenarioError` if it cannot be written.
    """
    make_folder(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as temporary:
            part = Path(temporary)
            yield part
            for old in (marker, *stale):
                (folder / old).unlink(missing_ok=True)
            files = [path.relative_to(part) for path in part.rglob("*") if path.is_file()]
            for name in sorted(files, key=lambda name: (str(name) == marker, name)):
                (folder / name).parent.mkdir(exist_ok=True)
                os.replace(part / name, folder / name)
    except OSError as error:
        raise ScenarioError(f"cannot write the result folder {folder}: {error.strerror}") from None


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by their paths in the folder; the last marks it as complete (see `replaced`).

    Raises `ScenarioError`.
    """
    *_, marker = files
    with replaced(folder, marker) as part:
        for name, content in files.items():
            path = part / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def json_text(content: dict[str, Any]) -> str:
    """Return the text of a JSON file in a result folder."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
