"""Rows and sentences of a what-if that the terminal and the page share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from reports.facts import evidence_shares
from reports.numbers import MISSING, humanised, is_number, listed, sentence, whole_percent
from reports.schemas import WHATIF
from reports.whatif.words import change_text, label_of, tone_of, unit_of, value_text
from sim.errors import ScenarioError

FILE = "whatif.json"

Content = dict[str, Any]

_PARTS = ("method", "figures", "shares", "baseline", "variants", "together", "answer")


def is_whatif(folder: Path | str) -> bool:
    """Return whether a folder holds a what-if rather than a single run."""
    return (Path(folder) / FILE).is_file()


def read_whatif(folder: Path | str) -> Content:
    """Read ``whatif.json``.

    Raises `ScenarioError` if the file is missing, is not JSON, has another schema, or lacks a part.
    """
    path = Path(folder) / FILE
    again = "Run `fleetcast whatif ... --out` again."
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror}). {again}") from None
    except ValueError as error:
        raise ScenarioError(f"{path}: not valid JSON ({error}). {again}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != WHATIF:
        found = f"schema {schema!r}" if schema is not None else "no 'schema' key"
        raise ScenarioError(f"{path}: {found}; this version reads {WHATIF!r}. {again}")
    assert isinstance(content, dict)
    missing = [part for part in _PARTS if part not in content]
    if missing:
        raise ScenarioError(f"{path}: lacks {', '.join(missing)}. {again}")
    return content


def read_scenarios(folder: Path | str, content: Content) -> dict[str, str]:
    """Read the YAML of each variant's scenario that was written, by variant name.

    Raises `ScenarioError` if a file that whatif.json names is missing.
    """
    texts = {}
    for variant in (content["baseline"], *content["variants"]):
        name = variant.get("scenario_file")
        if name:
            path = Path(folder) / name
            try:
                texts[variant["name"]] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ScenarioError(f"{path}: cannot be read ({error})") from None
    return texts


Variant = dict[str, Any]


class Compared(NamedTuple):
    """One variant's cell: its value, and its change against the baseline."""

    value: str
    change: str
    tone: str
    """``good``, ``bad`` or empty."""
    unsure: bool
    """Whether the change's interval includes zero."""


class FigureRow(NamedTuple):
    """One figure over the baseline and all variants that ran."""

    key: str
    label: str
    unit: str
    base: str
    cells: tuple[Compared, ...]
    product: str
    """Product of the single changes; empty if it is not known."""


class AccountDelta(NamedTuple):
    """One time account: the baseline's mean and each variant's difference, in seconds."""

    account: str
    label: str
    base_s: float
    deltas_s: tuple[float, ...]


class WarningRow(NamedTuple):
    """A warning that a variant has and the baseline has not, or the reverse."""

    variant: str
    text: str
    is_new: bool


def ran(content: Content) -> list[Variant]:
    """Return the variants that were simulated, without the baseline."""
    return [variant for variant in content["variants"] if variant["refused"] is None]


def refusals(content: Content) -> list[tuple[str, str]]:
    """Return (name, reason) of each variant that could not be run."""
    return [(v["name"], v["refused"]) for v in content["variants"] if v["refused"] is not None]


def figure_rows(content: Content, *, compact: bool) -> list[FigureRow]:
    """Return one row per figure that some variant has; with ``compact``, only the figures of the
    short table."""
    rows = []
    variants = ran(content)
    products = content["together"]["figures"]
    for figure in content["figures"]:
        key = figure["key"]
        values = [v["values"].get(key) for v in (content["baseline"], *variants)]
        if not any(is_number(value) for value in values) or _is_dull(figure, values):
            continue
        if compact and not figure["compact"] and not _must_be_seen(key, values):
            continue
        unit, per_unit = unit_of(figure, values)
        product = products.get(key, {}).get("product")
        rows.append(
            FigureRow(
                key=key,
                label=label_of(key),
                unit=unit,
                base=value_text(values[0], figure, per_unit),
                cells=tuple(_compared(v, figure, per_unit) for v in variants),
                product=value_text(product, figure, per_unit) if is_number(product) else "",
            )
        )
    return rows


def account_deltas(content: Content, of: str = "e2e") -> list[AccountDelta]:
    """Return the accounts with time in them, in the order of the baseline. A variant's deltas
    sum to its total change."""
    base = content["baseline"]["accounts_ns"][of]
    others = [variant["accounts_ns"][of] for variant in ran(content)]
    rows = []
    for account, base_ns in base.items():
        of_others = [accounts.get(account) for accounts in others]
        if not base_ns and not any(of_others):
            continue
        deltas_s = tuple((ns - base_ns) / 1e9 if ns is not None else 0.0 for ns in of_others)
        rows.append(AccountDelta(account, humanised(account), base_ns / 1e9, deltas_s))
    return rows


def warning_rows(content: Content) -> list[WarningRow]:
    """Return the warnings of variants that differ from the baseline's, variant by variant."""
    replications = content["method"]["replications"]
    base = _by_code(content["baseline"], replications)
    rows = []
    for variant in ran(content):
        if variant["changes_demand"]:
            words = "Another workload or SLO than the baseline's: it is not among the best."
            rows.append(WarningRow(variant["name"], words, True))
        of_variant = _by_code(variant, replications)
        for code, text in of_variant.items():
            if code not in base:
                rows.append(WarningRow(variant["name"], sentence(text), True))
        for code in base:
            if code not in of_variant:
                words = f"no longer: {humanised(code.removesuffix('_beyond'))}"
                rows.append(WarningRow(variant["name"], sentence(words), False))
        notes = content["baseline"]["notes"]
        for note in variant["notes"]:
            if note not in notes:
                rows.append(WarningRow(variant["name"], sentence(str(note)), True))
    return rows


def base_warnings(content: Content) -> list[str]:
    """Return the baseline's own warnings."""
    texts = _by_code(content["baseline"], content["method"]["replications"])
    return [sentence(text) for text in texts.values()]


def evidence_rows(content: Content) -> list[tuple[str, str, str]]:
    """Return (name, weakest label, shares in words) of the baseline and all variants that ran."""
    rows = []
    for variant in (content["baseline"], *ran(content)):
        shares = evidence_shares(variant)
        words = ", ".join(f"{whole_percent(share)} {label}" for label, share in shares)
        rows.append((variant["name"], variant["label"] or MISSING, words))
    return rows


# Shown elsewhere, or too long to stand side by side.
_NOT_COMPARED = ("notes", "operators", "calibration_sha256")


def condition_changes(content: Content) -> list[tuple[str, list[str]]]:
    """Return the conditions in which variants differ: name, then the baseline's and each
    variant's value."""
    conditions = [v["conditions"] for v in (content["baseline"], *ran(content))]
    rows = []
    for name in conditions[0]:
        texts = [_condition(one.get(name)) for one in conditions]
        if name not in _NOT_COMPARED and len(set(texts)) > 1:
            rows.append((name, texts))
    return rows


def settings_text(variant: Variant) -> str:
    """Write what a variant changes: ``engine.tensor_parallel_size=2, kv.cache_dtype=fp8``."""
    return ", ".join(f"{key}={_setting(value)}" for key, value in variant["settings"].items())


def _is_dull(figure: dict[str, Any], values: list[Any]) -> bool:
    """Return whether a figure about a rare event, such as preemption, shows that it never
    happened."""
    dull = {"availability": 1.0, "preemptions": 0.0}
    return figure["key"] in dull and all(value == dull[figure["key"]] for value in values)


def _must_be_seen(key: str, values: list[Any]) -> bool:
    return key == "availability"


def _compared(variant: Variant, figure: dict[str, Any], per_unit: float) -> Compared:
    key = figure["key"]
    change = variant["deltas"].get(key) or {}
    unsure = bool(change.get("holds_zero")) and not (
        change.get("delta") == 0 and not change.get("half_width")
    )
    text = change_text(change, figure)
    return Compared(
        value=value_text(variant["values"].get(key), figure, per_unit),
        change=text,
        tone="" if text.startswith("0.0") else tone_of(change, figure["better"]),
        unsure=unsure,
    )


def _by_code(variant: Variant, replications: int) -> dict[str, str]:
    """Return warning texts by code. Load beyond saturation gets a code of its own, distinct from
    load near it."""
    texts = {}
    load = variant["values"].get("load")
    for warning in variant["warnings"]:
        code = warning["code"]
        if code == "near_saturation" and is_number(load) and load >= 1:
            code = "near_saturation_beyond"
        texts[code] = warning["text"]
        if replications > 1:
            texts[code] += f" (in {warning['runs']} of {replications} runs; numbers of the first)"
    return texts


def _condition(value: object) -> str:
    if isinstance(value, dict):
        return listed(f"{k} {v}" for k, v in value.items() if v is not None) or MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else MISSING if value is None else str(value)


def _setting(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
