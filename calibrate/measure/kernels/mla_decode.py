"""Measure absorbed MLA decode over paged latents: one new token per sequence, blocks of 64 tokens.

Kernel ``triton`` is ours (`mla_triton`); ``torch``, on a processor, has its latents contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.kernels.attention_inputs import MOST_NUMBERS, shared_pool
from calibrate.measure.machine import l2_bytes

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
BLOCK_SIZE = 64
RANK, ROPE = 512, 64
SCALE = 192**-0.5
"""Scale of the scores, which before absorption are over 128 + 64 dimensions (DeepSeek V3, Kimi
K2)."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_HEADS = (16, 32, 64, 128)
"""Heads of one rank: DeepSeek V3 has 128, Kimi K2 64, at tensor parallelism 1 to 8."""
_SEQS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_CONTEXTS = (
    *(64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
    *(24576, 32768, 49152, 65536, 98304, 131072),
)


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield the grid, smallest cases first."""
    if device == "cpu":
        yield from _grid("torch", "float32", (16,), (1, 4), (64, 512))
    elif quick:
        yield from _grid("triton", "bfloat16", (16, 128), (1, 16, 128), (256, 4096, 16384))
    else:
        yield from _grid("triton", "bfloat16", _HEADS, _SEQS, _CONTEXTS)


def _grid(
    kernel: str,
    number: str,
    heads: tuple[int, ...],
    seqs: tuple[int, ...],
    contexts: tuple[int, ...],
) -> Iterator[Case]:
    for context in contexts:
        for count in seqs:
            for one in heads:
                if count * context * (RANK + ROPE) <= MOST_NUMBERS:
                    yield Case(
                        family="mla_decode",
                        kernel=kernel,
                        formats={"activations": number, "kv": number},
                        shape={
                            "heads": one,
                            "kv_lora_rank": RANK,
                            "rope_dim": ROPE,
                            "seqs": count,
                            "context_tokens": context,
                        },
                    )


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs of scores and sums, and bytes of queries, latents and results."""
    heads, seqs, context = _sizes(case)
    flops = 2.0 * seqs * heads * context * (2 * RANK + ROPE)
    numbers = seqs * (context * (RANK + ROPE) + heads * (2 * RANK + ROPE))
    return flops, float(numbers * _BYTES[case.formats["activations"]])


def _sizes(case: Case) -> tuple[int, int, int]:
    shape = case.shape
    return int(shape["heads"]), int(shape["seqs"]), int(shape["context_tokens"])


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare copies with block tables of their own, all in one pool."""
    import torch

    heads, seqs, context = _sizes(case)
    flops, num_bytes = work(case)
    draw = torch.Generator(device).manual_seed(seed)
    pool = shared_pool(case.formats["kv"], 1, BLOCK_SIZE * (RANK + ROPE), device)
    latents = pool.blocks(0, BLOCK_SIZE, RANK + ROPE)
    copies = num_copies(num_bytes, l2_bytes(device))
    tables = pool.tables(copies, seqs, -(-context // BLOCK_SIZE), draw)
    dtype = getattr(torch, case.formats["activations"])
    size = copies, seqs, heads, RANK + ROPE
    query = torch.randn(size, dtype=dtype, device=device, generator=draw)
    make = _on_host if case.kernel == "torch" else _paged
    calls = make(query, latents, tables, context)

    def error() -> float:
        return relative_error(calls[0](), reference(query[0], latents, tables[0], context))

    return Prepared(calls=calls, error=error, flops=flops, num_bytes=num_bytes)


def _paged(query: Any, latents: Any, tables: Any, context: int) -> list[Callable[[], Any]]:
    import torch

    from calibrate.measure.kernels.mla_triton import mla_decode

    copies, seqs, heads, _ = query.shape
    contexts = torch.full((seqs,), context, dtype=torch.int32, device=query.device)
    out = torch.empty(seqs, heads, RANK, dtype=query.dtype, device=query.device)
    launch = mla_decode(
        seqs=seqs,
        heads=heads,
        rank=RANK,
        rope=ROPE,
        block_size=BLOCK_SIZE,
        context_tokens=context,
        scale=SCALE,
        device=str(query.device),
    )

    def call(copy: int) -> Any:
        launch(query[copy], latents, tables[copy], contexts, out)
        return out

    return [partial(call, copy) for copy in range(copies)]


def _on_host(query: Any, latents: Any, tables: Any, context: int) -> list[Callable[[], Any]]:
    from torch.nn.functional import scaled_dot_product_attention as attend

    keys = latents[tables[0].long()].flatten(1, 2)[:, None, :context].contiguous()
    one = query[0][:, None]
    return [lambda: attend(one, keys, keys[..., :RANK], scale=SCALE)[:, 0]]


def reference(query: Any, latents: Any, table: Any, context: int) -> Any:
    """Compute float32 [seqs, heads, RANK], one sequence at a time."""
    import torch

    size = *query.shape[:2], RANK
    out = torch.empty(size, dtype=torch.float32, device=query.device)
    for seq, blocks in enumerate(table.long()):
        keys = latents[blocks].float().flatten(0, 1)[:context]
        weights = (query[seq].float() @ keys.T * SCALE).softmax(-1)
        out[seq] = weights @ keys[:, :RANK]
    return out
