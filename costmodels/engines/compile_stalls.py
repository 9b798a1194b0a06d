"""Kernels that an engine compiles while it serves, which stalls the step that needs one first."""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.datafile import read_data
from costmodels.engines.expert_kernels import expert_kernel
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.shard import RankShard
from sim.evidence import Evidence

_FILE = "engines/compile_stalls.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileStalls:
    """A kernel that is compiled once for each bucket of step sizes beyond the CUDA graphs."""

    what: str
    """The kernel in words."""
    bucket_tokens: int
    """Tokens of a bucket: the first has 1 to that many."""
    stall_s: float
    """Seconds that the host compiles for one bucket."""
    evidence: Evidence
    load_s: float
    """Seconds that the host takes to load one bucket's kernel from disk."""
    load_evidence: Evidence


def compile_stalls(shard: RankShard, gpu: GpuSpec, profile: EngineProfile) -> CompileStalls | None:
    """Return what the engine compiles while it serves a rank's part of a model; None if no such
    kernel is known."""
    experts = expert_kernel(shard, gpu, profile)
    row = None if experts is None else read_data(_FILE)["kernels"].get(experts.name)
    if row is None:
        return None
    return CompileStalls(
        what=row["what"],
        bucket_tokens=row["bucket_tokens"],
        stall_s=row["stall_s"],
        evidence=Evidence(label=row["label"], source=row["source"]),
        load_s=row["load_s"],
        load_evidence=Evidence(label=row["load_label"], source=row["load_source"]),
    )
