"""Seconds of an exchange between ranks: the links it crosses, each with latency and bandwidth.

A group of ranks lies in one or several fabric domains (NVLink: a node, or a rack). What stays
inside one crosses the fabric, the rest the network; both work at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from costmodels.datafile import read_data
from costmodels.efficiency import Efficiency
from costmodels.evidence import Evidence, Source
from costmodels.gpu_spec import GpuSpec
from costmodels.roofline import OperatorSeconds
from costmodels.work import Array, Exchange, Operator
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """Constants of ``links.yaml`` for one device."""

    name: str
    fabric: Mapping[str, float]
    network: Mapping[str, float]
    evidence: Mapping[tuple[str, str], Evidence]

    def sources(self, kinds: tuple[str, ...], *, is_network: bool) -> list[Source]:
        """The constants of some kinds of exchange, with labels and sources."""
        links = ("fabric", "network") if is_network else ("fabric",)
        return [
            Source(
                what=f"{self.name} {link} {constant}",
                value=getattr(self, link)[constant],
                label=evidence.label,
                source=evidence.source,
            )
            for (link, constant), evidence in self.evidence.items()
            if link in links and constant.startswith(kinds)
        ]


@cache
def load_links(gpu_name: str) -> LinkConstants:
    """The constants of a device: its own where it has any, else the generic ones."""
    content = read_data("hardware/links.yaml")
    values: dict[str, dict[str, float]] = {}
    evidence: dict[tuple[str, str], Evidence] = {}
    for link in ("fabric", "network"):
        values[link] = {}
        for name in ("generic", gpu_name):
            row = content[link].get(name)
            if row is None:
                continue
            for constant, value in row["constants"].items():
                known = row.get("but", {}).get(constant, row)
                values[link][constant] = float(value)
                label = Evidence(label=known["label"], source=known["source"])
                evidence[link, constant] = label
    return LinkConstants(
        name=gpu_name, fabric=values["fabric"], network=values["network"], evidence=evidence
    )


def exchange_seconds(operator: Operator, gpu: GpuSpec, efficiency: Efficiency) -> OperatorSeconds:
    """Price an operator that has an `Exchange`. Raises `ScenarioError` where a link is unknown."""
    fixed_s, work_s = _seconds(operator, gpu, efficiency)
    called = operator.rows > 0
    return OperatorSeconds(
        operator=operator,
        work_s=operator.calls * work_s,
        fixed_s=np.where(called, operator.calls * fixed_s, 0.0),
        compute_bound=np.zeros_like(called),
    )


def _seconds(operator: Operator, gpu: GpuSpec, efficiency: Efficiency) -> tuple[float, Array]:
    """Latency, and what the bytes of one call take."""
    exchange = operator.exchange
    assert exchange is not None
    ranks, near = exchange.ranks, min(exchange.in_node, exchange.ranks)
    domains = -(-ranks // near)
    links = load_links(gpu.name)
    fabric = gpu.peer_bytes_per_s
    if fabric is None and near > 1:
        raise ScenarioError(f"{gpu.name} has no known device-to-device link: one rank alone")
    network = _network(gpu, ranks, near) if domains > 1 else 0.0
    fabric_bytes_per_s = fabric or network

    def fabric_s(kind: str, num_bytes: Array) -> Array:
        seconds: Array = num_bytes / (fabric_bytes_per_s * links.fabric[f"{kind}_share"])
        return seconds

    def network_s(kind: str, num_bytes: Array) -> Array:
        seconds: Array = num_bytes / (network * links.network[f"{kind}_share"])
        return seconds

    if operator.kind == "all_reduce":
        # In each domain a reduce-scatter and an all-gather, around an all-reduce between domains.
        whole = operator.comm_bytes * ranks / (2 * (ranks - 1))
        inside = 2 * (near - 1) / near * whole
        between = 2 * (domains - 1) / domains * whole / near
        fixed_s = efficiency.all_reduce_fixed_s + 2 * (near - 1) * efficiency.all_reduce_hop_s
        inside_s: Array = inside / (fabric_bytes_per_s * efficiency.all_reduce_bandwidth)
        if domains == 1:
            return fixed_s, inside_s
        fixed_s += links.network["gather_fixed_s"]
        fixed_s += 2 * (domains - 1) * links.network["gather_hop_s"]
        return fixed_s, inside_s + network_s("gather", between)
    if operator.kind in ("all_gather", "reduce_scatter"):
        fixed_s = links.fabric["gather_fixed_s"] + (near - 1) * links.fabric["gather_hop_s"]
        if domains == 1:
            return fixed_s, fabric_s("gather", operator.comm_bytes)
        whole = operator.comm_bytes * ranks / (ranks - 1)
        between = (domains - 1) / domains * whole / near
        fixed_s += links.network["gather_fixed_s"]
        fixed_s += (domains - 1) * links.network["gather_hop_s"]
        crossing_s = network_s("gather", between)
        return fixed_s, np.maximum(fabric_s("gather", operator.comm_bytes), crossing_s)
    if operator.kind == "send":
        if near > 1:
            return links.fabric["send_fixed_s"], fabric_s("send", operator.comm_bytes)
        return links.network["send_fixed_s"], network_s("send", operator.comm_bytes)
    kind = f"{exchange.mode}_{operator.name}"
    by_fabric, by_network = travelled(exchange, near, domains)
    token_bytes = operator.comm_bytes / exchange.copies
    if domains == 1:
        return links.fabric[f"{kind}_fixed_s"], fabric_s(kind, by_fabric * token_bytes)
    fixed_s = links.network[f"{kind}_fixed_s"]
    crossing_s = network_s(kind, by_network * token_bytes)
    return fixed_s, np.maximum(fabric_s(kind, by_fabric * token_bytes), crossing_s)


def travelled(exchange: Exchange, near: int, domains: int) -> tuple[float, float]:
    """How often a token crosses the fabric and the network, evenly routed, on average.

    Low latency: once a copy. Throughput: once a device reached, and once a domain reached.
    """
    ranks, copies = exchange.ranks, exchange.copies
    if exchange.mode == "low_latency":
        return copies * (near - 1) / ranks, copies * (1 - near / ranks)
    devices, reached = _distinct(ranks, copies), _distinct(domains, copies)
    return devices * (near - 1) / near, reached * (domains - 1) / domains


def _distinct(places: int, copies: float) -> float:
    """Expected different places among ``places`` that ``copies`` random copies go to."""
    return float(places * (1 - (1 - 1 / places) ** copies)) if places > 1 else 1.0


def _network(gpu: GpuSpec, ranks: int, near: int) -> float:
    if gpu.network_bytes_per_s is None:
        raise ScenarioError(
            f"{gpu.name} has no known network between nodes: {ranks} ranks that exchange data "
            f"must be in one, and {near} are; set hardware.gpus_per_node if it is larger"
        )
    return gpu.network_bytes_per_s
