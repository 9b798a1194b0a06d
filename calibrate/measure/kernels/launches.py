"""Measure the cost of starting kernels, with a kernel that adds 1 to one number.

``eager`` is the host's time in seconds to launch ``kernels`` of them one by one. ``graph`` is its
time to launch a CUDA graph of ``kernels`` of them. ``node`` is the device's time for one such
kernel among many in a graph, which is the least that any kernel takes. On a processor, ``eager`` is
the call itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calibrate.measure.case import Case, Prepared, relative_error

TOLERANCE: dict[str, float] = {}

_KERNELS = {
    "eager": (1, 10, 30, 100, 300),
    "graph": (1, 10, 30, 100, 300, 1000),
    "node": (1,),
}


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield all cases; quick runs get the same, because there are few."""
    for mode in ("eager",) if device == "cpu" else _KERNELS:
        for kernels in _KERNELS[mode][: 3 if device == "cpu" else None]:
            yield Case(family="launch", kernel="torch", shape={"mode": mode, "kernels": kernels})


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare a number that counts the kernels that ran."""
    import torch

    mode, kernels = str(case.shape["mode"]), int(case.shape["kernels"])
    draw = torch.Generator(device).manual_seed(seed)
    start = torch.randint(1000, (1,), device=device, generator=draw).float()
    number = start.clone()

    def launch() -> None:
        for _ in range(kernels):
            number.add_(1)

    call: Any = launch if mode != "graph" else _captured(launch)

    def error() -> float:
        number.copy_(start)
        call()
        return relative_error(number, start + kernels)

    return Prepared(
        calls=[call],
        error=error,
        flops=float(kernels),
        num_bytes=8.0 * kernels,
        graphable=mode == "node",
        host_clock=mode != "node",
    )


def _captured(launch: Any) -> Any:
    import torch

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    launch()
    graph.capture_end()
    return graph.replay
