"""Accelerators: peaks, memory and links of one device, each number with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from costmodels.datafile import read_yaml_object
from costmodels.fields import COUNT, POSITIVE, TEXT, Fields
from costmodels.hardware.gpu_names import find_gpu, gpu_rows
from sim.errors import ScenarioError
from sim.evidence import LABELS, Evidence, Source

GPU_FILE = "gpu.yaml"
"""Beside tables of a device that is not built in: its description."""
GIB = 1 << 30

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
_NEEDED = ("bf16_flop_per_s", "hbm_bytes", "hbm_bytes_per_s")
_OPTIONAL = ("int4_op_per_s", "network_bytes_per_s", "fabric_gpus")
_NODE_GPUS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One device. Peaks are dense; None if the device has no such unit or none is published."""

    name: str
    bf16_flop_per_s: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    fp8_flop_per_s: float | None = None
    int8_op_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    int4_op_per_s: float | None = None
    """Peak of 4-bit integers, which only Turing to Ada have units for."""
    fabric_bytes_per_s: float | None = None
    """Device-to-device bandwidth per direction; None: devices talk over the host link."""
    host_link_bytes_per_s: float | None = None
    tdp_w: float | None = None
    num_sms: int | None = None
    """Streaming multiprocessors (compute units), over which attention is spread."""
    network_bytes_per_s: float | None = None
    """Bandwidth between fabric domains, per device and direction; None: not known."""
    fabric_gpus: int = _NODE_GPUS
    """Devices per fabric domain: a node, or a rack if NVLink spans it."""
    confidence: str = ""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """Evidence of each number by its field name."""

    @property
    def peer_bytes_per_s(self) -> float | None:
        """Bandwidth at which devices of one node exchange data, per direction."""
        return self.fabric_bytes_per_s or self.host_link_bytes_per_s

    def source_of(self, number: str) -> Source:
        """Return one number with its label and source, for reports."""
        evidence = self.evidence.get(number, Evidence(label="assumed", source="given by the user"))
        return Source(
            what=f"{self.name} {number}",
            value=getattr(self, number),
            label=evidence.label,
            source=evidence.source,
        )


def gpu_names() -> list[str]:
    """Return the names of the built-in devices."""
    return list(gpu_rows())


def load_gpu(name: str) -> GpuSpec:
    """Return a built-in device by a name that `find_gpu` knows (``H200-SXM``, ``NVIDIA H200``,
    ``p5en.48xlarge``), or a file's.

    Raises `ScenarioError` for an unknown name, with near matches, and for a file (.yaml) that does
    not describe a device, naming the field.
    """
    if name.endswith((".yaml", ".yml")):
        return _load_file(Path(name))
    found = find_gpu(name)
    gpu = _built_in(found.name)
    if found.gpus_per_node is None:
        return gpu
    # A rack that NVLink spans holds several nodes.
    domain = gpu.fabric_gpus if gpu.fabric_gpus > _NODE_GPUS else found.gpus_per_node
    network = found.network_bytes_per_s or gpu.network_bytes_per_s
    return replace(gpu, fabric_gpus=domain, network_bytes_per_s=network)


def _built_in(name: str) -> GpuSpec:
    row = gpu_rows()[name]
    exceptions = row.get("but", {})
    evidence = {}
    for number in (*_NUMBERS, *_OPTIONAL):
        found = exceptions.get(number, row)
        evidence[number] = Evidence(label=found["evidence"], source=found["source"])
    return GpuSpec(
        name=name,
        confidence=row["confidence"],
        evidence=evidence,
        **{number: row[number] for number in _NUMBERS},
        **{number: row[number] for number in _OPTIONAL if number in row},
    )


def _load_file(path: Path) -> GpuSpec:
    """Read a device described as a row of gpus.yaml, with its ``name``, ``label`` and
    ``source``."""
    row = read_yaml_object(path)
    numbers = (*_NUMBERS, *_OPTIONAL)
    known = ("name", "label", "source", *numbers)
    unknown = sorted(set(row) - set(known))
    if unknown:
        raise ScenarioError(f"{path}: {unknown[0]} is no field; fields are {', '.join(known)}")
    missing = [name for name in ("name", "label", "source", *_NEEDED) if row.get(name) is None]
    if missing:
        raise ScenarioError(f"{path}: {', '.join(missing)} missing")
    if row["label"] not in LABELS:
        raise ScenarioError(f"{path}: label {row['label']!r} is not one of {', '.join(LABELS)}")
    fields = Fields(row, str(path))
    given = {name: row[name] for name in numbers if fields.read(POSITIVE, name) is not None}
    if "num_sms" in given:
        fields.read(COUNT, "num_sms")
    for name in ("name", "source"):
        fields.read(TEXT, name)
    evidence = Evidence(label=row["label"], source=row["source"])
    return GpuSpec(name=row["name"], evidence=dict.fromkeys(given, evidence), **given)
