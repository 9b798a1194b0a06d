"""`fleetcast scenario from-log`: read a server's start-up log into a scenario."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from calibrate.servers.startup_log import StartupFacts, read_startup_log
from costmodels.engines.profile import load_profile, nearest_profile
from costmodels.hardware.gpus import GIB, load_gpu
from costmodels.models.catalog import load_model
from scenarios.build.resolve import resolve
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import parse_scenario
from scenarios.server_flags.reading import Reading, read_command
from scenarios.server_flags.table import Flag, Table, load_table
from sim.errors import ScenarioError
from sim.kv.layout import PLAIN

_PROFILES = {"vllm": "vllm-0.25", "sglang": "sglang-0.5"}
_SAID = (
    *("weights_gib", "activation_gib", "other_gib", "graphs_gib"),
    *("kv_cache_gib", "kv_cache_tokens", "max_concurrency"),
)


def read_log(
    path: Path,
    *,
    flags: Mapping[str, Any],
    overrides: Sequence[str] = (),
    ignored: Sequence[str] = (),
    verbose: bool = False,
    out: Path | None = None,
) -> Reading:
    """Read a start-up log as `scenarios.server_flags.reading.read_command` reads a command line.

    The log's KV cache becomes ``kv.num_gpu_blocks``, and what it said of memory
    ``kv.startup_log``. Raises `ScenarioError` for a log that names no GPU that is known, unless
    ``flags`` name one, and for what `read_command` refuses.
    """
    log = read_startup_log(path)
    table = load_table(log.engine)
    words, left_out = _words(log, table, flags)
    settings = _settings(log, overrides, flags)
    notes = [f"left out, no flag that is known: {', '.join(left_out)}"] if left_out else []

    def reading(more: Mapping[str, Any]) -> Reading:
        return read_command(
            log.engine,
            [*table.launchers[0], *words],
            flags=flags,
            overrides=[*_texts({**settings, **more}), *overrides],
            ignored=ignored,
            verbose=verbose,
            out=out,
        )

    first = reading({})
    values = yaml.safe_load(first.text)
    blocks = _num_gpu_blocks(log, values)
    if blocks is not None:
        settings["kv.num_gpu_blocks"] = blocks
    final = reading({}) if blocks is not None else first
    said = _report(log, path, blocks, notes)
    return Reading(final.text, f"{said}\n{final.report}")


def _words(
    log: StartupFacts, table: Table, flags: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the log's flags as words of a command line, and those that no table knows."""
    words: list[str] = []
    unknown: list[str] = []
    for name, value in log.arguments.items():
        spelled = f"--{name.replace('_', '-')}"
        flag = table.find(spelled)
        if flag is None:
            unknown += [spelled]
            continue
        if log.engine == "sglang" and flag.fate != "mapped":
            continue  # the log prints the defaults of all flags
        if flag.field == "model":
            value = value if flags.get("--model") else _model_name(str(value))
        words += _flag_words(spelled, flag, value)
    return words, unknown if log.engine == "vllm" else []


def _flag_words(spelled: str, flag: Flag, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        if value:
            return [spelled]
        return [f"--no-{spelled[2:]}"] if flag.takes == "toggle" else []
    if isinstance(value, dict):
        return [spelled, json.dumps(value)]
    if isinstance(value, list | tuple):
        return [spelled, *map(str, value)] if value else []
    return [spelled, str(value)]


def _model_name(name: str) -> str:
    """Return the model's name where the log has a folder of the server's machine."""
    if Path(name).exists() or not name.startswith(("/", "~", ".")):
        return name
    parts = [part for part in Path(name).parts if part not in ("/", "snapshots")]
    guesses = [part.removeprefix("models--").replace("--", "/") for part in reversed(parts)]
    guesses += ["/".join(parts[-2:])]
    for guess in guesses:
        try:
            load_model(guess)
        except ScenarioError:
            continue
        return guess
    return guesses[0]


def _settings(
    log: StartupFacts, overrides: Sequence[str], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the dotted fields that the log sets beside its flags."""
    profile = _PROFILES[log.engine]
    found: dict[str, Any] = {"engine.profile": profile}
    if log.version is not None:
        found["engine.version"] = log.version
        profile, _ = nearest_profile(profile, log.version)
    is_given = any(one.startswith("hardware.gpu=") for one in overrides)
    if not flags.get("--gpu") and not is_given:
        found["hardware.gpu"] = _gpu(log)
    if log.engine == "vllm" and "gpu_memory_utilization" not in log.arguments:
        found["kv.gpu_memory_utilization"] = load_profile(profile).gpu_memory_utilization
    for figure, field in (
        ("max_model_len", "engine.max_model_len"),
        ("max_num_batched_tokens", "engine.max_num_batched_tokens"),
    ):
        if figure in log.figures:
            found[field] = int(log.figures[figure])
    said = {
        name: int(value) if name.endswith("tokens") else value
        for name in _SAID
        if (value := log.figures.get(name)) is not None and value >= 0
    }
    if said:
        found["kv.startup_log"] = said
    return found


def _gpu(log: StartupFacts) -> str:
    size = log.figures.get("device_gib")
    about = "" if size is None else f" (it has {size:g} GiB)"
    if log.device is None:
        raise ScenarioError(f"the log does not name its GPU{about}: give it with --gpu")
    try:
        return load_gpu(log.device).name
    except ScenarioError as error:
        raise ScenarioError(f"the log's GPU: {error}; give one with --gpu") from None


def _texts(settings: Mapping[str, Any]) -> list[str]:
    return [f"{field}={json.dumps(value)}" for field, value in settings.items()]


def _num_gpu_blocks(log: StartupFacts, values: Mapping[str, Any]) -> int | None:
    """Return the blocks of the log's KV cache, in those of the scenario; None: the log does not
    say, or the scenario cannot hold it."""
    complete = {"workload": ANY_WORKLOAD, **values}
    plan = resolve(parse_scenario(complete, where="log")).memory
    tokens, block_bytes = plan.block
    pool_gib, kv_tokens = log.figures.get("kv_cache_gib"), log.figures.get("kv_cache_tokens")
    try:
        is_plain = plan.blocks.layout == PLAIN
    except ScenarioError:
        is_plain = False
    if kv_tokens is not None and is_plain:
        number = int(kv_tokens) // (tokens * plan.layout.decode_context_parallel_size)
    elif "num_gpu_blocks" in log.figures and is_plain:
        number = int(log.figures["num_gpu_blocks"])
    elif pool_gib is not None:
        number = int(pool_gib * GIB // (block_bytes * plan.state_share))
    else:
        return None
    room = plan.gpu.hbm_bytes - plan.weight_bytes - plan.workspace_bytes
    return number if 1 < number <= room // (block_bytes * plan.state_share) else None


def _report(log: StartupFacts, path: Path, blocks: int | None, notes: Sequence[str]) -> str:
    engine = {"vllm": "vLLM", "sglang": "SGLang"}[log.engine]
    lines = [f"{path.name} is a start-up log of {engine} {log.version or 'of an unknown version'}."]
    tokens, pool_gib = log.figures.get("kv_cache_tokens"), log.figures.get("kv_cache_gib")
    if pool_gib is not None and pool_gib < 0:
        lines.append(f"That server did not start: {pool_gib:g} GiB were left for its KV cache.")
    elif blocks is not None:
        size = f"{tokens:,.0f} tokens" if tokens is not None else f"{pool_gib:g} GiB"
        lines.append(f"Its KV cache of {size} is taken as it is: {blocks:,} blocks.")
    elif tokens is not None or pool_gib is not None:
        lines.append(
            "Its KV cache does not fit beside the weights and workspace that are predicted, which "
            "are not those of the log: the predicted cache is taken."
        )
    return "\n".join([*lines, *notes, ""])
