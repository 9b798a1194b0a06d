"""Measure collectives between the devices of one machine: NCCL on GPUs, gloo on a processor.

``bytes`` are one rank's input: for ``all_gather`` what it contributes, for ``reduce_scatter`` and
``all_to_all`` everything it holds, for ``send_recv`` what rank 0 sends to rank 1. Every rank is a
process that measures, and the first one reports. NCCL is configured by the environment.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from typing import Any

from calibrate.measure.case import Case
from calibrate.measure.kernels.collectives_rank import TOLERANCE as TOLERANCE
from calibrate.measure.kernels.collectives_rank import Task, rank_main

_FAMILIES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_FACTOR_2 = [2**power for power in range(8, 31)]
# Every other size between them, to check interpolation with.
_BETWEEN = [3 * 2**power for power in range(9, 29, 2)]
_CPU_BYTES = [2**power for power in range(8, 23, 7)]
_GPU_LINK_BYTES_PER_S = 2e11
_LONGEST_SILENCE_S = 90.0
_MOST_FAILURES = 2

Result = tuple[Case, dict[str, Any]]


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield all collectives over all devices, and over 2, 4, ... of them; sends are between two."""
    sizes = sorted(_FACTOR_2[::3] if quick else _FACTOR_2 + _BETWEEN)
    if device == "cpu":
        sizes = _CPU_BYTES
    counts = _rank_counts(device)
    for family in _FAMILIES:
        for ranks in counts[:1] if family == "send_recv" else counts:
            for num_bytes in sizes if ranks > 1 else sizes[:1]:
                yield Case(
                    family=family,
                    kernel="gloo" if device == "cpu" else "nccl",
                    formats={"activations": "float32" if device == "cpu" else "bfloat16"},
                    shape={"ranks": ranks, "bytes": num_bytes},
                )


def work(case: Case) -> tuple[float, float]:
    """Return no FLOPs, and the bytes on one rank's link converted to memory traffic that takes
    equally long."""
    factor = int(case.shape["ranks"]) if case.family == "all_gather" else 1
    return 0.0, float(factor * int(case.shape["bytes"])) * 3.5e12 / _GPU_LINK_BYTES_PER_S


def measure(cases: Sequence[Case], device: str, seed: int, until: float) -> Iterator[Result]:
    """Yield the fields of each case's line, for the cases that the time allows."""
    for ranks in sorted({int(case.shape["ranks"]) for case in cases}):
        group = [case for case in cases if case.shape["ranks"] == ranks]
        if ranks < 2:
            reason = "a collective needs at least two GPUs in one machine"
            yield from ((case, {"reason": reason}) for case in group)
            continue
        failures = 0
        while group and failures < _MOST_FAILURES:
            done = 0
            for result in _group_results(Task(ranks, group, device, seed, until - _now())):
                yield result
                done += 1
                failures += bool(result[1].get("group_lost"))
            if until <= _now() or done == 0:
                break
            group = group[done:]
        if failures >= _MOST_FAILURES:
            reason = f"the ranks failed {failures} times before"
            yield from ((case, {"reason": reason}) for case in group)


def _now() -> float:
    return time.perf_counter()


def _rank_counts(device: str) -> list[int]:
    """Return the numbers of ranks, smallest first; [1] or [0] if there are fewer than two
    devices."""
    if device == "cpu":
        return [2]
    try:
        import torch
    except ImportError:
        return [1]
    devices = torch.cuda.device_count()
    powers = [2**power for power in range(1, 10) if 2**power < devices]
    return [*powers, devices]


def _group_results(task: Task) -> Iterator[Result]:
    """Yield results in the order of the cases. Ends early if the time is over or the ranks are
    lost.

    If one rank fails, the others would wait for it forever. They are ended, and the case is refused
    with ``group_lost``.
    """
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    reports: Any = context.Queue()
    port = _free_port()
    ranks = [
        context.Process(target=rank_main, args=(rank, port, task, reports), daemon=True)
        for rank in range(task.ranks)
    ]
    for rank in ranks:
        rank.start()
    try:
        for case in task.cases:
            fields = _next_report(reports, ranks)
            if fields is None:
                return
            yield case, fields
            if fields.get("group_lost"):
                return
    finally:
        for rank in ranks:
            rank.join(timeout=10)
            if rank.is_alive():
                rank.kill()
                rank.join()


def _next_report(reports: Any, ranks: Sequence[Any]) -> dict[str, Any] | None:
    """Return the next report, or None if rank 0 says that the time is over."""
    start = _now()
    while _now() - start < _LONGEST_SILENCE_S:
        try:
            fields: dict[str, Any] | None = reports.get(timeout=1.0)
            return fields
        except queue.Empty:
            codes = [rank.exitcode for rank in ranks]
            if any(code not in (None, 0) for code in codes):
                reason = f"a rank ended early; exit codes {codes}"
                return {"reason": reason, "group_lost": True}
    reason = f"no answer from the ranks for {_LONGEST_SILENCE_S:.0f} s"
    return {"reason": reason, "group_lost": True}


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
