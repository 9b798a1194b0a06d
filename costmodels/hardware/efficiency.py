"""Shares of a device's peaks that its kernels reach: one set of constants per GPU, from one
file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from costmodels.datafile import read_data
from costmodels.hardware.gpus import GpuSpec
from sim.evidence import Evidence, Source
from sim.throttle import PowerThrottle


class FittedRange(NamedTuple):
    """The largest steps and contexts that constants were fitted to; beyond, they extrapolate."""

    step_tokens: int
    context_tokens: int
    """Context of one sequence, on average over a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Constants of the roofline. Shares are of the datasheet peak; none belongs to a model."""

    name: str
    gemm_compute: float
    """Share of the compute peak that a GEMM with very many rows reaches."""
    gemm_half_rows: float
    """Rows at which a GEMM reaches half of that: the cost of filling and draining the tiles."""
    gemm_memory: float
    gemm_fixed_s: float
    fp8_compute: float
    """Share of the fp8 peak that a GEMM in fp8 reaches; ``fp8_half_rows``: rows at which it
    reaches half."""
    fp8_half_rows: float
    grouped_compute: float
    grouped_half_rows: float
    """Rows of one expert at which a grouped GEMM reaches half of its share; in fp8 the share
    falls as a GEMM's does."""
    grouped_memory: float
    grouped_fixed_s: float
    tile_rows: int
    """From this number of rows on, a GEMM's rows are rounded up to a multiple of it."""
    attention_compute: float
    attention_memory: float
    attention_tile_tokens: int
    """KV tokens of one tile: a sequence's last tile is half empty on average."""
    attention_query_tile_tokens: float
    """Query tokens of one prefill tile: a chunk's last tile costs as much as a full one."""
    attention_imbalance: float
    """Share of the last SM's extra work in decode attention (`split_kv`) that shows as time; the
    rest is made up by the bandwidth that idle SMs leave to the others."""
    attention_fixed_s: float
    elementwise_memory: float
    elementwise_fixed_s: float
    sampling_bytes_per_logit: float
    sampling_fixed_s: float
    all_reduce_bandwidth: float
    """Share of the link's bandwidth that an all-reduce of a large batch reaches."""
    all_reduce_hop_s: float
    all_reduce_fixed_s: float
    throttle_slowdown: float
    """Relative slowdown of steps with prefill once the power limit holds the clock down; 0:
    never. The next two are the time constants with which it sets in under compute-bound load,
    and recovers without."""
    throttle_onset_s: float
    throttle_recovery_s: float
    throttle_full_load: float
    """Compute-bound share of a step from which the power limit is reached."""
    fitted_range: FittedRange | None = None
    """Range that the constants were fitted to; None if they were not fitted."""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    @property
    def decode_seq_tokens(self) -> int:
        """Tokens that a decoding sequence reads beyond its context: its own, and half a KV tile."""
        return 1 + self.attention_tile_tokens // 2

    @property
    def throttle(self) -> PowerThrottle | None:
        """The effect of the device's power limit; None if it has none."""
        if not self.throttle_slowdown:
            return None
        return PowerThrottle(
            self.throttle_slowdown,
            self.throttle_onset_s,
            self.throttle_recovery_s,
            self.throttle_full_load,
        )

    def label_of(self, constant: str) -> str:
        """Return the evidence label of one constant."""
        evidence = self.evidence.get(constant)
        return evidence.label if evidence else "assumed"

    def sources(self) -> list[Source]:
        """Return every constant with its label and source."""
        return [
            Source(
                what=f"{self.name} {constant}",
                value=getattr(self, constant),
                label=evidence.label,
                source=evidence.source,
            )
            for constant, evidence in self.evidence.items()
        ]


def load_efficiency(gpu: GpuSpec, *, generic_only: bool = False) -> Efficiency:
    """Return the constants fitted on this GPU if there are any, else the generic ones.

    With ``generic_only`` they are always the generic ones, which need only the datasheet.
    """
    content = read_data("hardware/efficiency.yaml")
    generic = content["generic"]
    name, fitted_range = "generic", None
    values = {constant: row["value"] for constant, row in generic.items()}
    evidence = {
        constant: Evidence(label=row["label"], source=row["source"])
        for constant, row in generic.items()
    }
    for twin, links in content["links"].items():
        carried = gpu.name in links.get("carried_to", ())
        if generic_only or not (carried or gpu.name == twin):
            continue
        values |= links["constants"]
        source = f"as of {twin}: {links['source']}" if carried else links["source"]
        known = Evidence(label="extrapolated" if carried else links["label"], source=source)
        evidence |= dict.fromkeys(links["constants"], known)
    for fitted_name, block in content["fitted"].items():
        if generic_only:
            continue
        carried = gpu.name in block["carried_to"]
        if carried or gpu.name in block["gpus"]:
            name = fitted_name
            values |= block["constants"]
            fitted_range = FittedRange(**block["range"])
            known = Evidence(
                label="extrapolated" if carried else block["label"], source=block["source"]
            )
            evidence |= dict.fromkeys(block["constants"], known)
    wanted = {item.name for item in fields(Efficiency)} - {"name", "fitted_range", "evidence"}
    if set(values) != wanted:
        raise ValueError(f"efficiency.yaml: constants differ: {sorted(set(values) ^ wanted)}")
    return Efficiency(name=name, fitted_range=fitted_range, evidence=evidence, **values)
