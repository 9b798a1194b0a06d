"""Request kinds and arrivals from plain values, as presets.yaml and scenario files hold them.

The keys are those of the scenario's generator section, so a block of presets.yaml can be copied
into a scenario. Values must have been validated, or be known to be good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sim.arrays import Int64
from sim.errors import TraceError
from workloads.generator.arrivals import Clients, zipf_exponent, zipf_shares
from workloads.generator.distributions import (
    DEFAULT_MAX_TOKENS,
    LONGEST_S,
    MOST_COUNTS,
    SHORTEST_S,
    Counts,
    Durations,
    Gamma,
    Lengths,
    Lognormal,
    Observed,
    Quantiles,
    counted,
    exponential_s,
    fixed,
    fixed_s,
    geometric,
)
from workloads.generator.rate_changes import Drift, OnOff, named_drift, sine
from workloads.generator.sessions import Continuations, Resets, Sessions
from workloads.generator.shared_prefixes import Documents, SystemPrompts
from workloads.generator.spec import RequestKind
from workloads.readers.csv_table import read_csv, split_row, whole
from workloads.readers.rows import MAX_TOKENS, open_text

Plain = Mapping[str, Any]

_BOTH_LENGTHS = ("input_tokens", "output_tokens")


def request_kind(plain: Plain, *, share: float = 1.0, name: str = "") -> RequestKind:
    """Make a kind of request from a section with ``input_tokens``, ``output_tokens`` and structure.

    Raises TraceError for a file of lengths that cannot be read.
    """
    prompt_file, output_file = (plain[key].get("from_file") for key in _BOTH_LENGTHS)
    is_paired = bool(prompt_file) and prompt_file == output_file and plain.get("paired", True)
    prompt_tokens: Lengths | Observed
    output_tokens: Lengths | Observed
    if is_paired:
        prompt_tokens, output_tokens = _read_lengths(prompt_file, paired=True)
    else:
        prompt_tokens = lengths(plain["input_tokens"])
        output_tokens = lengths(plain["output_tokens"], of_outputs=True)
    return RequestKind(
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        is_paired=is_paired,
        share=share,
        name=name,
        **_structure(plain),
    )


def _structure(plain: Plain) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if plain.get("system_prompts"):
        fields["system_prompts"] = SystemPrompts(**_numbers(plain["system_prompts"]))
    if plain.get("documents"):
        fields["documents"] = _documents(plain["documents"])
    if plain.get("sessions"):
        fields["sessions"] = _sessions(plain["sessions"])
    if plain.get("continuations"):
        section = plain["continuations"]
        fields["continuations"] = Continuations(
            probability=section["probability"],
            shared=quantiles(section["shared"]),
            delay_s=durations(section["delay_s"]),
        )
    return fields


def lengths(plain: Plain, *, of_outputs: bool = False) -> Lengths | Observed:
    """Make lengths from ``fixed``, ``from_file``, or a mixture with ``min`` and ``max``.

    A file gives its inputs, or with ``of_outputs`` its outputs. Raises TraceError if it cannot be
    read.
    """
    if plain.get("from_file") is not None:
        return _read_lengths(plain["from_file"], paired=False)[of_outputs]
    if plain.get("fixed") is not None:
        return fixed(plain["fixed"])
    return Lengths(
        components=_components(plain),
        min_tokens=plain.get("min") or 1,
        max_tokens=plain.get("max") or DEFAULT_MAX_TOKENS,
    )


def durations(plain: Plain) -> Durations:
    """Make times from ``fixed``, ``mean`` (exponential), or a mixture with ``min`` and ``max``."""
    if plain.get("fixed") is not None:
        return fixed_s(plain["fixed"])
    if plain.get("mean") is not None:
        return exponential_s(plain["mean"])
    return Durations(
        components=_components(plain),
        min_s=plain.get("min") or SHORTEST_S,
        max_s=plain.get("max") or LONGEST_S,
    )


def counts(plain: Plain) -> Counts | Lengths:
    """Make counts from ``fixed``, ``mean`` (geometric), ``another``, or a mixture with min and
    max."""
    most = plain.get("max") or MOST_COUNTS
    if plain.get("fixed") is not None:
        return counted(plain["fixed"])
    if plain.get("mean") is not None:
        return geometric(plain["mean"], most)
    if plain.get("another"):
        return Counts(tuple(plain["another"]), most)
    return Lengths(components=_components(plain), min_tokens=plain.get("min") or 1, max_tokens=most)


def quantiles(plain: Plain) -> Quantiles:
    """Make a distribution by percentiles from ``fixed``, or ``p10``, ``p50``, ..."""
    if plain.get("fixed") is not None:
        return {50: plain["fixed"]}
    return {
        float(key[1:]): value
        for key, value in plain.items()
        if key[0] == "p" and key[1:].isdigit() and value is not None
    }


def clients(plain: Plain) -> Clients:
    """Make clients from ``shares``, or a ``count`` with ``zipf`` or ``top_10_share``; and their
    ``cv``."""
    if plain.get("shares"):
        shares = tuple(plain["shares"])
    else:
        count, exponent = plain["count"], plain.get("zipf")
        exponent = 1.0 if exponent is None else exponent
        if plain.get("top_10_share") is not None:
            exponent = zipf_exponent(count, 10, plain["top_10_share"])
        shares = zipf_shares(count, exponent)
    return Clients(shares=shares, cv=quantiles(plain.get("cv") or {"fixed": 1.0}))


def on_off(plain: Plain) -> OnOff:
    """Make bursts and silences from ``on_s`` and ``off_s``."""
    return OnOff(on_s=durations(plain["on_s"]), off_s=durations(plain["off_s"]))


def drift(plain: Plain) -> Drift:
    """Make a rate profile from its name, its ``factors``, or a swing by ``amplitude``."""
    start_s = plain.get("start_s") or 0.0
    if plain.get("profile") is not None:
        return named_drift(plain["profile"], start_s)
    if plain.get("amplitude") is not None:
        return sine(plain["amplitude"], plain["period_s"], start_s)
    return Drift(factors=tuple(plain["factors"]), period_s=plain["period_s"], start_s=start_s)


def _read_lengths(path: str | Path, *, paired: bool) -> tuple[Observed, Observed]:
    """Read prompt and output lengths of a CSV file with these two columns, or of any trace.

    With ``paired`` they are ordered by input, so that the same uniform draws both of one row; else
    each is sorted by itself. Raises TraceError for a file that cannot be read or has no rows.
    """
    path = Path(path)
    if _has_columns(path):
        columns = [
            whole(name, minimum) for name, minimum in zip(_BOTH_LENGTHS, (1, 0), strict=True)
        ]
        table = read_csv(path, lambda _: columns, skip_bad_rows=False)
        prompt, output = (table.values[name] for name in _BOTH_LENGTHS)
    else:
        from workloads.readers.detect import read_trace  # imports all readers

        trace = read_trace(path)
        prompt, output = trace.prompt_tokens, trace.output_tokens
    if not len(prompt):
        raise TraceError(f"{path}: there are no rows to draw lengths from")
    if paired:
        order: Int64 = np.lexsort((output, prompt))
        return Observed(prompt[order]), Observed(output[order])
    return Observed(np.sort(prompt)), Observed(np.sort(output))


def _has_columns(path: Path) -> bool:
    with open_text(path) as text:
        return set(_BOTH_LENGTHS) <= set(split_row(text.readline()))


def _documents(plain: Plain) -> Documents:
    given = {key: plain[key] for key in ("zipf", "probability") if plain.get(key) is not None}
    return Documents(
        tokens=lengths(plain["tokens"]),
        collection=plain.get("collection"),
        per_request=counts(plain.get("per_request") or {"fixed": 1}),
        **given,
    )


def _sessions(plain: Plain) -> Sessions:
    given = {key: plain[key] for key in ("history", "kept_output") if plain.get(key) is not None}
    resets = plain.get("resets")
    return Sessions(
        turns=counts(plain["turns"]),
        think_s=durations(plain.get("think_s") or {"fixed": 0.0}),
        new_tokens=lengths(plain["new_tokens"]) if plain.get("new_tokens") else None,
        resets=_resets(resets) if resets else None,
        max_prompt_tokens=plain.get("max_input_tokens") or MAX_TOKENS,
        **given,
    )


def _resets(plain: Plain) -> Resets:
    dropped = plain.get("dropped")
    return Resets(
        probability=plain["probability"],
        kept=quantiles(plain.get("kept") or {"fixed": 0.0}),
        dropped=1.0 if dropped is None else dropped,
    )


def _components(plain: Plain) -> tuple[Lognormal | Gamma, ...]:
    """Make components from mappings, or lists ``[weight, mu, sigma]`` and
    ``[weight, shape, scale]``."""
    lognormals = (
        Lognormal(**dict(zip(("weight", "mu", "sigma"), _values(c), strict=True)))
        for c in plain.get("lognormal") or ()
    )
    gammas = (
        Gamma(**dict(zip(("weight", "shape", "scale"), _values(c), strict=True)))
        for c in plain.get("gamma") or ()
    )
    return (*lognormals, *gammas)


def _values(component: Plain | Iterable[float]) -> list[float]:
    if isinstance(component, Mapping):
        names = ("weight", "mu", "sigma") if "mu" in component else ("weight", "shape", "scale")
        return [component.get(name, 1.0) for name in names]
    return list(component)


def _numbers(plain: Plain) -> dict[str, Any]:
    """Return the values given, without evidence labels."""
    labels = ("evidence", "source", "published", "tolerance")
    return {k: v for k, v in plain.items() if v is not None and k not in labels}
