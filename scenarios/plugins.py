"""Policies by name: one of ours, or ``module:attribute`` of any importable module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sim.errors import ScenarioError
from sim.protocols import Scheduler


def load_attribute(target: str) -> Any:
    """Import ``module:attribute``; modules in the working directory are found too.

    Raises ScenarioError saying what could not be imported and why.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ScenarioError(f"{target!r} does not name a policy; write it as module:attribute")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way of its own
        raise ScenarioError(
            f"cannot import {module_name!r} (of {target!r}): {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, attribute):
        near = get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"module {module_name!r} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def resolve(name: str, known: Mapping[str, str], kind: str) -> Any:
    """The policy of that name: a known one, or a user's ``module:attribute``."""
    if name in known:
        return load_attribute(known[name])
    if ":" in name:
        return load_attribute(name)
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ScenarioError(
        f"unknown {kind} {name!r}.{hint} Known: {', '.join(known)}; "
        "or name your own as module:attribute"
    )


def scheduler_factory(name: str, known: Mapping[str, str]) -> Callable[[], Scheduler]:
    """Makes a fresh scheduler for each engine: a class is instantiated, a function shared."""
    target = resolve(name, known, "scheduler")
    if isinstance(target, type):
        return target
    if not callable(target):
        raise ScenarioError(f"scheduler {name!r} is a {type(target).__name__}, not callable")
    return lambda: target
