"""Seconds of an exchange between ranks: the links it crosses, each with latency and bandwidth.

A group of ranks lies in one or several fabric domains (NVLink: a node, or a rack). Traffic inside a
domain crosses the fabric, the rest the network; both work at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from costmodels.datafile import find_name, read_data
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.roofline import OperatorSeconds
from costmodels.work import Array, Exchange, Operator
from sim.errors import ScenarioError
from sim.evidence import Evidence, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """Constants of ``links.yaml`` for one device."""

    name: str
    fabric: Mapping[str, float]
    network: Mapping[str, float]
    evidence: Mapping[tuple[str, str], Evidence]

    def sources(self, kinds: tuple[str, ...], *, is_network: bool) -> list[Source]:
        """Return the constants of some kinds of exchange, with labels and sources."""
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
    """Return the constants of a device: its own if it has any, else the generic ones."""
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
    """Price an operator that has an `Exchange`. Raises `ScenarioError` if a link is unknown."""
    fixed_s, work_s = _seconds(operator, gpu, efficiency)
    called = operator.rows > 0
    return OperatorSeconds(
        operator=operator,
        work_s=operator.calls * work_s,
        fixed_s=np.where(called, operator.calls * fixed_s, 0.0),
        compute_bound=np.zeros_like(called),
    )


def _seconds(operator: Operator, gpu: GpuSpec, efficiency: Efficiency) -> tuple[float, Array]:
    """Return the latency of one call, and the time of its bytes."""
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
        # Each domain makes a reduce-scatter and an all-gather, around an all-reduce between
        # domains.
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
    """Return how often a token crosses the fabric and the network, evenly routed, on average.

    In low-latency mode it is once per copy; in throughput mode once per device reached, and once
    per domain reached.
    """
    ranks, copies = exchange.ranks, exchange.copies
    if exchange.mode == "low_latency":
        return copies * (near - 1) / ranks, copies * (1 - near / ranks)
    devices, reached = _distinct(ranks, copies), _distinct(domains, copies)
    return devices * (near - 1) / near, reached * (domains - 1) / domains


def _distinct(places: int, copies: float) -> float:
    """Return the expected number of different places that ``copies`` random copies go to."""
    return float(places * (1 - (1 - 1 / places) ** copies)) if places > 1 else 1.0


def _network(gpu: GpuSpec, ranks: int, near: int) -> float:
    if gpu.network_bytes_per_s is None:
        raise ScenarioError(
            f"{gpu.name} has no known network between nodes: {ranks} ranks that exchange data "
            f"must be in one, and {near} are; set hardware.gpus_per_node if it is larger"
        )
    return gpu.network_bytes_per_s


_FILE = "hardware/links.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """Bandwidths between one device and its host's memory, and of reads from the disk behind it."""

    to_device_bytes_per_s: float
    from_device_bytes_per_s: float
    disk_read_bytes_per_s: float
    label: str
    """Evidence label of the link; the disk's is in `sources`."""
    disk_label: str
    sources: tuple[Source, ...]


def host_link(
    gpu: GpuSpec, *, bytes_per_s: float | None = None, disk_read_bytes_per_s: float | None = None
) -> HostLink:
    """Return the link of a GPU: its datasheet's bandwidth, times the share that copies reach.

    ``bytes_per_s``, each way, and the disk's replace what is on file: they are achievable, not
    peak. Raises `ScenarioError` for a device whose link is not known.
    """
    rows = read_data(_FILE)["host"]
    row = rows.get(gpu.name, rows["generic"])
    constants = rows["generic"]["constants"] | row["constants"]
    disk = _disk(rows["generic"], disk_read_bytes_per_s)
    given = bytes_per_s is not None
    if bytes_per_s is None and gpu.host_link_bytes_per_s is None:
        raise ScenarioError(
            f"{gpu.name} has no known link to its host: set hardware.host_link_bytes_per_s"
        )
    label, source = row["label"], row["source"]
    if given:
        label, source = "assumed", "given: hardware.host_link_bytes_per_s"
    elif label != "measured":  # a share times the datasheet is at most as good as the datasheet
        found = gpu.source_of("host_link_bytes_per_s")
        label, source = found["label"], f"{found['source']}; share of it: {source}"
    ways = []
    for way in ("to_device", "from_device"):
        value = bytes_per_s or gpu.host_link_bytes_per_s * constants[f"{way}_share"]
        ways.append(
            Source(what=f"{gpu.name} host link {way}", value=value, label=label, source=source)
        )
    return HostLink(
        to_device_bytes_per_s=ways[0]["value"],  # type: ignore[arg-type]
        from_device_bytes_per_s=ways[1]["value"],  # type: ignore[arg-type]
        disk_read_bytes_per_s=disk["value"],  # type: ignore[arg-type]
        label=label,
        disk_label=disk["label"],
        sources=(*ways, disk),
    )


def _disk(generic: dict[str, Any], given: float | None) -> Source:
    if given is not None:
        source = "given: hardware.disk_read_bytes_per_s"
        return Source(what="disk reads", value=given, label="assumed", source=source)
    known, value = (
        generic["but"]["disk_read_bytes_per_s"],
        generic["constants"]["disk_read_bytes_per_s"],
    )
    return Source(what="disk reads", value=value, label=known["label"], source=known["source"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLink:
    """The link that joins the stages of a pipeline if it is not the GPUs' own network."""

    name: str
    latency_s: float
    """Latency of one hop, one way."""
    bytes_per_s: float
    client_hops: int = 0
    """Hops beside those between stages: to the first, and back from the last."""
    label: str = "assumed"
    source: str = "given"

    def sources(self) -> list[Source]:
        """Return the link's two numbers as sources."""
        values = {"latency_s": self.latency_s, "bytes_per_s": self.bytes_per_s}
        return [
            Source(
                what=f"stage link {self.name} {what}",
                value=value,
                label=self.label,
                source=self.source,
            )
            for what, value in values.items()
        ]


def stage_link(
    name: str | None, *, latency_s: float | None = None, bytes_per_s: float | None = None
) -> StageLink | None:
    """Return a link of ``links.yaml`` by name; given numbers replace its own.

    Without a name both numbers make a link; None if neither is given. Raises `ScenarioError` for an
    unknown name, and for one number alone.
    """
    if name is None:
        if latency_s is None and bytes_per_s is None:
            return None
        if latency_s is None or bytes_per_s is None:
            raise ScenarioError(
                "a stage link needs both hardware.stage_link_latency_s and "
                "hardware.stage_link_bytes_per_s, or a name: hardware.stage_link"
            )
        return StageLink(name="given", latency_s=latency_s, bytes_per_s=bytes_per_s)
    rows = read_data(_FILE)["named"]
    name = find_name("stage link", name, {row: row for row in rows})
    row = rows[name]
    own = latency_s is None and bytes_per_s is None
    return StageLink(
        name=name,
        latency_s=row["latency_s"] if latency_s is None else latency_s,
        bytes_per_s=row["bytes_per_s"] if bytes_per_s is None else bytes_per_s,
        client_hops=row["client_hops"],
        label=row["label"] if own else "assumed",
        source=row["source"] if own else "given",
    )
