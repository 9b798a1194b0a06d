"""Questions about files by their paths, which a person may have written wrongly."""

from __future__ import annotations

import hashlib
from pathlib import Path


def is_file(path: Path) -> bool:
    """Return whether there is a file; False for what cannot be a path here."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; False for what cannot be a path here."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
