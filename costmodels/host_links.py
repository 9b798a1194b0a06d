"""Links outside a group of devices: to the host's memory and disk, and between distant stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodels.datafile import find_name, read_data
from costmodels.evidence import Source
from costmodels.gpu_spec import GpuSpec
from sim.errors import ScenarioError

_FILE = "hardware/links.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """What one device exchanges with its host's memory, and what the disk behind it reads."""

    to_device_bytes_per_s: float
    from_device_bytes_per_s: float
    disk_read_bytes_per_s: float
    label: str
    """Of the link; the disk's is in `sources`."""
    disk_label: str
    sources: tuple[Source, ...]


def host_link(
    gpu: GpuSpec, *, bytes_per_s: float | None = None, disk_read_bytes_per_s: float | None = None
) -> HostLink:
    """The link of a GPU: its datasheet's, times the share that copies reach.

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
    """What joins the stages of a pipeline where it is not the GPUs' own network."""

    name: str
    latency_s: float
    """One way."""
    bytes_per_s: float
    client_hops: int = 0
    """Hops beside those between stages: to the first, and back from the last."""
    label: str = "assumed"
    source: str = "given"

    def sources(self) -> list[Source]:
        """Its two numbers."""
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
    """A link of ``links.yaml`` by name, with what is given in place of its own numbers.

    Without a name both numbers make a link; None where nothing is given. Raises `ScenarioError`
    for an unknown name, and for one number alone.
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
