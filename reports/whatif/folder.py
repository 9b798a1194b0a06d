"""Read the folder of a what-if: whatif.json and the scenarios that were compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.errors import ScenarioError

SCHEMA = "fleetcast.whatif/1"
FILE = "whatif.json"

Content = dict[str, Any]

_PARTS = ("method", "figures", "shares", "baseline", "variants", "together", "answer")


def is_whatif(folder: Path | str) -> bool:
    """Whether a folder holds a what-if rather than a single run."""
    return (Path(folder) / FILE).is_file()


def read_whatif(folder: Path | str) -> Content:
    """Read ``whatif.json``.

    Raises:
        ScenarioError: the file is missing, is not JSON, is of another schema, or lacks a part.
    """
    path = Path(folder) / FILE
    again = "Run `fleetcast whatif ... --out` again."
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror}). {again}") from None
    except ValueError as error:
        raise ScenarioError(f"{path}: not valid JSON ({error}). {again}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        found = f"schema {schema!r}" if schema is not None else "no 'schema' key"
        raise ScenarioError(f"{path}: {found}; this version reads {SCHEMA!r}. {again}")
    assert isinstance(content, dict)
    missing = [part for part in _PARTS if part not in content]
    if missing:
        raise ScenarioError(f"{path}: lacks {', '.join(missing)}. {again}")
    return content


def read_scenarios(folder: Path | str, content: Content) -> dict[str, str]:
    """YAML of each variant's scenario by name, of those that were written.

    Raises:
        ScenarioError: a file that whatif.json names is missing.
    """
    texts = {}
    for variant in (content["baseline"], *content["variants"]):
        name = variant.get("scenario_file")
        if name:
            path = Path(folder) / name
            try:
                texts[variant["name"]] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ScenarioError(f"{path}: cannot be read ({error})") from None
    return texts
