"""The serving engine's own costs: host time, CUDA graph sizes, memory it keeps for itself."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodels.datafile import find_name, read_data
from costmodels.engines.launches import (
    Launches,
    eager_launches,
    piecewise_launches,
)
from costmodels.models.spec import ModelSpec
from costmodels.tables.kinds import TableKind
from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from sim.evidence import Evidence, Source

LAUNCH_TERMS = ("launch_s", "called_launch_s", "graph_replay_s", "experts_call_s")
"""Host terms of the counts of `costmodels.engines.launches.Launches`."""
HOST_TERMS = (
    "schedule_base_s",
    "schedule_per_running_s",
    "update_base_s",
    "update_per_seq_s",
    "driver_s",
    "full_graph_launch_s",
    *LAUNCH_TERMS,
    "full_graph_delay_s",
    "other_delay_s",
    "prefill_tail_s",
)
SPREADS = ("piecewise_spread", "eager_spread", "eager_moe_spread")
_GRAPH_KEYS = ("first_sizes", "fine_step", "fine_limit", "coarse_step", "coarse_limit")
_MEMORY_TERMS = (
    "runtime_bytes",
    "dense_sampler_bytes_per_logit",
    "moe_sampler_bytes_per_logit",
    "hidden_copies_beside_sampler",
    "expert_buffers_kept",
    "all_reduce_fusion_bytes",
)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine version on one kind of host. All host terms are seconds of host time."""

    name: str
    engine: str
    version: str
    async_scheduling: bool
    """Whether the next step is planned before the last one is read, unless a server is told
    otherwise."""
    full_graphs: bool
    """Whether steps of decodes alone replay one graph, rather than one between attention calls."""
    piecewise_graphs: bool
    """Whether steps with prefill replay graphs between attention calls, where they fit one."""
    sparse_latent_cache: str
    """Format of the cache of sparse latent attention where none is asked for; ``auto``: the
    model's."""
    gpu_memory_utilization: float
    """Share of the device that a server takes unless it is told otherwise."""
    schedule_base_s: float
    schedule_per_running_s: float
    update_base_s: float
    update_per_seq_s: float
    driver_s: float
    """The engine loop around schedule and update, once per step."""
    full_graph_launch_s: float
    """Launch time of a decode-only step that replays one CUDA graph."""
    launch_s: float
    """One kernel launched from compiled code, in a step that no graph holds."""
    called_launch_s: float
    """One kernel launched from the engine's Python around attention."""
    graph_replay_s: float
    """One replay of a graph between attention."""
    experts_call_s: float
    """One call of the engine's Python around experts."""
    full_graph_delay_s: float
    """End of scheduling to first kernel; ``other_delay_s`` for the other two launch modes."""
    other_delay_s: float
    prefill_tail_s: float
    """A step with prefill ends at least this long after its last launch."""
    piecewise_spread: tuple[float, ...]
    """Spread of launch times around their mean: quantiles at equal steps from 0 to 1, divided by
    the mean. The next two fields have that of eager launches of dense models, and of models with
    experts."""
    eager_spread: tuple[float, ...]
    eager_moe_spread: tuple[float, ...]
    kernel_rules: str
    """The version of vLLM by whose rules kernels are chosen: its own, or of another engine the one
    whose choice is nearest."""
    kernels: Mapping[TableKind, str]
    """The kernel that the engine runs, by kind of operator, where several are measured."""
    between_passes_s: float
    """GPU time per step of the engine's own kernels and copies, without the model's. Constants
    fitted to whole steps include it in their fixed times."""
    graph_sizes: tuple[int, ...]
    """Token counts with a captured graph, ascending; smaller batches are padded up."""
    graph_limit_by_type: Mapping[str, int]
    """The largest captured count of types of models that have their own."""
    runtime_bytes: int
    dense_sampler_bytes_per_logit: int
    moe_sampler_bytes_per_logit: int
    hidden_copies_beside_sampler: int
    """Copies of a full step's hidden states that are alive while the start-up profile samples."""
    expert_buffers_kept: int
    """Whether the buffers of routed experts stay from the start-up profile on: 0 or 1."""
    all_reduce_fusion_bytes: int
    """What all-reduces of tensor parallelism keep, beside NCCL and the custom all-reduce."""
    dense_runner_types: tuple[str, ...]
    """Types of models with experts that the runner of dense ones serves."""
    host_evidence: Evidence
    graph_evidence: Evidence
    memory_evidence: Evidence
    kernel_evidence: Evidence

    def launches_s(self, launches: Launches) -> float:
        """Return the host time of launching layers, in seconds."""
        return (
            launches.compiled * self.launch_s
            + launches.called * self.called_launch_s
            + launches.graphs * self.graph_replay_s
            + launches.calls * self.experts_call_s
        )

    def piecewise_launch_s(self, model: ModelSpec) -> float:
        """Return the mean launch time of a step of ``model`` with prefill that fits a graph."""
        return self.full_graph_launch_s + self.launches_s(piecewise_launches(model))

    def eager_launch_s(self, model: ModelSpec, experts: str = "", ranks: int = 1) -> float:
        """Return the mean launch time of a step of ``model`` beyond the largest graph; the options
        are those of `costmodels.engines.launches.eager_launches`."""
        return self.full_graph_launch_s + self.launches_s(eager_launches(model, experts, ranks))

    def sampler_bytes_per_logit(self, model: ModelSpec) -> int:
        """Return the bytes a logit of the start-up profile's sampling, by the runner that serves
        ``model``."""
        is_hybrid = any(state.fixed and not state.endless for state, _ in model.states)
        is_old = is_hybrid or (
            model.num_moe_layers and model.model_type not in self.dense_runner_types
        )
        return self.moe_sampler_bytes_per_logit if is_old else self.dense_sampler_bytes_per_logit

    def graphs_for(self, max_num_seqs: int) -> tuple[int, ...]:
        """Return the sizes captured with this ``max_num_seqs``: none above twice that."""
        return tuple(size for size in self.graph_sizes if size <= 2 * max_num_seqs)

    def sources(self) -> list[Source]:
        """Return every constant with its label and source."""
        terms = [(term, self.host_evidence) for term in HOST_TERMS]
        terms += [(spread, self.host_evidence) for spread in SPREADS]
        terms.append(("graph_sizes", self.graph_evidence))
        terms.append(("between_passes_s", self.kernel_evidence))
        terms += [(term, self.memory_evidence) for term in _MEMORY_TERMS]
        return [
            Source(
                what=f"{self.name} {term}",
                value=getattr(self, term),
                label=evidence.label,
                source=evidence.source,
            )
            for term, evidence in terms
        ]


def profile_names() -> list[str]:
    """Return the names of the built-in engine profiles."""
    return list(read_data("engines/engine_profile.yaml")["profiles"])


def is_known_profile(name: str) -> bool:
    """Return whether a built-in profile has this name or alias."""
    return name.casefold() in {spelling.casefold() for spelling in _spellings()}


def nearest_profile(name: str, version: str) -> tuple[str, str]:
    """Return the profile of the engine of profile ``name`` that is nearest to ``version``, and a
    note that says so where it is not of that minor version (empty: it is).

    Raises `ScenarioError` for a version that is not like 0.11 or v0.19.1.
    """
    rows = read_data("engines/engine_profile.yaml")["profiles"]
    wanted = _minor(version)
    if wanted is None:
        raise ScenarioError(f"engine.version {version!r} is no version: write it as 0.11 or 0.19.1")
    engine = _whole(rows, find_name("engine profile", name, _spellings()))["engine"]
    known: dict[int, str] = {}
    for spelling, canonical in _spellings().items():
        minor = _minor(spelling.rpartition("-")[2])
        if minor is not None and _whole(rows, canonical)["engine"] == engine:
            known[minor] = canonical
    # Of two as near, the newer: most of what changes in an engine stays.
    best = max(known, key=lambda minor: (-abs(minor - wanted), minor))
    if best == wanted:
        return known[best], ""
    return known[best], (
        f"there is no profile of {engine} {version}: the nearest, {known[best]}, stands for it "
        "(scheduler defaults, graph sizes, memory at start-up)"
    )


def _minor(version: str) -> int | None:
    """Return a version as a number that grows with it, by a thousand from one major version to the
    next."""
    found = _VERSION.match(version.strip())
    return None if found is None else 1000 * int(found[1]) + int(found[2])


def _spellings() -> dict[str, str]:
    return {
        spelling: canonical
        for canonical, row in read_data("engines/engine_profile.yaml")["profiles"].items()
        for spelling in (canonical, *row.get("aliases", ()))
    }


def load_profile(name: str = "vllm-0.25") -> EngineProfile:
    """Return a built-in engine profile by name or alias. Raises `ScenarioError` for an unknown
    name."""
    rows = read_data("engines/engine_profile.yaml")["profiles"]
    canonical = find_name("engine profile", name, _spellings())
    row = _whole(rows, canonical)
    spreads = row["host"]["spreads"]
    return EngineProfile(
        name=canonical,
        engine=row["engine"],
        version=row["version"],
        **row["defaults"],
        graph_sizes=_graph_sizes(**{k: row["graphs"][k] for k in _GRAPH_KEYS}),
        graph_limit_by_type=row["graphs"]["limit_by_type"],
        host_evidence=_evidence(row["host"]),
        graph_evidence=_evidence(row["graphs"]),
        kernel_rules=row["kernels"].get("rules", row["version"]),
        kernels=row["kernels"]["names"],
        kernel_evidence=_evidence(row["kernels"]),
        **row["kernels"]["constants"],
        memory_evidence=_evidence(row["memory"]),
        **row["host"]["constants"],
        piecewise_spread=tuple(spreads["piecewise_spread"]),
        eager_spread=tuple(spreads["eager_spread"]),
        eager_moe_spread=tuple(spreads["eager_moe_spread"]),
        **row["memory"]["constants"],
        dense_runner_types=tuple(row["memory"]["dense_runner_types"]),
    )


def _whole(rows: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a profile's content, over that of the profile it extends."""
    row = rows[name]
    return _over(_whole(rows, row["extends"]), row) if "extends" in row else dict(row)


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in changes.items():
        inner = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _over(found[key], value) if inner else value
    return found


def scale_host(profile: EngineProfile, factor: float) -> EngineProfile:
    """Return the engine on another host: 1.2 is one that takes 20% longer, 0.5 one twice as fast.

    Raises `ScenarioError` for a negative factor.
    """
    if not 0 <= factor < math.inf:
        raise ScenarioError(f"host_speed_factor must be a number from 0 up, not {factor!r}")
    scaled = {term: getattr(profile, term) * factor for term in HOST_TERMS}
    return replace(profile, **scaled)


def in_cudagraph_mode(profile: EngineProfile, mode: str) -> EngineProfile:
    """Return the engine with graphs as vLLM's ``cudagraph_mode`` has them."""
    return replace(
        profile,
        full_graphs=mode.startswith("FULL"),
        piecewise_graphs=mode.endswith("PIECEWISE"),
    )


def capture_up_to(profile: EngineProfile, tokens: int) -> EngineProfile:
    """Return the engine with graphs up to ``tokens``: its own sizes, then more at its last
    spacing."""
    sizes = profile.graph_sizes
    further = range(sizes[-1], tokens + 1, sizes[-1] - sizes[-2])[1:]
    return replace(profile, graph_sizes=(*(size for size in sizes if size <= tokens), *further))


def quantile(spread: tuple[float, ...], draw: float) -> float:
    """Return the value at ``draw`` (0 to 1) of a quantile table with equal steps, interpolated."""
    place = draw * (len(spread) - 1)
    below = min(int(place), len(spread) - 2)
    return spread[below] + (place - below) * (spread[below + 1] - spread[below])


def padded_size(tokens: int, graph_sizes: tuple[int, ...]) -> int:
    """Return the graph size that a batch of ``tokens`` is padded to; above the largest,
    ``tokens`` itself."""
    place = bisect_left(graph_sizes, tokens)
    return graph_sizes[place] if place < len(graph_sizes) else tokens


def padded_sizes(tokens: Int64, graph_sizes: tuple[int, ...]) -> Float64:
    """Return each token count padded as by `padded_size`: float64 ``[n]``. A count of 0 stays 0."""
    if not graph_sizes:
        return tokens.astype(np.float64)
    graphs = np.array(graph_sizes)
    place = np.minimum(np.searchsorted(graphs, tokens), graphs.size - 1)
    in_graph = (tokens > 0) & (tokens <= graphs[-1])
    return np.where(in_graph, graphs[place], tokens).astype(np.float64)


def _graph_sizes(
    first_sizes: list[int], fine_step: int, fine_limit: int, coarse_step: int, coarse_limit: int
) -> tuple[int, ...]:
    fine = range(fine_step, fine_limit + 1, fine_step)
    coarse = range(fine_limit + coarse_step, coarse_limit + 1, coarse_step)
    return (*first_sizes, *fine, *coarse)


def _evidence(block: dict[str, str]) -> Evidence:
    return Evidence(label=block["label"], source=block["source"])
