"""Measure lookups of rows of an embedding table by token id, through torch.

``rows`` tokens of ``width`` (the hidden size) are read from a table [vocab, width]. The table is
far larger than any cache and the ids are random, so all copies share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from calibrate.measure.case import Case, Prepared, relative_error

TOLERANCE = {"float32": 0.0, "bfloat16": 0.0}

# Vocabulary and hidden size of Llama-3.1-8B, Qwen3-30B-A3B, DeepSeek-V3.
_TABLES = ((128256, 4096), (151936, 2048), (129280, 7168))
# torch has one kernel for up to 16 ids and another for more.
_ROWS = (
    *(1, 2, 4, 8, 12, 16, 17, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512),
    *(640, 768, 1024, 1536, 2048),
    *(3072, 4096, 6144, 8192, 12288, 16384),
)
_NUM_COPIES = 16
_SIZES = {"float32": 4, "bfloat16": 2}


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield a few tables by the number of tokens in a step."""
    tables = ((32000, 512),) if device == "cpu" else _TABLES[:1] if quick else _TABLES
    rows = _ROWS[:5:2] if device == "cpu" else _ROWS[::6] if quick else _ROWS
    for vocab, width in tables:
        for count in rows:
            yield Case(
                family="embedding",
                kernel="torch",
                formats={"activations": "float32" if device == "cpu" else "bfloat16"},
                shape={"rows": count, "width": width, "vocab": vocab},
            )


def work(case: Case) -> tuple[float, float]:
    """Return no FLOPs, and bytes of the ids and of each row, read once and written once."""
    rows, width = int(case.shape["rows"]), int(case.shape["width"])
    return 0.0, float(rows * (8 + 2 * width * _SIZES[case.formats["activations"]]))


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare a random table and random ids."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    rows, width, vocab = (int(case.shape[name]) for name in ("rows", "width", "vocab"))
    dtype = getattr(torch, case.formats["activations"])
    table = torch.randn(vocab, width, device=device, dtype=dtype, generator=draw)
    ids = [torch.randint(vocab, (rows,), device=device, generator=draw) for _ in range(_NUM_COPIES)]
    outs = [torch.empty(rows, width, device=device, dtype=dtype) for _ in ids]

    def bound(some: Any, out: Any) -> Callable[[], object]:
        return lambda: torch.index_select(table, 0, some, out=out)

    calls = [bound(some, out) for some, out in zip(ids, outs, strict=True)]

    def error() -> float:
        calls[0]()
        return relative_error(outs[0], torch.nn.functional.embedding(ids[0], table))

    flops, num_bytes = work(case)
    return Prepared(calls=calls, error=error, flops=flops, num_bytes=num_bytes)
