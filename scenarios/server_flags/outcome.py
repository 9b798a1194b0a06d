"""The outcome of each flag and environment variable of a server command."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scenarios.files.messages import nearest
from scenarios.server_flags.argv import Given
from scenarios.server_flags.table import Flag, Table
from scenarios.server_flags.values import NEED_OTHERS, READERS, NotPriced, Settings
from sim.errors import ScenarioError

_EAGLE3_VOCABULARY = 32_000
"""The draft_vocab_size in the configs of published EAGLE-3 drafters."""
_VLLM = {
    "draft_model": "draft_model",
    "eagle": "eagle",
    "eagle3": "eagle",
    "medusa": "medusa",
    "mtp": "mtp",
    "ngram": "ngram",
    "ngram_gpu": "ngram",
    "[ngram]": "ngram",
    "dflash": "dflash",
}
_BY_NAME = (("eagle3", "eagle3"), ("eagle", "eagle"), ("medusa", "medusa"), ("dflash", "dflash"))
_SGLANG = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "mtp",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
    "DFLASH": "dflash",
}


def vllm_config(text: str, _: Settings) -> dict[str, Any]:
    """Read vLLM's ``--speculative-config`` into a section of speculation."""
    try:
        config: Any = json.loads(text)
    except ValueError:
        raise ValueError(f"must be JSON, not {text!r}") from None
    if not isinstance(config, dict):
        raise ValueError(f"must be a JSON object, not {text!r}")
    model = config.get("model")
    method = config.get("method") or _method_of(model)
    tokens = config.get("num_speculative_tokens")
    found = _named(method, model, tokens)
    limit = config.get("disable_by_batch_size")
    if isinstance(limit, int) and limit > 1:
        found["drafts_by_seqs"] = {1: tokens or 1, limit: 0}
    tree = config.get("speculative_token_tree")
    if tree and found["method"] == "eagle":
        paths = [list(path) for path in ast.literal_eval(str(tree))]
        is_chain = all(set(path) == {0} for path in paths)
        if not is_chain:
            found |= {"tree": paths, "num_speculative_tokens": len(paths)}
    return found


def vllm_method(text: str, settings: Settings) -> dict[str, Any]:
    """Read vLLM's ``--spec-method``, with the model and the tokens of the flags beside it."""
    tokens = settings.get("--spec-tokens")
    return _named(text, settings.get("--spec-model"), None if tokens is None else int(tokens))


def sglang_algorithm(text: str, settings: Settings) -> dict[str, Any]:
    """Read SGLang's ``--speculative-algorithm``, with the numbers of the flags beside it.

    ``num_draft_tokens`` includes the target's own token; a top-k above 1 drafts a tree.
    """
    method = _SGLANG.get(text.upper())
    if method is None:
        raise NotPriced(f"drafting by {text} is not modelled")
    drafted = settings.get("--speculative-num-draft-tokens")
    steps = settings.get("--speculative-num-steps")
    block = settings.get("--speculative-dflash-block-size")
    tokens = None
    if method == "dflash" and block is not None:
        tokens = int(block) - 1
    elif drafted is not None:
        tokens = int(drafted) - 1
    elif steps is not None:
        tokens = int(steps)
    found = _named(method, settings.get("--speculative-draft-model-path"), tokens)
    if found["method"] == "eagle" and int(settings.get("--speculative-eagle-topk", 1)) > 1:
        found["tree"] = "best"
    return found


def _named(method: str, model: Any, tokens: int | None) -> dict[str, Any]:
    """Return the section of a method; ``eagle3`` is eagle with its own vocabulary."""
    if str(method).endswith("_mtp"):
        method = "mtp"
    ours = _VLLM.get(method)
    if ours is None:
        raise NotPriced(f"drafting by {method} is not modelled")
    found: dict[str, Any] = {"method": ours}
    if ours == "draft_model":
        if not model:
            raise ValueError("names no model to draft with")
        found["model"] = str(model)
    if tokens is not None:
        found["num_speculative_tokens"] = tokens
    if method == "eagle3":
        found["draft_vocab_size"] = _EAGLE3_VOCABULARY
    return found


def _method_of(model: Any) -> str:
    """Return the method that vLLM infers from a model if none is named."""
    name = str(model or "").lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    return next((method for part, method in _BY_NAME if part in name), "draft_model")


SPECULATION_READERS: Mapping[str, Any] = {
    "vllm_speculation": vllm_config,
    "vllm_method": vllm_method,
    "sglang_speculation": sglang_algorithm,
}


Kind = Literal["set", "reported", "no_effect", "refused", "unknown", "left_out"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one flag: ``shown`` is its text in the command."""

    shown: str
    kind: Kind
    because: str = ""
    """What the prediction does instead, or a note on what the flag set."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted fields that the flag sets, with their values."""
    with_experts: Outcome | None = None
    """The outcome for mixture-of-experts models, if it differs."""
    is_variable: bool = False
    """Whether it is an environment variable, not a flag."""

    @property
    def name(self) -> str:
        """The flag or variable without its value, which may be secret."""
        return self.shown.partition(" ")[0].partition("=")[0]


def settle(
    given: Sequence[Given],
    environment: Mapping[str, str],
    table: Table,
    ignored: Iterable[str],
) -> list[Outcome]:
    """Return the outcome of each flag and variable.

    What ``ignored`` names (a flag in any spelling, with or without dashes, or a variable) is left
    out. Raises `ScenarioError` for a value that cannot be read.
    """
    left_out = [_ignored(name, given, environment, table) for name in ignored]
    # Some flags are read together with the values of others.
    settings: dict[str, Any] = {
        one.flag.name: one.value for one in given if one.flag is not None and one not in left_out
    }
    outcomes: dict[int, Outcome] = {}
    for n in sorted(range(len(given)), key=lambda n: _needs_others(given[n])):
        one = given[n]
        if one in left_out:
            because = one.flag.because if one.flag is not None else ""
            outcomes[n] = Outcome(str(one), "left_out", because)
        else:
            outcomes[n] = _settle(one, table, settings)
            settings |= outcomes[n].settings
    variables = [
        replace(_variable(name, value, table, name in left_out), is_variable=True)
        for name, value in environment.items()
    ]
    return [outcomes[n] for n in range(len(given))] + variables


def for_experts(outcome: Outcome) -> Outcome:
    """Return the outcome for a mixture-of-experts model."""
    return outcome.with_experts or outcome


def _settle(one: Given, table: Table, settings: Mapping[str, Any]) -> Outcome:
    flag, shown = one.flag, str(one)
    if flag is None:
        known = [name for name in table.flags if name.startswith("--")]
        hint = nearest(one.spelled, known, list_all=False)
        about = f"no flag of {table.engine} {table.version}"
        return Outcome(shown, "unknown", f"{about}; {hint}" if hint else about)
    if _is_harmless(flag, one.value):
        return Outcome(shown, "no_effect", "as the prediction has it anyway")
    if flag.fate != "mapped":
        return Outcome(shown, flag.fate, flag.because)
    try:
        value = read_value(flag, one.value, settings)
    except NotPriced as why:
        return Outcome(shown, flag.gravity, str(why) or flag.otherwise)
    except ValueError as error:
        hint = "; the command does not set that variable" if "$" in one.value else ""
        raise ScenarioError(f"{shown}: {error}{hint}") from None
    if value is None and flag.takes == "json":
        return Outcome(shown, "reported", flag.note)
    if value is None:
        return Outcome(shown, "no_effect", "as the prediction has it anyway")
    note = "; ".join(filter(None, [flag.note, flag.note_for.get(one.value)]))
    also = flag.also if _above_one(value) else {}
    other = None
    if flag.with_experts and _above_one(value):
        other = Outcome(shown, "set", flag.note_with_experts, {flag.with_experts: value})
    return Outcome(shown, "set", note, {flag.field: value, **also}, other)


def read_value(flag: Flag, text: str, settings: Mapping[str, Any]) -> Any:
    """Return the field's value for a mapped flag's text; None leaves the field alone.

    ``settings`` holds what the other flags set. Raises `NotPriced`, or ValueError for invalid text.
    """
    if not flag.reads:
        known = {choice.lower(): choice for choice in flag.choices}
        if text.lower() not in known:
            raise NotPriced
        return flag.choices[known[text.lower()]]
    return {**READERS, **NEED_OTHERS, **SPECULATION_READERS}[flag.reads](text, settings)


def _needs_others(one: Given) -> bool:
    return one.flag is not None and one.flag.reads in NEED_OTHERS


def _above_one(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _is_harmless(flag: Flag, value: str) -> bool:
    """Return whether a value changes nothing, as a switch that is off."""
    if flag.takes in ("switch", "toggle") and value == "off" and "on" not in flag.harmless:
        return flag.fate != "mapped"
    return any(value == known or _same_number(value, known) for known in flag.harmless)


def _same_number(one: str, two: str) -> bool:
    try:
        return float(one) == float(two)
    except ValueError:
        return False


def _ignored(
    name: str, given: Sequence[Given], environment: Mapping[str, str], table: Table
) -> Given | str:
    """Return the flag or variable of the command that ``--ignore`` names. Raises
    `ScenarioError`."""
    if name in environment:
        return name
    bare = name.lstrip("-").replace("_", "-")
    spellings = [f"--{bare}", f"-{bare}"]
    flags = [flag for flag in map(table.find, spellings) if flag is not None]
    for one in given:
        if one.spelled in spellings or one.flag in flags:
            if one.flag is not None and one.flag.field == "model":
                raise ScenarioError(f"--ignore {name}: --model replaces the command's model")
            return one
    hint = nearest(spellings[0], [one.spelled for one in given if one.spelled])
    raise ScenarioError(f"--ignore {name}: the command has no such flag; {hint}")


def _variable(name: str, value: str, table: Table, is_left_out: bool) -> Outcome:
    known = table.environment.get(name)
    shown = f"{name}={value}"
    if is_left_out:
        return Outcome(shown, "left_out", known.because if known is not None else "")
    if known is None:
        if name.startswith(table.variables):
            return Outcome(shown, "reported", "not in the table: taken to have no effect")
        return Outcome(name, "no_effect", "not a variable of the engine")
    if known.fate == "no_effect" or _is_harmless(known, value):
        return Outcome(name, "no_effect", known.because)
    return Outcome(shown, "refused" if known.fate == "refused" else "reported", known.because)
