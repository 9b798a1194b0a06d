"""A model written as a list of layers by kind, for architectures that no checkpoint has.

``model_type: layers`` and ``layers``, a list of ``{count, mixer, ffn}``; a mixer or FFN is its kind
with the fields of the kind's dataclass: ``{kind: sliding, window: 1024, gqa: {heads: 8, ...}}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from costmodels.datafile import find_name
from costmodels.fields import WHOLE, Fields
from costmodels.models.families.decoder import Decoder
from costmodels.models.layers.kinds import FFNS, MIXERS
from costmodels.models.spec import LayerGroup
from sim.errors import shown

Kind = TypeVar("Kind")


def read_layer_list(fields: Fields) -> Decoder:
    """Read a list of layers. Raises `ScenarioError` for an unknown kind or field, or a value of
    the wrong type."""
    groups = []
    for group in fields.children("layers"):
        given = {name: group.read(WHOLE, name) for name in ("norms", "all_reduces")}
        numbers = {name: value for name, value in given.items() if value is not None}
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
    if key not in group:
        return None
    part = group.part(key)
    kind = find_name(f"kind of {key}", str(part.first("kind")), {name: name for name in kinds})
    return _build(kinds[kind], part)


def _build(kind: type[Kind], part: Fields) -> Kind:
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for name, value in part.values.items():
        if name == "kind":
            continue
        if name not in known:
            raise part.error(f"no field {name}; known: {', '.join(known)}")
        if name in MIXERS:
            given[name] = _build(MIXERS[name], part.part(name))
        elif isinstance(value, int):
            given[name] = value
        else:
            raise part.wrong(name, f"must be an integer or true or false, not {shown(value)}")
    missing = [
        name
        for name, field in known.items()
        if field.default is dataclasses.MISSING and name not in given
    ]
    if missing:
        raise part.error(f"missing: {', '.join(missing)}")
    return kind(**given)
