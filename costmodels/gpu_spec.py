"""Accelerators: peaks, memory and links of one device, each number with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodels.datafile import find_name, read_data
from costmodels.evidence import Evidence, Source

_NUMBERS = (
    "bf16_flop_per_s",
    "fp8_flop_per_s",
    "int8_op_per_s",
    "fp4_flop_per_s",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "fabric_bytes_per_s",
    "host_link_bytes_per_s",
    "tdp_w",
    "num_sms",
)
_OPTIONAL = ("int4_op_per_s", "network_bytes_per_s", "fabric_gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One device. Peaks are dense; None where the device has no such unit or none is published."""

    name: str
    bf16_flop_per_s: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    fp8_flop_per_s: float | None = None
    int8_op_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    int4_op_per_s: float | None = None
    """Integers of 4 bits: units of Turing to Ada alone."""
    fabric_bytes_per_s: float | None = None
    """Device-to-device, per direction; None: devices talk over the host link."""
    host_link_bytes_per_s: float | None = None
    tdp_w: float | None = None
    num_sms: int | None = None
    """Streaming multiprocessors (compute units), over which attention is spread."""
    network_bytes_per_s: float | None = None
    """Between fabric domains, per device and direction; None: not known."""
    fabric_gpus: int = 8
    """Devices of one fabric domain: a node, or a rack where NVLink spans it."""
    confidence: str = ""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """Of each number by its field name."""

    @property
    def peer_bytes_per_s(self) -> float | None:
        """The bandwidth devices of one node exchange data at, per direction."""
        return self.fabric_bytes_per_s or self.host_link_bytes_per_s

    def source_of(self, number: str) -> Source:
        """One number with its label and source, for reports."""
        evidence = self.evidence.get(number, Evidence(label="assumed", source="given by the user"))
        return Source(
            what=f"{self.name} {number}",
            value=getattr(self, number),
            label=evidence.label,
            source=evidence.source,
        )


def gpu_names() -> list[str]:
    """The names of the built-in devices."""
    return list(read_data("gpus.yaml")["gpus"])


def load_gpu(name: str) -> GpuSpec:
    """A built-in device by name or alias, case ignored (``H200-SXM``, ``h200``).

    Raises `ScenarioError` for an unknown name, with near matches.
    """
    rows = read_data("gpus.yaml")["gpus"]
    spellings: dict[str, str] = {}
    for canonical, row in rows.items():
        for spelling in (canonical, *row.get("aliases", ())):
            spellings[spelling] = canonical
    canonical = find_name("GPU", name, spellings)
    row = rows[canonical]
    exceptions = row.get("but", {})
    evidence = {}
    for number in (*_NUMBERS, *_OPTIONAL):
        found = exceptions.get(number, row)
        evidence[number] = Evidence(label=found["evidence"], source=found["source"])
    return GpuSpec(
        name=canonical,
        confidence=row["confidence"],
        evidence=evidence,
        **{number: row[number] for number in _NUMBERS},
        **{number: row[number] for number in _OPTIONAL if number in row},
    )
