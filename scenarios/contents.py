"""Files that settings name, replaced by what is in them: equal contents are equal settings."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LARGE_BYTES = 1 << 26
"""In a folder: weights beside a model's config, which nothing reads. Told by size and time."""


def with_contents(values: Any) -> Any:
    """Nested plain values with every file, folder and policy module of a user by its hash.

    Whatever names an existing file counts, in any field: a new field that names one is never
    forgotten. Policies count with the modules beside theirs, which they may import.
    """
    if isinstance(values, dict):
        return {key: with_contents(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [with_contents(value) for value in values]
    return _content_of_text(values) if isinstance(values, str) else values


def _content_of_text(text: str) -> Any:
    if "/" not in text and "." not in text and ":" not in text:
        return text  # a name
    module, colon, attribute = text.rpartition(":")
    if colon and module.endswith(".py") and Path(module).is_file():
        return [_folder_content(Path(module).parent, "*.py"), Path(module).name, attribute]
    if _MODULE.fullmatch(text):
        return _of_module(module, attribute)
    parts = [part.strip() for part in text.split(",")]
    found = [path_content(Path(part)) for part in parts]
    return text if None in found else found


def path_content(path: Path) -> str | None:
    """The hash of a file, or of a folder's files; None where there is neither."""
    if path.is_dir():
        return _folder_content(path, "**/*")
    try:
        stat = path.stat()
    except OSError:
        return None
    return _file_content(path, stat.st_mtime_ns, stat.st_size)


def _of_module(module: str, attribute: str) -> list[str]:
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    here = Path.cwd() / f"{module}.py"
    origin = Path(found.origin) if found is not None and found.origin else here
    if origin.is_relative_to(CHECKOUT) or not origin.is_file():
        return [module, attribute]
    return [_folder_content(origin.parent, "*.py"), origin.name, attribute]


def _folder_content(folder: Path, pattern: str) -> str:
    parts: list[Any] = []
    for file in sorted(folder.glob(pattern)):
        if not file.is_file():
            continue
        stat = file.stat()
        is_large = stat.st_size > _LARGE_BYTES
        stamps = (stat.st_mtime_ns, stat.st_size)
        content = list(stamps) if is_large else _file_content(file, *stamps)
        parts.append((str(file.relative_to(folder)), content))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _file_content(path: Path, mtime_ns: int, size_bytes: int) -> str:
    """SHA-256 of a file; a file written since has another time, and is read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
