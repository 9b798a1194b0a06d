"""What a scenario keeps off its devices, and what the forecast takes for granted of that."""

from __future__ import annotations

from fractions import Fraction

from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.links import host_link
from costmodels.memory.plan import DeviceMemory
from costmodels.memory.streaming import Offload
from scenarios.schema import Scenario
from sim.errors import ScenarioError

_GIB = 1 << 30


def offload_of(scenario: Scenario, gpu: GpuSpec) -> Offload | None:
    """Where weights and state are; None where all is on the devices. Raises ScenarioError."""
    shares = scenario.offload
    host, disk = shares.weights_host_percent, shares.weights_disk_percent
    in_place = scenario.engine.cpu_offload_gb
    if not (host or disk or shares.kv_host_percent or in_place):
        return None
    if in_place and (host or disk):
        raise ScenarioError(
            "engine.cpu_offload_gb and offload.weights_*_percent both say where weights are"
            "; give one"
        )
    hardware = scenario.hardware
    host_gb = hardware.host_memory_gb
    return Offload(
        link=host_link(
            gpu,
            bytes_per_s=hardware.host_link_bytes_per_s,
            disk_read_bytes_per_s=hardware.disk_read_bytes_per_s,
        ),
        weights_host=_share(host),
        weights_disk=_share(disk),
        kv_host=_share(shares.kv_host_percent),
        cpu_offload_bytes=int(in_place * _GIB),
        host_bytes=None if host_gb is None else int(host_gb * _GIB),
    )


def offload_notes(scenario: Scenario, memory: DeviceMemory) -> tuple[str, ...]:
    """What is off the device, and what is assumed of it, in plain words."""
    notes = []
    host, disk = memory.host_weight_bytes, memory.disk_weight_bytes
    if scenario.engine.cpu_offload_gb and host < int(scenario.engine.cpu_offload_gb * _GIB):
        notes.append(
            f"engine.cpu_offload_gb {scenario.engine.cpu_offload_gb:g} is more than the layers' "
            f"{host / _GIB:.2f} GiB a GPU: all of them are in host memory"
        )
    for size, where in ((host, "in host memory"), (disk, "on disk")):
        if size:
            notes.append(f"{size / _GIB:.2f} GiB of weights a GPU are {where}, streamed every step")
    if memory.host_kv_bytes:
        notes.append(
            f"up to {memory.host_kv_bytes / _GIB:.2f} GiB of keys and values a GPU are in host "
            "memory, streamed every step"
        )
    if host and scenario.hardware.host_memory_gb is None:
        notes.append("the host is taken to have that memory (hardware.host_memory_gb checks it)")
    return tuple(notes)


def _share(percent: float) -> Fraction:
    return Fraction(str(percent)) / 100
