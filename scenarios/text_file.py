"""Reading the files that people write."""

from __future__ import annotations

from pathlib import Path

from sim.errors import ScenarioError


def read_text(path: Path, what: str) -> str:
    """A file's text; ``what`` it is, for messages. Raises ScenarioError."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ScenarioError(f"cannot read {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"cannot read {what} {path}: it is not a text file") from None
