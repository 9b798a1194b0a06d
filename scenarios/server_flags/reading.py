"""`fleetcast scenario from-vllm` and `from-sglang`: read a server's command line into a
scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from costmodels.models.catalog import load_model
from costmodels.models.model_names import form_in_name
from costmodels.models.published import stored_form
from costmodels.models.spec import ModelSpec
from scenarios.build.builder import build
from scenarios.files.flags import ANY_WORKLOAD, apply_flags
from scenarios.files.load import apply_override, apply_setting, validate
from scenarios.files.paths import relocated
from scenarios.files.yaml_text import Places
from scenarios.schema import Scenario
from scenarios.server_flags.argv import Given, read_given
from scenarios.server_flags.outcome import Outcome, for_experts, settle
from scenarios.server_flags.table import Flag, Table, load_table
from scenarios.server_flags.words import read_words
from scenarios.server_flags.write import refusal, report, scenario_text
from sim.errors import ScenarioError, TraceError
from workloads.readers.detect import detect_format

_ASSUMED_GPU = "H200"


@dataclass(frozen=True, slots=True)
class Reading:
    """A command line read as a scenario."""

    text: str
    """YAML text of the scenario."""
    report: str
    """Report on each flag: what it set, or why it has no effect."""
    problem: str | None = None
    """Why the scenario cannot run as it stands; None if it can."""


def read_command(
    engine: str,
    command: Sequence[str],
    *,
    flags: Mapping[str, Any],
    overrides: Sequence[str] = (),
    ignored: Sequence[str] = (),
    verbose: bool = False,
    out: Path | None = None,
) -> Reading:
    """Read a command line of ``vllm`` or ``sglang``, given as one text or as a shell's words.

    ``flags`` are options as `scenarios.files.flags` knows them (None: not given), for what the
    command does not say; they and ``overrides`` win. ``out`` is where the text will be written.
    Raises `ScenarioError` for commands that cannot be read or would be predicted wrongly.
    """
    table = load_table(engine)
    options = {flag: value for flag, value in flags.items() if value is not None}
    words = read_words(command, table)
    given = read_given(words.arguments, table)
    flag = next(f for f in table.flags.values() if f.field == "model")
    model = _model(given, options.pop("--model", None), flag)
    outcomes = settle(_with_model(given, model, flag), words.environment, table, ignored)
    outcomes = _stored_already(_as_given(outcomes, given, model), model.spec, table)
    if model.spec.num_experts:
        outcomes = [for_experts(outcome) for outcome in outcomes]
    refused = refusal(outcomes, table)
    if refused is not None:
        raise ScenarioError(refused)
    values, comments, places = _values(outcomes, table)
    from_command = dict(places)
    apply_flags(values, places, options)
    for override in overrides:
        apply_override(values, places, override)
    for field in comments:
        path = tuple(field.split("."))
        if places.get(path) != from_command[path]:
            comments[field] = ""  # one of our options has replaced the command's value
    further, problem = _further(values, places, comments)
    text = scenario_text(
        relocated(values, out.parent if out is not None else Path()),
        comments,
        outcomes,
        table,
        name=str(out or "scenario.yaml"),
    )
    told = report(outcomes, table, image=words.image, further=further, verbose=verbose)
    return Reading(text, told, problem)


class _Model(NamedTuple):
    """The model of a command, and what stands in for it."""

    named: str
    """The command's name for it; empty if it has none."""
    used: str
    spec: ModelSpec


def _model(given: Sequence[Given], stand_in: str | None, flag: Flag) -> _Model:
    """Return the command's model, or the one that an option gives in its place.

    Raises `ScenarioError` if neither names a model, and for one that is not known.
    """
    named = next((one.value for one in given if one.flag is flag), "")
    used = stand_in or named
    if not used:
        raise ScenarioError("the command names no model; give it with --model")
    try:
        return _Model(named, used, load_model(used))
    except ScenarioError as error:
        raise ScenarioError(
            f"{error}\nor give the name of a model of the same shape: --model PATH_OR_NAME"
        ) from None


def _with_model(given: Sequence[Given], model: _Model, flag: Flag) -> list[Given]:
    """Return the flags with the model that is used in the place of the command's."""
    if model.used == model.named:
        return list(given)
    used = Given(flag.name, flag, model.used)
    if not model.named:
        return [used, *given]
    return [used if one.flag is flag else one for one in given]


def _as_given(outcomes: Sequence[Outcome], given: Sequence[Given], model: _Model) -> list[Outcome]:
    """Return the outcomes as the command has them: a model that stands in for another keeps what
    the other's name says of its weights, if no flag says it."""
    if model.used == model.named:
        return list(outcomes)
    if not model.named:
        return [replace(o, shown="") if "model" in o.settings else o for o in outcomes]
    shown = next(str(one) for one in given if one.flag is not None and one.flag.field == "model")
    settings, said = _stored_alike(model)
    if any("engine.quantization" in outcome.settings for outcome in outcomes):
        settings, said = {}, ""
    because = f"{model.used} stands in for it, as --model asks{said}"
    return [
        replace(o, shown=shown, because=because, settings={**o.settings, **settings})
        if "model" in o.settings
        else o
        for o in outcomes
    ]


def _stored_already(outcomes: Sequence[Outcome], spec: ModelSpec, table: Table) -> list[Outcome]:
    """Return the outcomes, in which a name of a checkpoint's own format changes nothing: engines
    read the format from the checkpoint."""
    flag = next(f for f in table.flags.values() if f.field == "engine.quantization")
    stored = spec.linear_dtype
    if stored == spec.dtype:
        return list(outcomes)
    because = f"the checkpoint's own formats hold: {stored}"
    return [
        Outcome(o.shown, "no_effect", because)
        if o.name in flag.names and o.kind in ("refused", "reported")
        else o
        for o in outcomes
    ]


def _stored_alike(model: _Model) -> tuple[dict[str, Any], str]:
    """Return the settings that store a stand-in as the command's name says, and a remark on it."""
    form = form_in_name(model.named)
    stored = model.spec.linear_dtype
    if form is None:
        return {}, ""
    said, method = stored_form(form)["said"], stored_form(form)["method"]
    if stored != model.spec.dtype:
        return {}, f"; the name says {said}, and the stand-in has {stored}: the stand-in's holds"
    if method is None:
        return {}, "" if form == "bfloat16" else (
            f"; the name says {said}, which engine.quantization cannot set: {stored} is used"
        )
    return {
        "engine.quantization": method
    }, f"; engine.quantization keeps what the name says: {said}"


def _values(
    outcomes: Sequence[Outcome], table: Table
) -> tuple[dict[str, Any], dict[str, str], Places]:
    """Return the nested scenario values that the flags set, a comment on each, and their places."""
    values: dict[str, Any] = {}
    comments: dict[str, str] = {}
    places: Places = {(): "command"}

    def put(field: str, value: Any, comment: str, where: str) -> None:
        apply_setting(values, places, field, value, where)
        comments[field] = comment

    put("hardware.gpu", _ASSUMED_GPU, "assumed: the command does not say", "command")
    put("engine.profile", table.profile, "", "command")
    for field, value in table.defaults.items():
        put(field, value, f"the default of {table.engine} {table.version}", "command")
    for outcome in outcomes:
        for field, value in outcome.settings.items():
            comment = "" if field == "model" else outcome.shown
            if field == next(iter(outcome.settings)) and outcome.because:
                comment = "; ".join(filter(None, [comment, outcome.because]))
            put(field, value, comment, f"command, {outcome.shown}")
    return values, comments, places


def _further(
    values: dict[str, Any], places: Places, comments: Mapping[str, str]
) -> tuple[list[str], str | None]:
    """Return further lines of the report: what was assumed or is missing, and whether it can run;
    and why it cannot.

    Raises `ScenarioError` for values that make no scenario.
    """
    lines = []
    for field, comment in comments.items():
        section, _, name = field.partition(".")
        if comment.startswith(("assumed", "the default")):
            lines.append(f"{field}: {values[section][name]}, {comment}")
    complete = "workload" in values
    scenario = validate(values if complete else values | {"workload": ANY_WORKLOAD}, places)
    problem = _trace_problem(scenario)
    try:
        replica = build(scenario).replica
        lines += [f"{note[0].upper()}{note[1:]}." for note in replica.model.notes]
        blocks = replica.memory.blocks
        lines.append(
            f"It fits: {blocks.num_gpu_blocks:,} KV blocks of {blocks.block_size} tokens an engine."
        )
    except ScenarioError as error:
        problem = str(error)
    if problem is not None:
        lines.append(f"As it stands it cannot run: {problem}")
    if not complete:
        lines.append(
            "No workload: the file has some commented out; or give --trace, --preset, or "
            "--input-tokens and --output-tokens with --rate or --concurrency."
        )
    return lines, problem


def _trace_problem(scenario: Scenario) -> str | None:
    """Return why the first line of a trace that is here makes no trace; None if it does."""
    trace = scenario.workload.trace
    if trace is None or trace.columns or trace.format or not Path(trace.path).is_file():
        return None
    try:
        detect_format(trace.path)
    except TraceError as error:
        return str(error).partition("; known formats")[0]
    return None
