"""Write the command line of a server for a scenario: the flag tables read in reverse.

The reader of commands itself decides what a flag's text would set, so that a command read back
gives the scenario it was written for. Fields that no flag sets are listed.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from costmodels.models.catalog import load_model
from scenarios.build.pools import pool_scenarios
from scenarios.schema import Scenario
from scenarios.server_flags.outcome import read_value
from scenarios.server_flags.table import TABLES, Flag, Table, load_table
from scenarios.server_flags.values import NotPriced

_SECTIONS = ("engine", "kv", "offload", "lora")
_SIZES = ("tensor", "pipeline", "data", "prefill_context")
Fields = Mapping[str, Any]
"""Values by dotted scenario field."""


class ServerCommand(NamedTuple):
    """The command that starts one engine."""

    engine: str
    """Name of the engine: ``vllm`` or ``sglang``."""
    version: str
    command: str
    unsaid: dict[str, Any]
    """Scenario fields that the command cannot set; reading it back needs them in addition."""


def commands_of(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the command of each engine for each pool, as JSON values."""
    return [
        {"pool": name, "role": role, "replicas": of.pool.replicas, "gpu": of.hardware.gpu}
        | command_of(of, engine)._asdict()
        for name, role, of in pool_scenarios(scenario)
        for engine in TABLES
    ]


def command_of(scenario: Scenario, engine: str) -> ServerCommand:
    """Return the command for a scenario with one pool; ``engine`` is ``vllm`` or ``sglang``."""
    table = load_table(engine)
    wanted = _fields(scenario)
    assumed = _fields(_bare(scenario, table))
    told: dict[str, Any] = {"model": scenario.model}
    words, unsaid = [*_model_words(scenario.model, table)], {}
    has_experts = load_model(scenario.model).num_experts > 0
    for field, value in wanted.items():
        if value == assumed[field]:
            continue
        said = _say(field, value, wanted, table, has_experts)
        if said is None:
            unsaid[field] = value
        else:
            words += said
            told[field] = value
    for field, value in _beside(scenario).items():
        unsaid[field] = value
    start = ["python", *table.launchers[0]] if table.launchers[0][0] == "-m" else table.launchers[0]
    return ServerCommand(engine, table.version, shlex.join([*start, *words]), unsaid)


def _fields(scenario: Scenario) -> dict[str, Any]:
    values = scenario.model_dump(mode="json", include=set(_SECTIONS))
    return {f"{section}.{k}": v for section in _SECTIONS for k, v in values[section].items()}


def _bare(scenario: Scenario, table: Table) -> Scenario:
    """Return the scenario that a command with only the model is read as."""
    values: dict[str, Any] = {"engine": {"profile": table.profile}}
    for field, value in table.defaults.items():
        section, _, name = field.partition(".")
        values.setdefault(section, {})[name] = value
    shared = {"model": scenario.model, "workload": scenario.workload.model_dump(exclude_unset=True)}
    return Scenario.model_validate(shared | values)


def _beside(scenario: Scenario) -> dict[str, Any]:
    """Return what surrounds the engine: its GPU, the number of engines and their router."""
    hardware = scenario.hardware.model_dump(mode="json", exclude_unset=True)
    pool = scenario.pool.model_dump(mode="json", exclude_unset=True)
    found = {f"hardware.{name}": value for name, value in hardware.items()}
    return found | {f"pool.{name}": value for name, value in pool.items()}


def _model_words(model: str, table: Table) -> list[str]:
    flag = next(flag for flag in table.flags.values() if flag.field == "model")
    return [model] if table.model_by_position else [flag.name, model]


def _say(
    field: str, value: Any, wanted: Fields, table: Table, has_experts: bool
) -> list[str] | None:
    """Return the words that set a field to a value; None if no flag does."""
    for flag in {flag.name: flag for flag in table.flags.values()}.values():
        if flag.fate != "mapped" or flag.older:
            continue
        with_experts = has_experts and bool(flag.with_experts)
        if (flag.with_experts if with_experts else flag.field) != field:
            continue
        for text in _texts(flag, value, wanted):
            try:
                read = read_value(flag, text, wanted)
            except (NotPriced, ValueError):
                continue
            if read == value and text not in flag.harmless:
                return _words(flag, text)
    return None


def _texts(flag: Flag, value: Any, wanted: Fields) -> Iterator[str]:
    """Yield texts that may stand for a value."""
    if not flag.reads:
        yield from (text for text, choice in flag.choices.items() if choice == value)
    elif flag.reads in _WRITERS:
        yield _WRITERS[flag.reads](value, wanted)


def _words(flag: Flag, text: str) -> list[str]:
    if flag.takes == "toggle":
        return [flag.name if text == "on" else f"--no-{flag.name.removeprefix('--')}"]
    return [flag.name] if flag.takes == "switch" else [flag.name, text]


def _plain(value: Any, _: Fields) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _on(value: Any, _: Fields) -> str:
    return "on" if value else "off"


def _redundant(value: Any, _: Fields) -> str:
    return json.dumps({"num_redundant_experts": value})


def _positions(value: Any, _: Fields) -> str:
    return json.dumps({"max_position_embeddings": value})


def _tokens(value: Any, wanted: Fields) -> str:
    return str((value - 1) * wanted["kv.block_size"])


def _nodes(value: Any, wanted: Fields) -> str:
    ranks = math.prod(int(wanted[f"engine.{name}_parallel_size"]) for name in _SIZES)
    return str(-(-ranks // value))


_WRITERS: dict[str, Callable[[Any, Fields], str]] = {
    **dict.fromkeys(("whole", "number", "size", "size_or_auto", "chunk", "graph_size"), _plain),
    "on": _on,
    "redundant_experts": _redundant,
    "overridden_positions": _positions,
    "tokens_of_blocks": _tokens,
    "gpus_of_node": _nodes,
}
"""Functions that turn a value into a text from which a reader of `values` restores it."""
