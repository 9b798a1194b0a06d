"""Measure decode attention over paged KV: one new token per sequence, blocks of 16 tokens.

Kernel ``triton`` is ours (`decode_triton`). ``torch``, on a processor, has the KV of a sequence
contiguous, token by token, in the order it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.kernels.attention_inputs import (
    FULL,
    GEMMA3_12B,
    GPT_OSS,
    LLAMA_8B,
    MOST_NUMBERS,
    WINDOWED,
    Heads,
    seen,
    shared_pool,
)
from calibrate.measure.machine import streamed_l2_bytes

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2, "fp8": 1e-2}
"""Largest relative error by number format. fp8 is the format of the cache, and the reference
reads the same numbers."""
BLOCK_SIZE = 16
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
_SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_FEW_SEQS = (1, 4, 8, 16, 32, 48, 128, 256, 1024)
_FEW_CONTEXTS = (64, 256, 1024, 4096, 16384, 65536, 131072)
_WINDOW_CONTEXTS = (64, 128, 256, 512, 1024, 4096, 131072)


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield bfloat16 cases over all heads and an fp8 cache over some; on a processor, a small
    float32 grid."""
    if device == "cpu":
        small = (1, 4), (64, 512)
        yield from _grid("torch", "float32", (Heads(8, 2, 64),), *small)
        if not quick:
            yield from _grid("torch", "float32", (LLAMA_8B[2], WINDOWED[0]), (1, 8), (64, 1024))
    elif quick:
        yield from _grid("triton", "bfloat16", LLAMA_8B[:1], (1, 8, 64, 256), _FEW_CONTEXTS)
        yield from _grid("triton", "fp8", LLAMA_8B[:1], (1, 64), (256, 4096))
    else:
        some = (LLAMA_8B[0], LLAMA_8B[2], GPT_OSS[0], GEMMA3_12B[0])
        yield from _grid("triton", "bfloat16", FULL, _SEQS, _CONTEXTS)
        yield from _grid("triton", "bfloat16", WINDOWED, _SEQS, _WINDOW_CONTEXTS)
        yield from _grid("triton", "fp8", some, _FEW_SEQS, _CONTEXTS)
        yield from _grid("triton", "fp8", WINDOWED, _FEW_SEQS, _WINDOW_CONTEXTS)


def _grid(
    kernel: str,
    kv: str,
    heads: tuple[Heads, ...],
    seqs: tuple[int, ...],
    contexts: tuple[int, ...],
) -> Iterator[Case]:
    """Yield cases, smallest first. The KV that a call can read is limited, and must lie in the
    pool completely."""
    activations = "bfloat16" if kv == "fp8" else kv
    for context in contexts:
        for count in seqs:
            for one in heads:
                if count * _kv_numbers(one, context) <= MOST_NUMBERS:
                    yield Case(
                        family="decode_attention",
                        kernel=kernel,
                        formats={"activations": activations, "kv": kv},
                        shape=one._asdict() | {"seqs": count, "context_tokens": context},
                    )


def _kv_numbers(heads: Heads, tokens: int) -> int:
    return 2 * heads.kv_heads * heads.head_dim * tokens


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs, and bytes of queries, visible keys and values, and results."""
    heads, seqs, context = _sizes(case)
    looked_at = seen(context, heads.window)
    numbers = heads.q_heads * heads.head_dim
    kv_bytes = _kv_numbers(heads, looked_at) * _BYTES[case.formats["kv"]]
    query_bytes = 2 * numbers * _BYTES[case.formats["activations"]]
    return 4.0 * seqs * numbers * looked_at, float(seqs * (kv_bytes + query_bytes))


def _sizes(case: Case) -> tuple[Heads, int, int]:
    heads = Heads(*(int(case.shape[name]) for name in Heads._fields))
    return heads, int(case.shape["seqs"]), int(case.shape["context_tokens"])


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare copies with block tables of their own, all in one pool."""
    import torch

    heads, seqs, context = _sizes(case)
    flops, num_bytes = work(case)
    kv, draw = case.formats["kv"], torch.Generator(device).manual_seed(seed)
    block_numbers = BLOCK_SIZE * heads.kv_heads * heads.head_dim
    pool = shared_pool(kv, 2, block_numbers, device)
    blocks = -(-context // BLOCK_SIZE)
    copies = num_copies(num_bytes, streamed_l2_bytes(device))
    if case.kernel == "torch":  # this kernel copies from the pool
        tables = torch.cat([pool.tables(1, seqs, blocks, draw) for _ in range(copies)])
    else:
        # For long windowed contexts, at most the copies for which the pool has blocks.
        copies = max(1, min(copies, pool.num_blocks // (seqs * blocks)))
        tables = pool.tables(copies, seqs, blocks, draw)
    block_shape = BLOCK_SIZE, heads.kv_heads, heads.head_dim
    keys, values = (pool.blocks(part, *block_shape) for part in range(2))
    dtype = getattr(torch, case.formats["activations"])
    query = torch.randn(
        copies, seqs, heads.q_heads, heads.head_dim, dtype=dtype, device=device, generator=draw
    )
    make = _on_host if case.kernel == "torch" else _paged
    calls = make(heads, query, keys, values, tables, context)

    def error() -> float:
        out = calls[0]()
        return relative_error(out, reference(query[0], keys, values, tables[0], context, heads))

    return Prepared(calls=calls, error=error, flops=flops, num_bytes=num_bytes)


def _paged(
    heads: Heads, query: Any, keys: Any, values: Any, tables: Any, context: int
) -> list[Callable[[], Any]]:
    import torch

    from calibrate.measure.kernels.decode_triton import paged_decode

    copies, seqs = query.shape[:2]
    is_fp8 = keys.dtype == torch.float8_e4m3fn
    if is_fp8:
        keys, values = keys.view(torch.int32), values.view(torch.int32)
    contexts = torch.full((seqs,), context, dtype=torch.int32, device=query.device)
    out = torch.empty_like(query[0])
    launch = paged_decode(
        seqs=seqs,
        kv_heads=heads.kv_heads,
        group=heads.group,
        head_dim=heads.head_dim,
        window=heads.window,
        block_size=BLOCK_SIZE,
        context_tokens=context,
        is_fp8=is_fp8,
        device=str(query.device),
    )

    def call(copy: int) -> Any:
        launch(query[copy], keys, values, tables[copy], contexts, out)
        return out

    return [partial(call, copy) for copy in range(copies)]


def _on_host(
    heads: Heads, query: Any, keys: Any, values: Any, tables: Any, context: int
) -> list[Callable[[], Any]]:
    from torch.nn.functional import scaled_dot_product_attention as attend

    first = context - seen(context, heads.window)

    def whole(part: Any, table: Any) -> Any:
        return part[table.long()].flatten(1, 2)[:, first:context].transpose(1, 2)

    def call(query: Any, keys: Any, values: Any) -> Any:
        return attend(query, keys, values, enable_gqa=True)[:, :, 0]

    return [
        partial(call, one[:, :, None], whole(keys, table), whole(values, table))
        for one, table in zip(query, tables, strict=True)
    ]


def reference(query: Any, keys: Any, values: Any, table: Any, context: int, heads: Heads) -> Any:
    """Compute float32 [seqs, q_heads, head_dim], one sequence at a time."""
    import torch

    first = context - seen(context, heads.window)
    out = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    for seq, blocks in enumerate(table.long()):
        k, v = (_gathered(part, blocks).flatten(0, 1)[first:context] for part in (keys, values))
        q = query[seq].float().unflatten(0, (heads.kv_heads, heads.group))
        scores = torch.einsum("kgd,tkd->kgt", q, k) * heads.head_dim**-0.5
        out[seq] = torch.einsum("kgt,tkd->kgd", scores.softmax(-1), v).flatten(0, 1)
    return out


def _gathered(part: Any, blocks: Any) -> Any:
    """Return the blocks as float32. fp8 is indexed as bytes, which every device supports."""
    import torch

    if part.dtype.itemsize > 1:
        return part[blocks].float()
    return part.view(torch.uint8)[blocks].view(part.dtype).float()
