"""Presets: named generator settings of presets.yaml, each number with its evidence and source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from sim.errors import ScenarioError
from workloads.generator import plain
from workloads.generator.arrivals import ALL_AT_ONCE, Arrivals
from workloads.generator.rate_changes import Drift
from workloads.generator.spec import GeneratorSpec, RequestKind, Users

# libyaml's loader is about ten times faster; it is missing from some builds of PyYAML.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_STRUCTURE = ("system_prompts", "documents", "sessions", "continuations")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preset:
    """The settings of a named workload."""

    name: str
    description: str
    arrivals: Arrivals
    kinds: tuple[RequestKind, ...]
    block_tokens: int
    evidence: dict[str, str]
    """Dotted key, such as ``arrivals.cv``, -> evidence label of the number or block of numbers."""
    sources: dict[str, str]
    """Dotted key -> source of the number or block of numbers."""
    published: dict[str, float]
    """Statistic, such as ``prompt_tokens_p50``, -> value in the source data, which the workload
    reproduces. Names are those of `describe`, if it has the statistic."""
    tolerance: dict[str, float]
    """Statistic -> relative error within which the workload reproduces it."""
    published_of_blocks: dict[str, dict[str, float]]
    """Block, such as ``output_tokens``, -> published statistics (``p50``, ...) of that distribution
    alone, with their ``tolerance``."""


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return list(_blocks())


@lru_cache(maxsize=64)
def preset(name: str) -> Preset:
    """Return the preset of that name. Raises ScenarioError, listing the names, if there is none."""
    blocks = _blocks()
    if name not in blocks:
        close = get_close_matches(name, blocks, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ScenarioError(f"unknown preset {name!r}; {hint}known: {', '.join(blocks)}")
    return _preset(name, blocks[name])


def preset_description(name: str) -> str:
    """Return a description of the preset, a few lines of text."""
    text: str = _blocks()[name]["description"]
    return text


def preset_spec(
    name: str,
    *,
    num_requests: int | None = None,
    duration_s: float | None = None,
    requests_per_s: float | None = None,
    max_concurrency: int | None = None,
    users: Users | None = None,
    drift: Drift | None = None,
) -> GeneratorSpec:
    """Return the specification of a preset's workload with a size, and optional changes.

    The changes are another rate, users instead of a rate, or another drift; they count as assumed.
    Raises ScenarioError as `preset` and `GeneratorSpec` do, and for users together with a rate.
    """
    chosen = preset(name)
    arrivals = chosen.arrivals
    if requests_per_s is not None:
        if arrivals.process == ALL_AT_ONCE:
            raise ScenarioError(f"preset {name} sends all at once: it takes no rate")
        arrivals = replace(arrivals, requests_per_s=requests_per_s)
    if users is not None:
        if requests_per_s is not None:
            raise ScenarioError("users set their own rate: give users or a rate, not both")
        arrivals = Arrivals(process=ALL_AT_ONCE)
    if drift is not None:
        arrivals = replace(arrivals, drift=drift)
    return GeneratorSpec(
        arrivals=arrivals,
        kinds=chosen.kinds,
        num_requests=num_requests,
        duration_s=duration_s,
        max_concurrency=max_concurrency,
        users=users,
        block_tokens=chosen.block_tokens,
        source=f"preset {name}",
    )


@lru_cache(maxsize=1)
def _blocks() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")
    blocks: dict[str, dict[str, Any]] = yaml.load(text, Loader=_LOADER)
    return blocks


def _preset(name: str, block: dict[str, Any]) -> Preset:
    kinds = block.get("kinds")
    labeled = dict(_labeled(block))
    claims = {key: (c["value"], c["tolerance"]) for key, c in block.get("published", {}).items()}
    if kinds is None and not any(key in block for key in _STRUCTURE):
        claims |= _claims_of_lengths(block)  # without structure, lengths stay as drawn
    return Preset(
        name=name,
        description=block["description"],
        arrivals=_arrivals(block["arrivals"]),
        kinds=(
            (plain.request_kind(block),)
            if kinds is None
            else tuple(
                plain.request_kind(kind, share=kind["share"]["value"], name=kind_name)
                for kind_name, kind in kinds.items()
            )
        ),
        block_tokens=block.get("block_tokens", 16),
        evidence={key: item["evidence"] for key, item in labeled.items()},
        sources={key: item["source"] for key, item in labeled.items()},
        published={key: value for key, (value, _) in claims.items()},
        tolerance={key: tolerance for key, (_, tolerance) in claims.items()},
        published_of_blocks={
            key: {**item["published"], "tolerance": item["tolerance"]}
            for key, item in labeled.items()
            if "published" in item
        },
    )


def _arrivals(block: dict[str, Any]) -> Arrivals:
    numbers = {key: item["value"] for key, item in block.items() if "value" in item}
    return Arrivals(
        **numbers,
        clients=plain.clients(block["clients"]) if "clients" in block else None,
        on_off=plain.on_off(block["on_off"]) if "on_off" in block else None,
        drift=plain.drift(block["drift"]) if "drift" in block else None,
    )


def _labeled(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every number, or block of numbers, that carries a label, as (dotted key, block)."""
    for key, item in block.items():
        if key == "published" or not isinstance(item, dict):
            continue
        if "evidence" in item:
            yield f"{prefix}{key}", item
        else:
            yield from _labeled(item, f"{prefix}{key}.")


def _claims_of_lengths(block: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {
        f"{name}_{statistic}": (value, block[key]["tolerance"])
        for name, key in (("prompt_tokens", "input_tokens"), ("output_tokens", "output_tokens"))
        for statistic, value in block[key]["published"].items()
    }
