"""Typed access to the fields of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import ScenarioError


class Fields:
    """Typed access to the fields of one config, with errors that name the file and field."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def error(self, message: str) -> ScenarioError:
        """Return an error that says which file ``message`` is about."""
        return ScenarioError(f"{self.where}: {message}")

    def first(self, *keys: str) -> Any:
        """Return the first of ``keys`` that is present and not null, else None."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def count(self, *keys: str, default: int | None = None) -> int:
        """Return a positive integer under any of ``keys`` (spellings of one field)."""
        value = self.first(*keys)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"field {' or '.join(keys)} is missing; a positive integer is needed")
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(f"field {keys[0]} must be a positive integer, not {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false, or ``default`` if the field is absent or null."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"field {key} must be true or false, not {value!r}")
        return value

    def number(self, *keys: str, default: int = 0) -> int:
        """Return a positive integer as `count` does, or ``default`` if the field is absent, null
        or 0."""
        return self.count(*keys) if self.first(*keys) else default

    def items(self, *keys: str) -> list[Any]:
        """Return a list under any of ``keys``; empty if absent or null."""
        value = self.first(*keys)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise self.error(f"field {keys[0]} must be a list, not {value!r}")
        return list(value)

    def part(self, key: str) -> Fields:
        """Return the object under ``key``, for reading its fields."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.error(f"field {key} must be an object, not {value!r}")
        return Fields(value, f"{self.where}: {key}")
