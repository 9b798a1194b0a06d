"""Turn axes into the settings of points: every combination of lists, blocks and draws."""

from __future__ import annotations

import ast
import hashlib
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np

from scenarios.files.messages import nearest
from scenarios.schema.sweep import Span, SweepFile
from sim.errors import ScenarioError

Settings = dict[str, Any]
"""Dotted field -> value of one point."""


class Axis(NamedTuple):
    """One field that differs between points."""

    key: str
    kind: Literal["grid", "zipped", "random"]
    values: list[Any]
    """Values in the order given; for a random axis all draws, in order."""
    leads: bool = True
    """Whether it names its points; only the first list of a zipped block does."""


def axes_of(sweep: SweepFile) -> list[Axis]:
    """Return every axis, in the order of the columns."""
    found = [Axis(key, "grid", values_of(axis)) for key, axis in sweep.axes.items()]
    for block in sweep.zipped:
        first = next(iter(block))
        found += [Axis(k, "zipped", list(values), k == first) for k, values in block.items()]
    if sweep.random is not None:
        drawn = (
            Axis(key, "random", draw(axis, key, sweep.random.draws, sweep.random.seed))
            for key, axis in sweep.random.axes.items()
        )
        found += drawn
    return found


def num_combinations(sweep: SweepFile) -> int:
    """Return the number of points before constraints."""
    lengths = [_length(axis) for axis in sweep.axes.values()]
    lengths += [len(next(iter(block.values()))) for block in sweep.zipped]
    lengths.append(1 if sweep.random is None else sweep.random.draws)
    return math.prod(lengths)


def combinations(sweep: SweepFile, axes: Sequence[Axis]) -> Iterator[Settings]:
    """Yield the settings of each point: the first axis changes slowest, draws change fastest."""
    by_key = {axis.key: axis.values for axis in axes}
    groups = [[key] for key in sweep.axes] + [list(block) for block in sweep.zipped]
    if sweep.random is not None:
        groups.append(list(sweep.random.axes))
    choices = [list(zip(*(by_key[key] for key in group), strict=True)) for group in groups]
    for chosen in product(*choices):
        pairs = zip(groups, chosen, strict=True)
        yield {
            key: value for group, values in pairs for key, value in zip(group, values, strict=True)
        }


def values_of(axis: list[Any] | Span) -> list[Any]:
    """Return the values of a list, or of a span of equal steps."""
    if isinstance(axis, list):
        return list(axis)
    shares = np.linspace(0, 1, axis.steps or 2)
    return list(dict.fromkeys(_at(axis, float(share)) for share in shares))


def draw(axis: list[Any] | Span, key: str, draws: int, seed: int) -> list[Any]:
    """Draw independent values of one axis.

    Each axis has its own random stream, so that other axes or more draws change none of its values.
    """
    digest = hashlib.sha256(key.encode()).digest()
    shares = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")]).random(draws)
    if isinstance(axis, list):
        return [axis[int(share * len(axis))] for share in shares]
    return [_at(axis, float(share)) for share in shares]


def _at(span: Span, share: float) -> int | float:
    if span.scale == "log":
        value = span.start * (span.to / span.start) ** share
    else:
        value = span.start + (span.to - span.start) * share
    value = float(f"{value:.9g}")  # keep 0.30000000000000004 out of files and tables
    are_whole = float(span.start).is_integer() and float(span.to).is_integer()
    if span.whole:
        return round(value)
    return int(value) if are_whole and span.steps and value.is_integer() else value


def _length(axis: list[Any] | Span) -> int:
    return len(axis) if isinstance(axis, list) else len(values_of(axis))


def as_cell(value: Any) -> Any:
    """Return an axis's value as a table cell: a number, text or truth value, else compact text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {as_cell(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(str(as_cell(item)) for item in value) + "]"


_WORDS = {"true": True, "false": False, "null": None, "none": None}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "round": round}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_POSITION = re.compile(r"(?<=[A-Za-z_\]])((?:\.\d+)+)(?=[.\s)\]]|$)")


class Expression:
    """One expression over named values.

    It may contain dotted names, numbers, 'text', + - * / // %, comparisons, and, or, not, in, min,
    max, abs and round. The last part of a name is enough if it is unambiguous.
    """

    def __init__(self, text: str, where: str) -> None:
        """Parse the text. Raises `ScenarioError` if it is not an expression."""
        self.text, self.where = text, where
        plain = _POSITION.sub(lambda found: found[1].replace(".", "[", 1) + "]", text.strip())
        try:
            self._tree = ast.parse(plain, mode="eval").body
        except (SyntaxError, ValueError):
            raise ScenarioError(
                f"{where}: cannot be read; write a comparison, e.g. "
                "engine.tensor_parallel_size * pool.replicas <= 8"
            ) from None
        self.names = frozenset(self._names(self._tree))

    def check(self, known: Mapping[str, Any] | list[str]) -> None:
        """Raise `ScenarioError` for a name that is not known, or is ambiguous."""
        for name in sorted(self.names):
            _full_name(name, known, self.where)

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the value for these named values. Raises `ScenarioError` if it has none."""
        try:
            return self._value(self._tree, values)
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            given = ", ".join(
                f"{name} {values[_full_name(name, values, self.where)]!r}"
                for name in sorted(self.names)
            )
            raise ScenarioError(f"{self.where}: has no value for {given}: {error}") from None

    def _names(self, node: ast.expr) -> list[str]:
        name = _dotted(node)
        if name is not None:
            return [] if name.lower() in _WORDS else [name]
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            children = list(node.args)
        return [n for child in children if isinstance(child, ast.expr) for n in self._names(child)]

    def _value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self._value(item, values) for item in items]
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self._value(part, values) for part in parts)
            case ast.BoolOp(values=parts):
                return any(self._value(part, values) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand, values)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, values)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self._value(left, values), self._value(right, values))
            case ast.Compare(left=left, ops=ops, comparators=others):
                terms = [self._value(term, values) for term in (left, *others)]
                pairs = zip(ops, terms, terms[1:], strict=False)
                return all(_COMPARED[type(op)](one, two) for op, one, two in pairs)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CALLS:
                return _CALLS[name](*(self._value(argument, values) for argument in arguments))
        named = _dotted(node)
        if named is None:
            raise ScenarioError(f"{self.where}: {ast.unparse(node)} cannot stand in a comparison")
        if named.lower() in _WORDS:
            return _WORDS[named.lower()]
        return values[_full_name(named, values, self.where)]


def _dotted(node: ast.AST) -> str | None:
    """Return ``pools[0].replicas`` as the key ``pools.0.replicas``; None if it is not a name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=last):
            before = _dotted(inner)
            return None if before is None else f"{before}.{last}"
        case ast.Subscript(value=inner, slice=ast.Constant(value=int() as position)):
            before = _dotted(inner)
            return None if before is None else f"{before}.{position}"
    return None


def _full_name(name: str, known: Mapping[str, Any] | list[str], where: str) -> str:
    if name in known:
        return name
    ending = [one for one in known if one.endswith(f".{name}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise ScenarioError(f"{where}: {name} may be {' or '.join(ending)}; write it in full")
    near = nearest(name, [*known, *(one.rpartition(".")[2] for one in known)], list_all=False)
    raise ScenarioError(f"{where}: no {name} here; {near or nearest(name, known)}")
