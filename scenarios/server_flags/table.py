"""The flags of one engine version, from its YAML table: what each takes and what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

Fate = Literal["mapped", "reported", "refused", "no_effect"]
Takes = Literal["switch", "toggle", "value", "values", "optional", "json"]

TABLES = {"vllm": "vllm-0.25.yaml", "sglang": "sglang-0.5.yaml"}
_TAKES: tuple[Takes, ...] = ("switch", "toggle", "value", "values", "optional", "json")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag, or environment variable; its values are texts, and a toggle's are ``on`` and
    ``off``."""

    names: tuple[str, ...]
    fate: Fate
    takes: Takes = "value"
    because: str = ""
    """Why it has no effect, or what the prediction does instead."""
    harmless: frozenset[str] = frozenset()
    """Values with which the flag changes nothing."""
    older: bool = False
    """Only older versions of the engine have it."""
    field: str = ""
    """Dotted field of the scenario that the flag sets, if it is mapped; empty: its reader names
    several."""
    reads: str = ""
    """Name of the reader in `server_flags.values` that parses the text; empty: use `choices`."""
    choices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The field's value for each text; None leaves the field alone."""
    otherwise: str = ""
    """Why texts outside `choices` are not modeled."""
    gravity: Literal["refused", "reported"] = "refused"
    """What becomes of texts outside `choices`."""
    with_experts: str = ""
    """The field that the flag sets instead, above 1, for mixture-of-experts models."""
    also: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further fields that the flag sets, above 1."""
    note: str = ""
    note_with_experts: str = ""
    """The note to use where ``with_experts`` applies."""
    note_for: Mapping[str, str] = dataclasses.field(default_factory=dict)
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Example texts, and the field's value for each."""

    @property
    def name(self) -> str:
        """The spelling to show."""
        return self.names[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The flags of one engine version."""

    engine: str
    version: str
    source: str
    profile: str
    launchers: tuple[tuple[str, ...], ...]
    """Words that start the server; its arguments follow."""
    model_by_position: bool
    """Whether the model follows those words without its flag."""
    image: str
    """Part of the names of the engine's container images."""
    image_runs: bool
    """Whether such an image starts the server by itself."""
    variables: str
    """Prefix of the engine's environment variables."""
    defaults: Mapping[str, Any]
    """Fields whose defaults in this version differ from the scenario's."""
    semantics: tuple[str, ...]
    flags: Mapping[str, Flag]
    """Flags by every spelling."""
    environment: Mapping[str, Flag]

    def find(self, name: str) -> Flag | None:
        """Return the flag of a spelling, or of an unambiguous prefix, as argparse accepts it."""
        found = self.flags.get(name)
        if found is not None or not name.startswith("--") or len(name) < 4:
            return found
        near = {f.names: f for spelling, f in self.flags.items() if spelling.startswith(name)}
        current = [f for f in near.values() if not f.older] or list(near.values())
        return current[0] if len(current) == 1 else None


@cache
def load_table(engine: str) -> Table:
    """Load the table of ``vllm`` or ``sglang``."""
    text = Path(__file__).with_name(TABLES[engine]).read_text(encoding="utf-8")
    data = yaml.load(text, Loader=_LOADER)
    flags: dict[str, Flag] = {}
    for flag in (*_mapped(data["mapped"]), *_grouped(data)):
        for name in flag.names:
            if name in flags:
                raise ValueError(f"{TABLES[engine]}: {name} stands in it twice")
            flags[name] = flag
    return Table(
        engine=data["engine"],
        version=str(data["version"]),
        source=data["source"],
        profile=data["profile"],
        launchers=tuple(tuple(words) for words in data["launchers"]),
        model_by_position=data.get("model_by_position", False),
        image=data["image"],
        image_runs=data.get("image_runs", True),
        variables=data["variables"],
        defaults=data.get("defaults", {}),
        semantics=tuple(data.get("semantics", ())),
        flags=flags,
        environment={
            name: Flag(
                names=(name,),
                fate="mapped" if "field" in group else group["gravity"],
                field=group.get("field", ""),
                reads=group.get("reads", ""),
                **_common(group),
            )
            for group in data["environment"]
            for name in group["names"].split()
        },
    )


def _mapped(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Flag]:
    for names, row in rows.items():
        harmless = frozenset(map(_text, row.get("harmless", ())))
        yield Flag(names=tuple(names.split("/")), fate="mapped", **{**row, "harmless": harmless})


def _grouped(data: Mapping[str, Any]) -> Iterator[Flag]:
    for section in ("not_modelled", "no_effect", "older"):
        for group in data[section]:
            for takes in _TAKES:
                for names in group.get(takes, "").split():
                    yield Flag(
                        names=tuple(names.split("/")),
                        fate=group.get("gravity", "no_effect"),
                        takes=takes,
                        older=section == "older",
                        **_common(group),
                    )


def _common(group: Mapping[str, Any]) -> dict[str, Any]:
    harmless = {_text(value) for value in group.get("harmless", ())}
    return {"because": group["because"], "harmless": frozenset(harmless)}


def _text(value: Any) -> str:
    """Return a value as on a command line; YAML turns ``on`` and ``null`` into other values."""
    if value is None:
        return "null"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
