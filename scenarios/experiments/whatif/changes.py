"""The changes that a what-if compares: from ``--set`` options, from a file, or from Python."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scenarios.build.builder import build
from scenarios.files.load import anchored_settings, apply_setting, validate
from scenarios.files.messages import nearest
from scenarios.files.yaml_text import Places, parse_yaml, read_text
from scenarios.schema import Scenario
from sim.errors import FleetcastError, ScenarioError

BASELINE = "baseline"
TOGETHER = "all together"

_SAME_FOR_ALL = {
    "seed": "all variants share the baseline's random numbers; change the seed of the scenario",
    "replications": "all variants run as often as the baseline; use --replications",
    "bands": "a what-if runs without error bands, of the model's own error",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change: dotted fields and the values they get."""

    name: str
    settings: Mapping[str, Any]
    """Dotted key -> value, e.g. ``{"engine.tensor_parallel_size": 2}``."""
    joins: bool = True
    """Whether it is part of "all together"."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where the user gave each key, in words; keys not listed are described by their own names."""

    def place(self, key: str) -> str:
        """Return where a key was given."""
        return self.places.get(key, f"{self.name}: {key}")

    def apply(self, values: dict[str, Any], places: Places) -> None:
        """Set the fields in nested values, in place. Raises `ScenarioError`."""
        for key, value in self.settings.items():
            apply_setting(values, places, key, value, self.place(key))


def changes_from_sets(overrides: Sequence[str], names: Sequence[str] = ()) -> list[Change]:
    """Return each ``dotted.key=YAML value`` as one change; the first ones are named by ``names``.

    Raises `ScenarioError` for text that is not of this form, and for more names than changes.
    """
    if len(names) > len(overrides):
        raise ScenarioError(
            f"--name {names[len(overrides)]}: there is no --set for it; names go to the --set "
            "options in order"
        )
    settings = [_parse_override(override) for override in overrides]
    changes = []
    for index, (key, value, where) in enumerate(settings):
        name = names[index] if index < len(names) else _short_name(key, value)
        changes.append(Change(name=name, settings={key: value}, places={key: where}))
    return changes


def changes_from_file(path: Path) -> list[Change]:
    """Read the variants of a file, none of which is part of "all together".

    The file is a list of ``{name: ..., set: {dotted.key: value}}``, or a mapping of names to such
    settings. Raises `ScenarioError` naming file, line and field.
    """
    text = read_text(path, "variants")
    values, places = parse_yaml(text, str(path))
    changes = []
    for place, name, settings in _entries(values, places, str(path)):
        if not isinstance(name, str | int | float) or isinstance(name, bool) or name == "":
            raise ScenarioError(f"{places[place]}: name: must be text, not {name!r}")
        changes.append(_change_at(place, str(name), settings, places, path.parent))
    return changes


def check_changes(changes: Sequence[Change]) -> None:
    """Raise `ScenarioError` for duplicate names, and for fields that no variant may set."""
    if not changes:
        raise ScenarioError("nothing to compare: give --set section.key=value or --variants FILE")
    seen: set[str] = {BASELINE, TOGETHER}
    for change in changes:
        if not change.settings:
            raise ScenarioError(f"{change.name}: changes nothing; give at least one field")
        where = next(change.place(key) for key in change.settings)
        if change.name in seen:
            taken = "is taken" if change.name in (BASELINE, TOGETHER) else "is there twice"
            raise ScenarioError(f"{where}: the name {change.name!r} {taken}; give another --name")
        seen.add(change.name)
        for key in change.settings:
            if key in _SAME_FOR_ALL:
                raise ScenarioError(f"{change.place(key)}: {key}: {_SAME_FOR_ALL[key]}")


def all_together(changes: Sequence[Change]) -> tuple[Change | None, str]:
    """Return the changes that join as one, or None and the reason if it is not obvious."""
    joining = [change for change in changes if change.joins]
    if len(joining) < 2:
        return None, ""
    places: dict[str, str] = {}
    settings: dict[str, Any] = {}
    for change in joining:
        for key, value in change.settings.items():
            other = next((k for k in settings if _overlap(k, key)), None)
            if other is not None:
                shared = min(key, other, key=len)
                return None, f"{shared} is changed twice, so the changes cannot hold together"
            settings[key], places[key] = value, change.place(key)
    return Change(name=TOGETHER, settings=settings, places=places), ""


def _parse_override(override: str) -> tuple[str, Any, str]:
    where = f"--set {override}"
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise ScenarioError(f"{where}: write it as key=value, e.g. --set pool.replicas=2")
    following = text.partition(",")[2].partition("=")[0].strip()
    if "=" in text and "." in following and all(p.isidentifier() for p in following.split(".")):
        raise ScenarioError(
            f"{where}: one --set is one change of one field; give {following} a --set of its own, "
            "or put changes of several fields into a --variants file"
        )
    value, _ = parse_yaml(text, where)
    return key, value, where


def _short_name(key: str, value: Any) -> str:
    shown = "null" if value is None else str(value).lower() if value in (True, False) else value
    return f"{key.rpartition('.')[2]}={shown}"


def _entries(
    values: Any, places: Places, where: str
) -> list[tuple[tuple[str | int, ...], Any, Any]]:
    """Return (path of the settings, name, settings) of each variant in the file."""
    if isinstance(values, dict) and values:
        return [((name,), name, settings) for name, settings in values.items()]
    if not isinstance(values, list) or not values:
        raise ScenarioError(
            f"{where}: variants are a list of {{name: ..., set: {{section.key: value}}}}, or a "
            "mapping of names to settings"
        )
    entries: list[tuple[tuple[str | int, ...], Any, Any]] = []
    for index, item in enumerate(values):
        at = places[(index,)]
        if not isinstance(item, dict):
            raise ScenarioError(f"{at}: a variant is {{name: ..., set: {{...}}}}, not {item!r}")
        for key in item:
            if key not in ("name", "set"):
                hint = nearest(str(key), ("name", "set"))
                raise ScenarioError(f"{places.get((index, key), at)}: {key}: unknown key; {hint}")
        for key in ("name", "set"):
            if key not in item:
                raise ScenarioError(f"{at}: {key}: required, but not given")
        entries.append(((index, "set"), item["name"], item["set"]))
    return entries


def _change_at(
    place: tuple[str | int, ...], name: str, settings: Any, places: Places, folder: Path
) -> Change:
    if not isinstance(settings, dict) or not settings:
        raise ScenarioError(
            f"{places[place]}: {name}: must be settings, section.key: value, not {settings!r}"
        )
    flat: dict[str, Any] = {}
    where: dict[str, str] = {}
    for key, value in settings.items():
        at = places.get((*place, key), places[place])
        if not isinstance(key, str) or not all(key.split(".")):
            raise ScenarioError(f"{at}: {key!r} is not a field; write section.key: value")
        # A section written as a mapping sets the fields in it and leaves its others alone.
        if key in Scenario.model_fields and isinstance(value, dict):
            for inner, inside in value.items():
                flat[f"{key}.{inner}"] = inside
                where[f"{key}.{inner}"] = places.get((*place, key, inner), at)
        else:
            flat[key], where[key] = value, at
    return Change(name=name, settings=anchored_settings(flat, folder), joins=False, places=where)


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


Kind = Literal["baseline", "single", "together"]


@dataclass(kw_only=True)
class Variant:
    """One column of the comparison; ``refused`` says why it cannot be run, if it cannot."""

    name: str
    kind: Kind
    settings: Mapping[str, Any] = field(default_factory=dict)
    scenario: Scenario | None = None
    refused: str | None = None
    joins: bool = False
    """Whether it is part of "all together"."""

    def refuse(self, reason: FleetcastError) -> None:
        """Take this variant out of the comparison."""
        self.refused = str(reason)


def make_variants(
    values: Mapping[str, Any], places: Places, changes: Sequence[Change]
) -> tuple[list[Variant], str]:
    """Return the baseline, the changes in order, then all joining changes together.

    The second value says why the last is missing, if that is not obvious. What cannot be built is
    marked as refused. Raises `ScenarioError` for a field that does not exist or a value that it
    cannot have, and for a baseline that cannot be built.
    """
    check_changes(changes)
    baseline = Variant(name=BASELINE, kind="baseline", scenario=validate(values, places))
    together, why_not = all_together(changes)
    variants = [baseline]
    for change in (*changes, *([together] if together else [])):
        kind: Kind = "together" if change is together else "single"
        variant = Variant(
            name=change.name,
            kind=kind,
            settings=dict(change.settings),
            joins=change.joins and kind == "single",
        )
        try:
            variant.scenario = _changed(values, places, change)
        except ScenarioError as error:
            if change is not together:
                raise
            variant.refuse(error)  # each is valid alone, but two fields may exclude each other
        variants.append(variant)
    for variant in variants:
        _try_to_build(variant)
    return variants, why_not


def check_refusals(variants: Sequence[Variant]) -> None:
    """Raise `ScenarioError` if nothing is left to compare."""
    baseline, *others = variants
    if baseline.refused is not None:
        raise ScenarioError(f"the baseline cannot be run: {baseline.refused}")
    if all(variant.refused is not None for variant in others):
        lines = [f"{variant.name}: {variant.refused}" for variant in others]
        raise ScenarioError("\n".join(["no change can be run:", *lines]))


def _changed(values: Mapping[str, Any], places: Places, change: Change) -> Scenario:
    changed, where = copy.deepcopy(dict(values)), dict(places)
    change.apply(changed, where)
    return validate(changed, where)


def _try_to_build(variant: Variant) -> None:
    """Refuse, before any simulation, a variant that cannot be built, such as a model that does
    not fit."""
    if variant.scenario is None:
        return
    try:
        build(variant.scenario)
    except FleetcastError as error:
        variant.refuse(error)


__all__ = ["BASELINE", "TOGETHER", "Variant", "check_refusals", "make_variants"]
