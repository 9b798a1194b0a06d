"""Options of a policy, which a scenario gives beside its name, and checks of users' policies."""

from __future__ import annotations

import inspect
import json
import operator
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from scenarios.files.identity import CHECKOUT
from scenarios.files.messages import nearest
from scenarios.schema.fields import Policy
from sim.engine.step import Plan
from sim.engine.view import EngineView, Scheduler
from sim.errors import FleetcastError, PolicyError, ScenarioError
from sim.protocols import CachedContent, Eviction, Router, RoutingContext, ServiceView
from sim.request import Request


class MakeOne(partial):  # type: ignore[type-arg]
    """A class bound to its options: call it to make an instance."""


def name_and_options(policy: Policy) -> tuple[str, dict[str, Any]]:
    """Split a scenario's policy, which is a name or a section of a name and options."""
    if isinstance(policy, str):
        return policy, {}
    options = dict(policy)
    return str(options.pop("name")), options


def with_options(
    target: Any, options: Mapping[str, Any], what: str, *, takes_context: bool = False
) -> Any:
    """Bind these keyword arguments to a class or function, after checking their types.

    The first argument of a function is never an option; with ``takes_context`` that of a class is
    not either. Raises `ScenarioError` for an unknown option or one of the wrong type.
    """
    lacking = sorted(_required(target) - set(options))
    if not options and not lacking:
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
    if lacking:
        needs = " and ".join(lacking)
        raise ScenarioError(f"{what} needs {needs}: give {{name: ..., {lacking[0]}: ...}}")
    return MakeOne(target, **checked) if isinstance(target, type) else partial(target, **checked)


def option_text(target: Any) -> str:
    """Return the options of a policy with their defaults, for display."""
    parameters = inspect.signature(target).parameters.values()
    own = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    lacking = _required(target)
    return ", ".join(
        f"{p.name} (required)" if p.name in lacking else f"{p.name}: {json.dumps(p.default)}"
        for p in own
    ).replace('"', "")


def _required(target: Any) -> set[str]:
    """Return the names of options without a default."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}


def _hints(target: Any) -> dict[str, Any]:
    is_class = isinstance(target, type)
    try:
        return get_type_hints(getattr(target, "__init__", target) if is_class else target)
    except (NameError, TypeError):  # a user's policy may name types that cannot be resolved
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


_P = ParamSpec("_P")
_T = TypeVar("_T")
_NOT_THE_USERS = (
    *(CHECKOUT / package for package in ("scenarios", "sim", "policies", "costmodels")),
    *(Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)),
)


def checked_scheduler(target: Any, name: str) -> Scheduler:
    """Make a user's scheduler from a class or function; it raises `PolicyError` where it goes
    wrong."""
    scheduler = (
        _guarded(target, f"making scheduler {name}")()
        if isinstance(target, type | MakeOne)
        else target
    )
    if not callable(scheduler):
        raise PolicyError(
            f"scheduler {name} is of type {type(scheduler).__name__}; it must be a function of an "
            "EngineView, or a class with __call__"
        )
    call = _guarded(scheduler, f"scheduler {name}")

    def checked(view: EngineView) -> Plan:
        plan = call(view)
        if not isinstance(plan, Plan):
            raise PolicyError(
                f"scheduler {name} returned {_shown(plan)} at {view.now_s:.6f} s; it must return "
                "the plan of its batch: batch = view.new_batch(); ...; return batch.plan()"
            )
        return plan

    order = getattr(scheduler, "waiting_order", None)
    if order is not None:
        checked.waiting_order = _guarded(order, f"waiting_order of {name}")  # type: ignore[attr-defined]
    attach = getattr(scheduler, "attach", None)
    if attach is not None:
        checked.attach = _guarded(attach, f"attach of {name}")  # type: ignore[attr-defined]
    return checked


def checked_router(target: Any, name: str, context: RoutingContext) -> Router:
    """Make a user's router from a class; it raises `PolicyError` where it goes wrong."""
    if not callable(target):
        raise PolicyError(
            f"router {name} is of type {type(target).__name__}; it must be a class that takes a "
            "routing context (sim.protocols.RoutingContext)"
        )
    num_replicas = context.num_replicas
    router = _guarded(target, f"making router {name} for {num_replicas} replicas")(context)
    missing = [m for m in ("choose", "publish") if not callable(getattr(router, m, None))]
    if missing:
        raise PolicyError(
            f"router {name} has no method {' and no '.join(missing)}; it must have "
            "choose(request) -> replica and publish(replica, load)"
        )
    return _CheckedRouter(router, name, num_replicas)


def checked_eviction(target: Any, name: str) -> Eviction:
    """Make a user's eviction policy from a class or function; raises `PolicyError` where it goes
    wrong."""
    label = f"eviction {name}"
    if not isinstance(target, type | MakeOne):
        if not callable(target):
            raise PolicyError(
                f"{label} is of type {type(target).__name__}; it must be a function of cached "
                "content, or a class with priority(content) or lifetime_ns"
            )
        return _CheckedEviction(_guarded(target, label), label)
    policy = _guarded(target, f"making {label}")()
    priority = getattr(policy, "priority", None)
    if priority is not None:
        return _CheckedEviction(_guarded(priority, f"priority of {label}"), label)
    lifetime_ns = getattr(policy, "lifetime_ns", None)
    if lifetime_ns is not None and (not isinstance(lifetime_ns, int) or lifetime_ns < 1):
        raise PolicyError(
            f"lifetime_ns of {label} is {_shown(lifetime_ns)}; it must be a whole number of "
            "nanoseconds from 1 on, or None"
        )
    return policy  # type: ignore[no-any-return]


class _CheckedEviction:
    def __init__(self, priority: Callable[[CachedContent], Any], label: str) -> None:
        self._call = priority
        self._label = label

    def priority(self, content: CachedContent) -> float:
        found = self._call(content)
        if isinstance(found, bool) or not isinstance(found, int | float) or found != found:
            raise PolicyError(
                f"{self._label} gave {_shown(found)} as a priority; it must be a number"
            )
        return found


def checked_service_policy(
    target: Any, name: str, view: ServiceView, methods: tuple[str, ...]
) -> Any:
    """Make a user's admission policy or autoscaler; it raises `PolicyError` where it goes wrong."""
    if not callable(target):
        raise PolicyError(
            f"{name} is of type {type(target).__name__}; it must be a class that takes a service "
            "view (sim.protocols.ServiceView)"
        )
    policy = _guarded(target, f"making {name}")(view)
    missing = [method for method in methods if not callable(getattr(policy, method, None))]
    if missing:
        raise PolicyError(f"{name} has no method {' and no '.join(missing)}")
    calls = {method: _guarded(getattr(policy, method), f"{method} of {name}") for method in methods}
    return _CheckedServicePolicy(calls, name)


class _CheckedServicePolicy:
    def __init__(self, calls: dict[str, Callable[..., Any]], name: str) -> None:
        self._calls = calls
        self._name = name

    def admit(self, request: Request) -> str | None:
        reason = self._calls["admit"](request)
        if reason is None or isinstance(reason, str):
            return reason
        raise PolicyError(
            f"admit of {self._name} returned {_shown(reason)}; it must return None to let a "
            "request in, or why it is turned away"
        )

    def left(self, request: Request) -> None:
        self._calls["left"](request)

    def wanted(self) -> int:
        wanted = self._calls["wanted"]()
        try:
            return operator.index(wanted)
        except TypeError:
            raise PolicyError(
                f"wanted of {self._name} returned {_shown(wanted)}; it must return a whole number "
                "of replicas"
            ) from None


class _CheckedRouter:
    def __init__(self, router: Any, name: str, num_replicas: int) -> None:
        self._choose = _guarded(router.choose, f"choose of router {name}")
        self.publish = _guarded(router.publish, f"publish of router {name}")
        for optional in ("down", "up", "source"):
            if callable(getattr(router, optional, None)):
                call = _guarded(getattr(router, optional), f"{optional} of router {name}")
                setattr(self, optional, call)
        self._name = name
        self._num_replicas = num_replicas

    def choose(self, request: Request) -> int:
        replica = self._choose(request)
        try:
            index = operator.index(replica)
        except TypeError:
            index = -1
        if 0 <= index < self._num_replicas:
            return index
        raise PolicyError(
            f"router {self._name} chose {_shown(replica)} for request {request.index}; it must "
            f"return a replica from 0 to {self._num_replicas - 1}"
        )


def describe(error: BaseException) -> str:
    """Describe an exception in one line, with the innermost line of the user's code that raised
    it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if file.is_file() and not any(file.is_relative_to(folder) for folder in _NOT_THE_USERS):
            return f"{text} ({file.name}, line {frame.lineno})"
    return text


def _guarded(function: Callable[_P, _T], what: str) -> Callable[_P, _T]:
    """Wrap a function so that what it raises becomes a `PolicyError` that names it."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except FleetcastError:
            raise
        except Exception as error:
            raise PolicyError(f"{what} raised {describe(error)}") from error

    return call


def _shown(value: object) -> str:
    return "nothing (None)" if value is None else f"a {type(value).__name__} ({value!r:.60})"
