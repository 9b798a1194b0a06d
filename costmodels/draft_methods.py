"""What is known of methods of speculation: ``drafters.yaml``."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from costmodels.datafile import read_data
from costmodels.evidence import Evidence

Method = Literal["draft_model", "eagle", "medusa", "mtp", "ngram", "dflash"]
METHODS: tuple[str, ...] = get_args(Method)


class MethodFacts(NamedTuple):
    """What is known of a method; acceptance rates are those of a draft at each place."""

    title: str
    drafts: int
    acceptance: tuple[tuple[float, ...], ...]
    """By depth, then by rank: of a chain one rate each."""
    evidence: Evidence
    keeps_target: str
    """Whether what is sampled has the target's distribution: yes or no, as reported."""
    keeps_source: str
    async_scheduling: bool
    """Whether vLLM plans ahead of its drafts."""
    heads: int
    layers: int


def method_facts(method: str) -> MethodFacts:
    """A row of ``drafters.yaml``."""
    row = read_data("drafting/drafters.yaml")["methods"][method]
    rates = tuple(tuple(r) if isinstance(r, list) else (r,) for r in row["acceptance"])
    return MethodFacts(
        title=row["title"],
        drafts=row["drafts"],
        acceptance=rates,
        evidence=Evidence(label=row["label"], source=row["source"]),
        keeps_target=row["keeps_target"],
        keeps_source=row["keeps_source"],
        async_scheduling=row["async_scheduling"],
        heads=row.get("heads", 1),
        layers=row.get("layers", 1),
    )
