"""The process of one rank, which makes the same calls as all others, in step with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.machine import l2_bytes
from calibrate.measure.timing import Pacer, Timing, time_calls

TOLERANCE = {"bfloat16": 1e-2, "float32": 1e-5}

_LARGEST_CHECKED_BYTES = 2**26
"""Most bytes of all ranks together that are checked."""
_FAILED = 1e30


@dataclass(frozen=True, slots=True)
class Task:
    """Cases that a group of ranks measures, in order, within a time in seconds."""

    ranks: int
    cases: Sequence[Case]
    device: str
    seed: int
    seconds: float


def rank_main(rank: int, port: int, task: Task, reports: Any) -> None:
    """Run a rank's process. Rank 0 puts a dict for each case, and None when the time is over."""
    import torch
    import torch.distributed as dist

    until = time.perf_counter() + task.seconds
    if task.device == "cuda":
        torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, task.ranks, is_master=rank == 0)
    backend = "nccl" if task.device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=task.ranks)
    context: Any = nullcontext()
    if task.device == "cuda":
        context = torch.cuda.stream(torch.cuda.Stream())
    with context:
        _all_cases(rank, task, until, reports)
    dist.destroy_process_group()


def _all_cases(rank: int, task: Task, until: float, reports: Any) -> None:
    pacer = Pacer()
    for case in task.cases:
        if not _agreed(float(time.perf_counter() < until), task.device):
            if rank == 0:
                reports.put(None)
            return
        fields = _case_fields(rank, case, task, pacer)
        if rank == 0:
            reports.put(fields)


def _case_fields(rank: int, case: Case, task: Task, pacer: Pacer) -> dict[str, Any]:
    from calibrate.measure.bench import case_seed, reason_of, timing_fields

    reason, prepared = "a rank has no room for it", None
    try:
        prepared = prepare(rank, case, task.device, case_seed(case, task.seed))
    except Exception as raised:
        reason = reason_of(raised)
    if _largest(float(prepared is None), task.device):
        return {"reason": reason}
    assert prepared is not None
    error = _checked(prepared, task.device)
    tolerance = TOLERANCE[case.formats["activations"]]
    if error is not None and error > tolerance:
        return {"reason": f"relative error {error:.3g}, at most {tolerance:g} is right"}

    try:
        timing = _timed(prepared, task, pacer)
    except RuntimeError:
        if not prepared.graphable:
            raise
        # NCCL cannot be captured here, and the line will say that it is outside a graph.
        timing = _timed(replace(prepared, graphable=False), task, pacer)
    return timing_fields(asdict(timing), error, prepared)


def _timed(prepared: Prepared, task: Task, pacer: Pacer) -> Timing:
    return time_calls(prepared, task.device, pacer, lambda value: _agreed(value, task.device))


def _checked(prepared: Prepared, device: str) -> float | None:
    """Return the largest error of any rank; an error that is not a number counts as failed."""
    if prepared.error is None:
        return None
    error = prepared.error()
    return _largest(error if error < _FAILED else _FAILED, device)


def _agreed(value: float, device: str) -> float:
    """Return rank 0's value on every rank."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared.item())


def _largest(value: float, device: str) -> float:
    import torch
    import torch.distributed as dist

    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared.item())


def prepare(rank: int, case: Case, device: str, seed: int) -> Prepared:
    """Prepare this rank's part, with random inputs of which each rank can generate every
    other's."""
    import torch

    ranks, num_bytes = int(case.shape["ranks"]), int(case.shape["bytes"])
    dtype = getattr(torch, case.formats["activations"])
    count = num_bytes // dtype.itemsize
    if case.family in ("reduce_scatter", "all_to_all"):
        count -= count % ranks

    def inputs(of_rank: int) -> Any:
        draw = torch.Generator(device).manual_seed(seed + of_rank)
        return torch.randn(count, device=device, dtype=dtype, generator=draw)

    make = _MAKERS[case.family]
    out_factor = ranks if case.family == "all_gather" else 1
    moved = float(num_bytes * (1 + out_factor))
    copies = num_copies(moved, l2_bytes(device))
    calls = [make(rank, ranks, inputs(rank))[0] for _ in range(copies)]

    def error() -> float:
        call, result = make(rank, ranks, inputs(rank))
        call()
        out = result()
        expected = _expected(case.family, rank, ranks, [inputs(other) for other in range(ranks)])
        return relative_error(out, expected)

    is_small = ranks * num_bytes <= _LARGEST_CHECKED_BYTES
    return Prepared(
        calls=calls,
        error=error if is_small else None,
        flops=0.0,
        num_bytes=moved,
        graphable=case.family != "send_recv",
    )


Made = tuple[Callable[[], object], Callable[[], Any]]


def _all_reduce(rank: int, ranks: int, data: Any) -> Made:
    import torch.distributed as dist

    return lambda: dist.all_reduce(data), lambda: data


def _all_gather(rank: int, ranks: int, data: Any) -> Made:
    import torch.distributed as dist

    # The first name is the newer one.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    out = data.new_empty(ranks * len(data))
    return lambda: gather(out, data), lambda: out


def _reduce_scatter(rank: int, ranks: int, data: Any) -> Made:
    import torch.distributed as dist

    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    out = data.new_empty(len(data) // ranks)
    return lambda: scatter(out, data), lambda: out


def _all_to_all(rank: int, ranks: int, data: Any) -> Made:
    import torch.distributed as dist

    out = data.new_empty(len(data))
    return lambda: dist.all_to_all_single(out, data), lambda: out


def _send_recv(rank: int, ranks: int, data: Any) -> Made:
    import torch.distributed as dist

    if rank == 0:
        return lambda: dist.send(data, 1), lambda: data
    out = data.new_empty(len(data))
    return lambda: dist.recv(out, 0), lambda: out


_MAKERS: dict[str, Callable[[int, int, Any], Made]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}


def _expected(family: str, rank: int, ranks: int, inputs: list[Any]) -> Any:
    """Return the expected result of ``rank``, in float32."""
    import torch

    if family == "send_recv":
        return inputs[0].float()
    if family == "all_gather":
        return torch.cat(inputs).float()
    part = slice(rank * len(inputs[0]) // ranks, (rank + 1) * len(inputs[0]) // ranks)
    if family == "all_to_all":
        return torch.cat([data[part] for data in inputs]).float()
    total = torch.stack(inputs).float().sum(0)
    return total if family == "all_reduce" else total[part]
