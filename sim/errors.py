"""The few exceptions a user can meet. Messages say what is wrong, where, and what would be
right."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxstring = 80

_WHOLE_NUMBER = "must be a whole number"
_NUMBER = "must be a number"
_FLAG = "must be true or false"
_LIST = "must be a list"
_OBJECT = "must be an object"
# What a value must be, by the type of the validation error; otherwise the error's own words.
_PLAIN_WORDS = {
    "int_parsing": _WHOLE_NUMBER,
    "int_type": _WHOLE_NUMBER,
    "int_from_float": _WHOLE_NUMBER,
    "int_parsing_size": "is too large a number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "bool_parsing": _FLAG,
    "bool_type": _FLAG,
    "string_type": "must be text",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "dataclass_type": _OBJECT,
}


class FleetcastError(Exception):
    """Base of all errors with a message for the user; the command line prints it without a
    traceback."""


class ScenarioError(FleetcastError):
    """A scenario, flag or specification that cannot be run as written."""


class TraceError(FleetcastError):
    """A workload file that cannot be read in the format it is declared to have."""


class PolicyError(FleetcastError):
    """A policy broke its contract: an illegal batch, no progress, an unknown replica."""


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


def printable(text: str) -> str:
    """Return a text with control characters, which could command a terminal, as ``\\xNN``."""
    return text.translate(_CONTROLS)


def shown(value: object) -> str:
    """Return a short repr for messages, safe for values of any size or depth."""
    return _REPR.repr(value)


def dotted(path: Iterable[str | int]) -> str:
    """Return a path as users write it: ``generator.input_tokens.lognormal[0].mu``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def wrong_value(item: Mapping[str, Any]) -> str:
    """Say what is wrong with a value and what would be right: ``must be a number, not 'x'``.

    ``item`` is one of the ``errors()`` of a pydantic ``ValidationError``.
    """
    kind, message, value = item["type"], item["msg"], item.get("input")
    if kind == "missing":
        return "is missing"
    if kind == "json_invalid":
        return f"not JSON ({item['ctx']['error']})"
    if kind in ("value_error", "assertion_error"):
        return str(message.removeprefix("Value error, "))
    words = _PLAIN_WORDS.get(kind) or message.replace("Input should be", "must be")
    return f"{words}, but is empty" if value is None else f"{words}, not {shown(value)}"


def first_fault(error: Any) -> str:
    """Return what is wrong with the first bad field of a pydantic ``ValidationError``."""
    item = error.errors(include_url=False)[0]
    return f"field {dotted(item['loc'])} {wrong_value(item)}" if item["loc"] else wrong_value(item)
