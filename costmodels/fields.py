"""Typed access to the fields of an object that someone else wrote, with errors that name file and
field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core.core_schema import CoreSchema, custom_error_schema

from sim.errors import FleetcastError, ScenarioError, dotted, shown, wrong_value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MustBe:
    """Annotates a type with what its values must be, in words for the message of an error."""

    words: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        message = f"must be {self.words}"
        return custom_error_schema(handler(source), "must_be", custom_error_message=message)


_MOST, _LEAST, _MOST_WHOLE = 1e24, 1e-15, 10**15
"""Beyond these no quantity lies, and arithmetic on it would end in infinities."""
COUNT: TypeAdapter[int] = TypeAdapter(
    Annotated[
        int, Field(gt=0, le=_MOST_WHOLE, strict=True), MustBe("a positive integer, at most 1e15")
    ]
)
WHOLE: TypeAdapter[int] = TypeAdapter(
    Annotated[
        int,
        Field(ge=0, le=_MOST_WHOLE, strict=True),
        MustBe("a whole number, 0 or more, at most 1e15"),
    ]
)
NUMBER: TypeAdapter[float] = TypeAdapter(
    Annotated[
        float, Field(ge=-_MOST, le=_MOST, allow_inf_nan=False, strict=True), MustBe("a number")
    ]
)
AMOUNT: TypeAdapter[float] = TypeAdapter(
    Annotated[
        float,
        Field(ge=0, le=_MOST, allow_inf_nan=False, strict=True),
        MustBe("a number, 0 or more"),
    ]
)
POSITIVE: TypeAdapter[float] = TypeAdapter(
    Annotated[
        float,
        Field(ge=_LEAST, le=_MOST, allow_inf_nan=False, strict=True),
        MustBe("a number above 0"),
    ]
)
FLAG: TypeAdapter[bool] = TypeAdapter(StrictBool)
TEXT: TypeAdapter[str] = TypeAdapter(StrictStr)
LIST: TypeAdapter[list[Any]] = TypeAdapter(list[Any])
_OBJECTS: TypeAdapter[list[dict[str, Any]]] = TypeAdapter(list[dict[str, Any]])
OBJECT: TypeAdapter[Mapping[str, Any]] = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one object, read one at a time. A field that is null counts as absent."""

    values: Mapping[str, Any]
    where: str
    """File, with the line if the file has one object per line."""
    prefix: str = ""
    """Path to this object within its document, such as ``metrics.``"""
    is_text: bool = False
    """Whether numbers and flags may be given as text."""
    raises: type[FleetcastError] = ScenarioError

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, message: str) -> FleetcastError:
        """Return an error that says which object of which file ``message`` is about."""
        place = self.prefix.removesuffix(".")
        return self.raises(": ".join(part for part in (self.where, place, message) if part))

    def wrong(self, key: str, message: str) -> FleetcastError:
        """Return an error that says what is wrong with a field."""
        return self.raises(f"{self.where}: field {self.prefix}{key} {message}")

    def fail(self, key: str, expected: str) -> NoReturn:
        """Raise an error that says what the field holds and what would be right."""
        value = self.values.get(key)
        found = "is missing" if value is None else f"is {shown(value)}"
        raise self.wrong(key, f"{found}; expected {expected}")

    def first(self, *keys: str) -> Any:
        """Return the first of ``keys`` that is present and not null, else None."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def read(self, kind: TypeAdapter[T], *keys: str) -> T | None:
        """Return the value under any of ``keys`` (spellings of one field), None if absent.

        Raises the reader's error if the value is not of the ``kind``.
        """
        value = self.first(*keys)
        if value is None:
            return None
        try:
            return kind.validate_python(value, strict=False if self.is_text else None)
        except ValidationError as error:
            item = error.errors(include_url=False)[0]
            raise self.wrong(dotted((keys[0], *item["loc"])), wrong_value(item)) from None

    def need(self, kind: TypeAdapter[T], *keys: str, what: str) -> T:
        """Return the value as `read` does; an absent one is an error, too."""
        value = self.read(kind, *keys)
        if value is None:
            raise self.wrong(" or ".join(keys), f"is missing; {what} is needed")
        return value

    def count(self, *keys: str, default: int | None = None) -> int:
        """Return a positive integer; it is required if there is no ``default``."""
        if default is not None and self.first(*keys) is None:
            return default
        return self.need(COUNT, *keys, what="a positive integer")

    def optional_count(self, *keys: str, default: int = 0) -> int:
        """Return a positive integer, or ``default`` if it is absent or 0."""
        return self.count(*keys) if self.first(*keys) else default

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false, or ``default`` if the field is absent."""
        value = self.read(FLAG, key)
        return default if value is None else value

    def items(self, *keys: str) -> list[Any]:
        """Return a list under any of ``keys``; empty if absent."""
        return self.read(LIST, *keys) or []

    def child(self, key: str) -> Fields:
        """Return the object under ``key``, for reading its fields; an empty one if absent."""
        return self._inner(self.read(OBJECT, key) or {}, key)

    def part(self, key: str) -> Fields:
        """Return the object under ``key``, which is required."""
        values = self.need(OBJECT, key, what="an object")
        return self._inner(values, key)

    def children(self, key: str) -> list[Fields]:
        """Return the objects of a list; none if it is absent."""
        found = self.read(_OBJECTS, key) or []
        return [self._inner(values, f"{key}[{at}]") for at, values in enumerate(found)]

    def _inner(self, values: Mapping[str, Any], path: str) -> Fields:
        return replace(self, values=values, prefix=f"{self.prefix}{path}.")
