"""Named generator settings from presets.yaml, each number with its evidence and source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from sim.errors import ScenarioError
from workloads.arrivals import Arrivals
from workloads.generate import GeneratorSpec
from workloads.lengths import Gamma, Lengths, Lognormal

# libyaml's loader is about ten times faster; it is missing from some builds of PyYAML.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A workload by name. Lengths and arrivals only: no prefixes, turns or rate drift."""

    name: str
    description: str
    arrivals: Arrivals
    prompt_tokens: Lengths
    output_tokens: Lengths
    evidence: dict[str, str]
    """``arrivals.cv`` -> ``fitted``: a label for every number or block of numbers."""
    sources: dict[str, str]
    """The same keys -> where it comes from."""
    published: dict[str, float]
    """``prompt_tokens_p50`` -> the statistic of the source data, named as `describe` does."""
    tolerance: dict[str, float]
    """The same keys -> relative error within which the preset reproduces it."""


def preset_names() -> list[str]:
    """Names of all presets."""
    return list(_load())


def preset(name: str) -> Preset:
    """The preset of that name. Raises ScenarioError, listing the names, where there is none."""
    presets = _load()
    if name not in presets:
        close = get_close_matches(name, presets, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ScenarioError(f"unknown preset {name!r}; {hint}known: {', '.join(presets)}")
    return presets[name]


def preset_spec(
    name: str,
    *,
    num_requests: int | None = None,
    duration_s: float | None = None,
    requests_per_s: float | None = None,
    max_concurrency: int | None = None,
) -> GeneratorSpec:
    """What to generate for a preset: its size, and optionally another rate (then an assumed one).

    Raises ScenarioError as `preset` and `GeneratorSpec` do.
    """
    chosen = preset(name)
    arrivals = chosen.arrivals
    if requests_per_s is not None:
        arrivals = replace(arrivals, requests_per_s=requests_per_s)
    return GeneratorSpec(
        arrivals=arrivals,
        prompt_tokens=chosen.prompt_tokens,
        output_tokens=chosen.output_tokens,
        num_requests=num_requests,
        duration_s=duration_s,
        max_concurrency=max_concurrency,
        source=f"preset {name}",
    )


@lru_cache(maxsize=1)
def _load() -> dict[str, Preset]:
    text = Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")
    return {name: _preset(name, block) for name, block in yaml.load(text, Loader=_LOADER).items()}


def _preset(name: str, block: dict[str, Any]) -> Preset:
    labelled = {f"arrivals.{key}": number for key, number in block["arrivals"].items()}
    lengths = {key: block[key] for key in ("prompt_tokens", "output_tokens")}
    published = {
        f"{key}_{statistic}": (value, block["tolerance"])
        for key, block in lengths.items()
        for statistic, value in block["published"].items()
    }
    return Preset(
        name=name,
        description=block["description"],
        arrivals=Arrivals(**{key: number["value"] for key, number in block["arrivals"].items()}),
        prompt_tokens=_lengths(block["prompt_tokens"]),
        output_tokens=_lengths(block["output_tokens"]),
        evidence={key: item["evidence"] for key, item in (labelled | lengths).items()},
        sources={key: item["source"] for key, item in (labelled | lengths).items()},
        published={key: value for key, (value, _) in published.items()},
        tolerance={key: tolerance for key, (_, tolerance) in published.items()},
    )


def _lengths(block: dict[str, Any]) -> Lengths:
    lognormals = (Lognormal(weight=w, mu=m, sigma=s) for w, m, s in block.get("lognormal", ()))
    gammas = (Gamma(weight=w, shape=k, scale_tokens=t) for w, k, t in block.get("gamma", ()))
    return Lengths(
        components=(*lognormals, *gammas),
        min_tokens=block["min_tokens"],
        max_tokens=block["max_tokens"],
    )
