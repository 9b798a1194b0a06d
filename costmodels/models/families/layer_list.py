"""A model written as a list of layers by kind, for architectures that no checkpoint has.

``model_type: layers`` and ``layers``, a list of ``{count, mixer, ffn}``; a mixer or FFN is its kind
with the fields of the kind's dataclass: ``{kind: sliding, window: 1024, gqa: {heads: 8, ...}}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from costmodels.datafile import find_name
from costmodels.models.families.decoder import Decoder
from costmodels.models.hf_fields import Fields
from costmodels.models.layers.kinds import FFNS, MIXERS
from costmodels.models.spec import LayerGroup

Kind = TypeVar("Kind")
_NUMBERS = ("norms", "all_reduces")


def read_layer_list(fields: Fields) -> Decoder:
    """Read a list of layers. Raises `ScenarioError` for an unknown kind or field, or a value of
    the wrong type."""
    groups = []
    for index, value in enumerate(fields.items("layers")):
        if not isinstance(value, Mapping):
            raise fields.error(f"layers[{index}] must be an object, not {value!r}")
        group = Fields(value, f"{fields.where}: layers[{index}]")
        numbers = {name: int(value[name]) for name in _NUMBERS if name in value}
        groups.append(
            LayerGroup(
                count=group.count("count", default=1),
                mixer=_read(group, "mixer", MIXERS),
                ffn=_read(group, "ffn", FFNS),
                skips_prompt=group.flag("skips_prompt", default=False),
                **numbers,
            )
        )
    if not groups:
        raise fields.error("field layers is missing: a list of layers")
    return Decoder(layers=tuple(groups))


def _read(group: Fields, key: str, kinds: Mapping[str, type[Kind]]) -> Kind | None:
    if group.first(key) is None:
        return None
    part = group.part(key)
    kind = find_name(f"kind of {key}", str(part.first("kind")), {name: name for name in kinds})
    values = {name: value for name, value in part.values.items() if name != "kind"}
    return _build(kinds[kind], values, part)


def _build(kind: type[Kind], values: Mapping[str, Any], part: Fields) -> Kind:
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = {}
    for name, value in values.items():
        if name not in known:
            raise part.error(f"no field {name}; known: {', '.join(known)}")
        if isinstance(value, Mapping):
            inner = MIXERS.get(name)
            if inner is None:
                raise part.error(f"field {name} must be a number, not an object")
            value = _build(inner, value, part)
        elif not isinstance(value, int):
            raise part.error(f"field {name} must be an integer or true or false, not {value!r}")
        given[name] = value
    missing = [
        name
        for name, field in known.items()
        if field.default is dataclasses.MISSING and name not in given
    ]
    if missing:
        raise part.error(f"missing: {', '.join(missing)}")
    return kind(**given)
