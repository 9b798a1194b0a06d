"""Questions about paths that a person wrote, which may be too long or no path at all."""

from __future__ import annotations

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
