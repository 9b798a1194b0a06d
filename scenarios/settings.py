"""Dotted settings from a file beside a scenario: their paths start at that file's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.load import apply_setting
from scenarios.paths import anchor_paths


def anchored_settings(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same settings with the files they name looked for in the folder."""
    anchored = {}
    for key, value in settings.items():
        nested: dict[str, Any] = {}
        parts = key.split(".")
        if any(part.isdecimal() for part in parts):  # a position in a list, which is not here
            anchored[key] = value
            continue
        apply_setting(nested, {}, key, value, key)
        anchor_paths(nested, folder)
        found: Any = nested
        for part in parts:
            found = found[part]
        anchored[key] = found
    return anchored
