"""The API server's costs: what its process works on a request, and on each part of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costmodels.datafile import read_data
from sim.evidence import Evidence, Source

API_COSTS = ("request_s", "prompt_token_s", "part_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerCosts:
    """Seconds of one process; none of them depends on the model."""

    request_s: float
    """On a request, whatever its length."""
    prompt_token_s: float
    part_s: float
    """On one sequence's tokens of one step: they are detokenized and sent together."""
    evidence: Evidence

    def scaled(self, factor: float) -> ApiServerCosts:
        """Return the costs on a host that takes ``factor`` times as long."""
        costs = {name: getattr(self, name) * factor for name in API_COSTS}
        return ApiServerCosts(**costs, evidence=self.evidence)

    def sources(self) -> list[Source]:
        """Return every constant with its label and source."""
        return [
            Source(
                what=f"API server {name}",
                value=getattr(self, name),
                label=self.evidence.label,
                source=self.evidence.source,
            )
            for name in API_COSTS
        ]


def built_in_api_server(profile: str) -> ApiServerCosts:
    """Return the costs beside a built-in engine profile; where it has none, vLLM 0.25's."""
    rows = read_data("engines/api_server.yaml")["profiles"]
    row = rows.get(profile, rows["vllm-0.25"])
    evidence = Evidence(label=row["label"], source=row["source"])
    return api_server_costs(row["constants"], evidence)


def api_server_costs(constants: Mapping[str, Any], evidence: Evidence) -> ApiServerCosts:
    """Return costs from a mapping that has all of `API_COSTS`."""
    costs = {name: float(constants[name]) for name in API_COSTS}
    return ApiServerCosts(**costs, evidence=evidence)
