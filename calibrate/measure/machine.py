"""Describe the machine and its state. Everything is only read, nothing is set."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Our fields -> names of nvidia-smi's --query-gpu.
_CLOCKS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "max_sm_mhz": "clocks.max.sm",
    "max_memory_mhz": "clocks.max.mem",
}
_STATE = {
    "sm_clock_mhz": "clocks.sm",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
}


# Three times this, 120 MB, is more than cores have to themselves. The size of the last level is no
# guide: a virtual machine sees all of its host's, and has only a share of it.
_CPU_STREAMED_BYTES = 40_000_000


def device_name(device: str) -> str:
    """Return the name of the GPU, or of the processor."""
    if device == "cpu":
        return cpu_name()
    import torch

    return str(torch.cuda.get_device_name(0))


def l2_bytes(device: str) -> int:
    """Return the number of bytes that the inputs of a call must exceed.

    0 for a processor, where an operator finds the output of the previous one in its cache.
    """
    if device == "cpu":
        return 0
    import torch

    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def streamed_l2_bytes(device: str) -> int:
    """Return `l2_bytes` for weights and KV, which a step reads once: no cache near a core keeps
    them, so a processor is not 0 either."""
    return _CPU_STREAMED_BYTES if device == "cpu" else l2_bytes(device)


def machine_line(device: str) -> dict[str, Any]:
    """Return the ``machine`` line. Its id is a hash of everything else in it."""
    import torch

    line: dict[str, Any] = {
        "kind": "machine",
        "device": device_name(device),
        "torch": torch.__version__,
        "triton": _triton_version(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if device == "cuda":
        line |= _gpu_fields()
    else:
        line["threads"] = torch.get_num_threads()
    digest = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
    return line | {"id": digest[:12]}


def gpu_state() -> dict[str, float | None]:
    """Return SM clock, power and temperature of the first GPU now; None if the driver does not
    report them."""
    return _numbers(_STATE)


def cpu_name() -> str:
    """Return the processor's name as the kernel reports it."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpu_fields() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    fields: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "driver": _query(["driver_version"])[0],
        "gpus": torch.cuda.device_count(),
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "clocks": _numbers(_CLOCKS),
        "power_limit_w": _numbers({"limit": "power.limit"})["limit"],
    }
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        fields["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if fields["gpus"] > 1:
        fields["topology"] = _nvidia_smi("topo", "-m")
    return fields


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def _numbers(names: dict[str, str]) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for field, text in zip(names, _query(list(names.values())), strict=True):
        try:
            values[field] = float(text) if text is not None else None
        except ValueError:
            values[field] = None
    return values


def _query(names: list[str]) -> list[str | None]:
    text = _nvidia_smi("--id=0", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
    values = [value.strip() for value in text.split(",")] if text else []
    return list(values) if len(values) == len(names) else [None] * len(names)


def _nvidia_smi(*options: str) -> str | None:
    try:
        done = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
