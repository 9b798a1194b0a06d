"""Options of a policy: what a scenario gives beside its name, as keyword arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from scenarios.explain import nearest
from scenarios.schema.fields import Policy
from sim.errors import ScenarioError


class MakeOne(partial):  # type: ignore[type-arg]
    """A class with its options: call it for an instance."""


def name_and_options(policy: Policy) -> tuple[str, dict[str, Any]]:
    """A policy as a scenario has it: a name, or a section of a name and options."""
    if isinstance(policy, str):
        return policy, {}
    options = dict(policy)
    return str(options.pop("name")), options


def with_options(
    target: Any, options: Mapping[str, Any], what: str, *, takes_context: bool = False
) -> Any:
    """The class or function with these keyword arguments, their types checked.

    ``takes_context``: the first argument of a class is not an option, as it is of a function.
    Raises ScenarioError for an option that it does not have or that is of another type.
    """
    if not options:
        return target
    parameters = dict(inspect.signature(target).parameters)
    if takes_context or not isinstance(target, type):
        parameters.pop(next(iter(parameters), ""), None)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    hints = _hints(target)
    checked = {}
    for name, value in options.items():
        if name not in parameters and not takes_any:
            known = nearest(name, parameters) if parameters else "it has none"
            raise ScenarioError(f"{what} has no option {name!r}; {known}")
        checked[name] = _checked(value, hints.get(name, Any), f"{what}: {name}")
    return MakeOne(target, **checked) if isinstance(target, type) else partial(target, **checked)


def option_text(target: Any) -> str:
    """The options of a policy with their defaults, for people."""
    parameters = inspect.signature(target).parameters.values()
    own = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    told = (p.name if p.default is p.empty else f"{p.name}: {json.dumps(p.default)}" for p in own)
    return ", ".join(told).replace('"', "")


def _hints(target: Any) -> dict[str, Any]:
    is_class = isinstance(target, type)
    try:
        return get_type_hints(getattr(target, "__init__", target) if is_class else target)
    except (NameError, TypeError):  # a user's own may name types that are not there
        return {}


def _checked(value: Any, hint: Any, where: str) -> Any:
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        problem = problem.replace("Input should be", "must be")
        raise ScenarioError(f"{where}: {problem}, not {value!r}") from None
    except PydanticUserError:
        return value
