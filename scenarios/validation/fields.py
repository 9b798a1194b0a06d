"""Typed access to the fields of an info file, with errors that name the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.errors import ScenarioError

_ABSENT = ("", "None", "none", "null")
_FLAGS = {"True": True, "true": True, "False": False, "false": False}


class InfoFields:
    """One info file; ``engine_args`` holds options as text, as they were given to the engine."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path = path
        self.values = values
        arguments = values.get("engine_args") or {}
        if not isinstance(arguments, Mapping):
            raise self.error("engine_args", "must be an object")
        self._arguments = arguments

    def error(self, field: str, problem: str) -> ScenarioError:
        """Return an error that says what is wrong with a field."""
        return ScenarioError(f"{self._path}: field {field} {problem}")

    def argument(self, name: str) -> Any:
        """Return an option from the top level or from ``engine_args``; None if it was not given."""
        for values in (self.values, self._arguments):
            value = values.get(name)
            if value is not None and value not in _ABSENT:
                return value
        return None

    def count(self, name: str, default: int | None = None) -> int:
        """Return a positive integer. Raises `ScenarioError` if it is missing without a default,
        or bad."""
        value = self.argument(name)
        if value is None:
            if default is None:
                raise self.error(name, "is missing; a positive integer is needed")
            return default
        try:
            if isinstance(value, bool) or int(value) != float(value) or int(value) < 1:
                raise ValueError
        except (TypeError, ValueError):
            raise self.error(name, f"must be a positive integer, not {value!r}") from None
        return int(value)

    def number(self, name: str, default: float) -> float:
        """Return a number. Raises `ScenarioError` if it is not one."""
        value = self.argument(name)
        if value is None:
            return default
        try:
            return float(value)
        except (TypeError, ValueError):
            raise self.error(name, f"must be a number, not {value!r}") from None

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value, also given as text. Raises `ScenarioError` if it is not one."""
        value = self.argument(name)
        if value is None:
            return default
        found = value if isinstance(value, bool) else _FLAGS.get(str(value))
        if found is None:
            raise self.error(name, f"must be true or false, not {value!r}")
        return found

    def text(self, name: str) -> str:
        """Return required text. Raises `ScenarioError` if it is missing or not text."""
        value = self.argument(name)
        if not isinstance(value, str):
            raise self.error(name, "is missing" if value is None else f"must be text, not {value}")
        return value

    def mapping(self, name: str, *, required: bool = False) -> Mapping[str, Any]:
        """Return an object, {} if absent. Raises `ScenarioError` if it is missing but required,
        or bad."""
        value = self.values.get(name)
        if value is None and not required:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(name, "is missing" if value is None else "must be an object")
        return value

    def rows(self, name: str) -> list[Mapping[str, Any]]:
        """Return a list of objects, [] if absent. Raises `ScenarioError` if it is not one."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
            raise self.error(name, "must be a list of objects")
        return value
