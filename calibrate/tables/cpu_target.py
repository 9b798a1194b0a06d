"""A processor as a target: the numbers of a GPU, from the peak rates that its own kernels
reached."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import yaml

from calibrate.tables.kernel_lines import KernelLines, Timing
from costmodels.hardware.gpus import GpuSpec
from sim.errors import ScenarioError
from sim.evidence import Evidence

_NUMBERS = (
    "bf16_flop_per_s",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "fabric_bytes_per_s",
    "host_link_bytes_per_s",
)


def is_cpu(lines: KernelLines) -> bool:
    """Return whether the lines were measured on a processor, whose device is the machine's own
    name."""
    used = [lines.machines[timing.machine] for timing in lines.timings]
    return all(machine.get("device") == machine.get("cpu") for machine in used)


def cpu_target(lines: KernelLines) -> GpuSpec:
    """Describe the processor: FLOP/s of its fastest GEMM, bytes/s of its fastest copy.

    Raises `ScenarioError` if gemm or copy was not measured.
    """
    machine = lines.machines[lines.timings[0].machine]
    flop_per_s = _fastest(t.flops / t.seconds for t in lines.timings if t.family == "gemm")
    # A copy reads and writes the bytes that its shape counts once.
    moved = [(t, t.shape["bytes"] / t.seconds) for t in lines.timings if t.family == "copy"]
    to_host = [rate for t, rate in moved if t.variant in ("h2d", "d2h")]
    stream = [2 * rate for t, rate in moved if t.variant not in ("h2d", "d2h")] or [
        2 * rate for rate in to_host
    ]
    if not flop_per_s or not stream:
        raise ScenarioError(
            f"{machine.get('device')} is no GPU: its peaks are taken from its fastest gemm and "
            "copy, and the lines have none; measure these families too, or give --gpu gpu.yaml"
        )
    links = [_link_rate(t) for t in lines.timings if t.family in ("send_recv", "all_reduce")]
    numbers = {
        "bf16_flop_per_s": flop_per_s,
        "hbm_bytes": int(machine.get("memory_bytes") or _memory_bytes()),
        "hbm_bytes_per_s": _fastest(stream),
        "fabric_bytes_per_s": _fastest(links) or None,
        "host_link_bytes_per_s": _fastest(to_host) or None,
    }
    known = Evidence(
        label="measured",
        source=f"fastest GEMM, copy and exchange between processes on {machine.get('device')}, "
        f"{machine.get('cores')} cores, {str(machine.get('date'))[:10]}",
    )
    return GpuSpec(
        name=str(machine.get("device")),
        evidence=dict.fromkeys(numbers, known),
        **numbers,  # type: ignore[arg-type]
    )


def write_target(gpu: GpuSpec, path: Path) -> None:
    """Write a device so that `load_gpu` can read it. Raises `ScenarioError` if the file cannot
    be written."""
    known = gpu.evidence["bf16_flop_per_s"]
    row: dict[str, object] = {"name": gpu.name, "label": known.label, "source": known.source}
    names = {field.name for field in fields(GpuSpec)} & set(_NUMBERS)
    row |= {name: getattr(gpu, name) for name in sorted(names) if getattr(gpu, name) is not None}
    try:
        path.write_text(yaml.safe_dump(row, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write {path}: {error.strerror}") from None


def _fastest(rates: Iterable[float]) -> float:
    """Return the highest rate to three significant digits, since a peak is not known more
    precisely."""
    return float(f"{max(rates, default=0.0):.3g}")


def _link_rate(timing: Timing) -> float:
    ranks = timing.shape["ranks"]
    share = 2 * (ranks - 1) / ranks if timing.family == "all_reduce" else 1.0
    return share * timing.shape["bytes"] / timing.seconds


def _memory_bytes() -> int:
    """Return the memory of this machine, which is assumed for lines that do not state theirs."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
