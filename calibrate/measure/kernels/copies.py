"""Measure memory copies: host to device, device to host, inside the device, and scattered KV
blocks.

``bytes`` is the number of bytes copied. Host memory is pinned, and its copies are launched one by
one, as engines do. ``kv_blocks`` gathers random 64 KiB blocks (16 tokens of 8 KV heads, 128 wide,
keys and values in 16 bits) into one buffer, as before a transfer. On a processor, ``d2d`` is within
its own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.machine import l2_bytes

TOLERANCE: dict[str, float] = {}

_KIB, _MIB = 2**10, 2**20
_BLOCK_BYTES = 64 * _KIB
_LARGEST = {"h2d": 256 * _MIB, "d2h": 256 * _MIB, "d2d": 1024 * _MIB, "kv_blocks": 1024 * _MIB}

_LARGEST_CHECKED = 64 * _MIB


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield powers of 2, and 1.5 times those; whole blocks for scattered copies."""
    for direction in ("d2d", "kv_blocks") if device == "cpu" else _LARGEST:
        largest = 16 * _MIB if device == "cpu" else _LARGEST[direction]
        unit = _BLOCK_BYTES if direction == "kv_blocks" else 4 * _KIB
        powers = [unit << place for place in range((largest // unit).bit_length())]
        few = quick or device == "cpu"
        between = [] if few else [3 * power // 2 for power in powers[1:-1]]
        for num_bytes in sorted(powers[:: 3 if few else 1] + between):
            yield Case(
                family="copy",
                kernel="torch",
                shape={"direction": direction, "bytes": num_bytes},
            )


def work(case: Case) -> tuple[float, float]:
    """Return bytes read once and written once. A slow link counts as more memory traffic."""
    num_bytes = float(case.shape["bytes"])
    through_link = case.shape["direction"] in ("h2d", "d2h")
    return 0.0, num_bytes * (80 if through_link else 2)


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare copies of random bytes."""
    import torch

    direction, num_bytes = str(case.shape["direction"]), int(case.shape["bytes"])
    draw = torch.Generator(device).manual_seed(seed)
    count = num_copies(2 * num_bytes, l2_bytes(device))
    if direction == "kv_blocks":
        pairs = _scattered(num_bytes, device, draw, count)
    else:
        pairs = [_plain(direction, num_bytes, device, draw) for _ in range(count)]

    def error() -> float:
        call, out, expected = pairs[0]
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return relative_error(out.to(device), expected().to(device))

    return Prepared(
        calls=[call for call, _, _ in pairs],
        error=error if num_bytes <= _LARGEST_CHECKED else None,
        flops=0.0,
        num_bytes=2.0 * num_bytes,
        graphable=direction in ("d2d", "kv_blocks"),
    )


Copy = tuple[Callable[[], object], Any, Callable[[], Any]]


def _plain(direction: str, num_bytes: int, device: str, draw: Any) -> Copy:
    import torch

    source = torch.randint(256, (num_bytes,), dtype=torch.uint8, device=device, generator=draw)
    if direction == "d2d":
        target = torch.empty_like(source)
        return lambda: target.copy_(source), target, lambda: source
    pinned = _pinned(_LARGEST[direction])[:num_bytes]
    if direction == "d2h":
        return lambda: pinned.copy_(source, non_blocking=True), pinned, lambda: source
    pinned.copy_(source)
    target = torch.empty_like(source)
    return lambda: target.copy_(pinned, non_blocking=True), target, lambda: pinned


def _scattered(num_bytes: int, device: str, draw: Any, count: int) -> list[Copy]:
    import torch

    blocks = num_bytes // _BLOCK_BYTES
    words = _BLOCK_BYTES // 2
    cache = torch.randint(
        -(2**15), 2**15, (2 * blocks, words), dtype=torch.int16, device=device, generator=draw
    )

    def one() -> Copy:
        chosen = torch.randperm(2 * blocks, device=device, generator=draw)[:blocks]
        out = torch.empty(blocks, words, dtype=torch.int16, device=device)
        return (
            lambda: torch.index_select(cache, 0, chosen, out=out),
            out,
            lambda: cache[chosen],
        )

    return [one() for _ in range(count)]


@lru_cache(maxsize=1)
def _pinned(num_bytes: int) -> Any:
    """Allocate one pinned buffer for all copies, because pinning memory is slow."""
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
