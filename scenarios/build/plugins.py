"""Look up policies by name: a built-in one, or a user's ``module:attribute`` or
``file.py:attribute`` in a folder that the command line trusts."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from scenarios.build.policy_checks import (
    MakeOne,
    checked_eviction,
    checked_router,
    checked_scheduler,
    checked_service_policy,
    describe,
    name_and_options,
    with_options,
)
from scenarios.files.messages import nearest
from scenarios.files.trusted import is_trusted, trusted_file, trusted_folders
from scenarios.schema.fields import Policy
from sim.engine.view import Scheduler
from sim.errors import ScenarioError
from sim.paths import is_file
from sim.protocols import Eviction, Router, RoutingContext, ServiceView

_ENTRY_POINTS = "fleetcast.policies"


def resolve(name: str, known: Mapping[str, str], kind: str) -> Any:
    """Return the policy of that name: a built-in one, one that an installed distribution declares
    as an entry point of ``fleetcast.policies``, or ``module:attribute`` in a trusted folder.

    Raises `ScenarioError` if there is none, or if it would run code that nobody trusted.
    """
    target = known.get(name, name)
    if target in known.values():
        return load_attribute(target)
    for declared in entry_points(group=_ENTRY_POINTS):
        if name in (declared.name, declared.value):
            return _loaded(declared.load, name)
    if ":" in name:
        return _policy_of_user(name, kind)
    near = nearest(name, known, list_all=False)
    raise ScenarioError(
        f"unknown {kind} {name!r}; {near + ' ' if near else ''}known: {', '.join(known)}; "
        "or name your own as module:attribute"
    )


def load_attribute(target: str) -> Any:
    """Return a built-in policy by the ``module:attribute`` of its table; a scenario's own text
    never comes here."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _policy_of_user(target: str, kind: str) -> Any:
    module_name, _, attribute = target.rpartition(":")
    if not module_name or not attribute.isidentifier():
        raise ScenarioError(f"{target!r} does not name a {kind}; write it as module:attribute")
    file = trusted_file(module_name)
    if file is None:
        raise ScenarioError(_untrusted(target, module_name, kind))
    module = _loaded(lambda: _module_of_file(file), module_name)
    if not hasattr(module, attribute):
        near = nearest(attribute, (n for n in dir(module) if n[0] != "_"), list_all=False)
        raise ScenarioError(
            f"module {module_name!r} ({file}) has no {attribute!r}" + (f"; {near}" if near else "")
        )
    found = getattr(module, attribute)
    origin = sys.modules.get(getattr(found, "__module__", None) or module.__name__)
    origin_file = getattr(origin, "__file__", None)  # none of what is built into Python
    if isinstance(found, ModuleType) or origin_file is None or not is_trusted(origin_file):
        raise ScenarioError(
            f"{target!r} is not defined in {module_name!r}, which only imports it: a {kind} must "
            "be written in a folder of --plugins"
        )
    return found


def _untrusted(target: str, module_name: str, kind: str) -> str:
    """Say why a policy is refused, and what makes it run."""
    file = Path(module_name if module_name.endswith(".py") else f"{module_name}.py")
    if is_file(file):
        return (
            f"{kind} {target!r} is code: a scenario runs none unless you say so; "
            f"add --plugins {file.parent} if you trust that folder"
        )
    named = trusted_folders()
    where = f" in {', '.join(map(str, named))}" if named else ""
    return (
        f"there is no {module_name!r}{where} for {kind} {target!r}: a scenario runs only policies "
        "of the folders that --plugins DIR names"
    )


def _loaded(load: Callable[[], Any], name: str) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ScenarioError(f"cannot import {name!r}: {describe(error)}") from error


def scheduler_factory(policy: Policy, known: Mapping[str, str]) -> Callable[[], Scheduler]:
    """Return a function that makes the scheduler of each engine.

    A class is instantiated for each engine; a function is shared. Options are keyword arguments of
    the class, or are passed to the function beside its view. A user's scheduler is checked on every
    call (see `scenarios.build.policy_checks`). Raises `ScenarioError` for unknown options.
    """
    name, options = name_and_options(policy)
    target = with_options(resolve(name, known, "scheduler"), options, f"scheduler {name}")
    if name in known:
        if not isinstance(target, type | MakeOne):
            return lambda: target
        target()  # refuse bad options here, not in the middle of a run
        return target
    return lambda: checked_scheduler(target, policy_label(policy))


def router_factory(policy: Policy, known: Mapping[str, str]) -> Callable[[RoutingContext], Router]:
    """Return a function that makes a router for the replicas of a context; a user's router is
    checked.

    Raises `ScenarioError` for unknown options.
    """
    name, options = name_and_options(policy)
    target = resolve(name, known, "router")
    target = with_options(target, options, f"router {name}", takes_context=True)
    if name in known:
        return target  # type: ignore[no-any-return]
    return lambda context: checked_router(target, policy_label(policy), context)


def eviction_factory(policy: Policy, known: Mapping[str, str]) -> Callable[[], Eviction]:
    """Return a function that makes the eviction policy of each engine's prefix cache.

    A user's policy is a class that follows `sim.protocols.Eviction`, or a function that gives the
    priority of cached content; it is checked. Raises `ScenarioError` for unknown options.
    """
    name, options = name_and_options(policy)
    target = with_options(resolve(name, known, "eviction policy"), options, f"eviction {name}")
    if name in known:
        target()  # refuse bad options here
        return target  # type: ignore[no-any-return]
    return lambda: checked_eviction(target, policy_label(policy))


def service_policy(
    policy: Policy, known: Mapping[str, str], kind: str, methods: tuple[str, ...]
) -> Callable[[ServiceView], Any]:
    """Return a function that makes an admission policy or an autoscaler.

    A user's policy is checked to have ``methods``. Raises `ScenarioError` for unknown options.
    """
    name, options = name_and_options(policy)
    target = resolve(name, known, kind)
    target = with_options(target, options, f"{kind} {name}", takes_context=True)
    if name in known:
        return target  # type: ignore[no-any-return]
    label = f"{kind} {policy_label(policy)}"
    return lambda view: checked_service_policy(target, label, view, methods)


def policy_label(policy: Policy) -> str:
    """Return a policy's name and options for display, without the folders of its file."""
    name, options = name_and_options(policy)
    if options:
        told = ", ".join(f"{option} {value}" for option, value in options.items())
        return f"{policy_label(name)} ({told})"
    module, colon, attribute = name.rpartition(":")
    return f"{Path(module).name}{colon}{attribute}" if module.endswith(".py") else name


def _module_of_file(file: Path) -> ModuleType:
    """Import a file under a unique module name, since two scenarios may each have a
    ``my_policy.py``."""
    file = file.resolve()
    name = f"{file.stem} ({file})"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _add_to_path(file.parent)  # lets it import modules beside it
    sys.modules[name] = module  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
