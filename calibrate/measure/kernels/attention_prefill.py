"""Measure causal attention of equal prompts after cached prefixes.

Kernel ``triton`` is ours (`prefill_triton`). ``torch_cudnn`` and ``torch_flash`` are torch's; the
first takes only prompts without a prefix (its mask is aligned to the first key), and neither
supports a window. ``torch``, on a processor, is whatever torch chooses there.
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
    LLAMA_70B,
    WINDOWED,
    Heads,
    causal_pairs,
    seen,
)
from calibrate.measure.machine import streamed_l2_bytes

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MOST_TOKENS = 16384
# Sizes on both sides of the steps in tiles of queries, and in waves of tiles.
_NEW = (
    *(16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896),
    *(1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288),
    *(14336, 16384),
)
_PREFIXES = (0, 512, 2048, 8192, 32768, 65536)
_SEQS = (1, 4, 32)
_FEW_PREFIXES = (0, 2048, 16384, 65536)
_FEW_SEQS = (1, 8)
_MOST_KV_TOKENS = 2**20
"""Most KV tokens of all prompts together, including prefixes."""
_MOST_SCORES = 2**28
"""Most scores that the check has in memory at a time: 1 GiB, held several times."""

Axis = tuple[int, ...]
Call = Callable[[], Any]


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield our kernel over the whole grid, and torch's over fewer heads and prefixes; on a
    processor, a small float32 grid."""
    if device == "cpu":
        heads = (Heads(8, 2, 64),) if quick else (Heads(8, 2, 64), LLAMA_8B[2], WINDOWED[0])
        yield from _grid("torch", "float32", heads, (16, 128), (0, 256), (1, 2))
        return
    some, new, prefixes, seqs = LLAMA_8B[:1], (64, 512, 4096, 8192), (0, 8192), (1, 4)
    if quick:
        yield from _grid("triton", "bfloat16", some, new, prefixes, seqs)
        yield from _torch(some, new, prefixes, seqs)
        return
    main = (LLAMA_8B[0], LLAMA_8B[2], LLAMA_70B[1])
    others = tuple(one for one in FULL if one not in main)
    yield from _grid("triton", "bfloat16", main, _NEW, _PREFIXES, _SEQS)
    yield from _grid("triton", "bfloat16", others, _NEW, _FEW_PREFIXES, _FEW_SEQS)
    yield from _grid("triton", "bfloat16", WINDOWED, _NEW, (0, 4096, 65536), _FEW_SEQS)
    by_torch = (LLAMA_8B[0], LLAMA_70B[1], GPT_OSS[0], GEMMA3_12B[0])
    yield from _torch(by_torch, _NEW, _FEW_PREFIXES, _FEW_SEQS)


def _torch(heads: tuple[Heads, ...], new: Axis, prefixes: Axis, seqs: Axis) -> Iterator[Case]:
    yield from _grid("torch_flash", "bfloat16", heads, new, prefixes, seqs)
    yield from _grid("torch_cudnn", "bfloat16", heads, new, (0,), seqs)


def _grid(
    kernel: str,
    number: str,
    heads: tuple[Heads, ...],
    new: Axis,
    prefixes: Axis,
    seqs: Axis,
) -> Iterator[Case]:
    for tokens in new:
        for prefix in prefixes:
            for count in seqs:
                for one in heads:
                    if (
                        tokens * count <= _MOST_TOKENS
                        and (prefix + tokens) * count <= _MOST_KV_TOKENS
                    ):
                        yield Case(
                            family="prefill_attention",
                            kernel=kernel,
                            formats={"activations": number, "kv": number},
                            shape=one._asdict()
                            | {"new_tokens": tokens, "prefix_tokens": prefix, "seqs": count},
                        )


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs of the visible pairs, and bytes of queries, visible keys and values, and
    results."""
    heads, new, prefix, seqs = _sizes(case)
    pairs = causal_pairs(prefix + new, heads.window) - causal_pairs(prefix, heads.window)
    kv_tokens = min(prefix + new, heads.window + new) if heads.window else prefix + new
    numbers = 2 * seqs * heads.head_dim * (heads.q_heads * new + heads.kv_heads * kv_tokens)
    flops = 4.0 * seqs * heads.q_heads * heads.head_dim * pairs
    return flops, float(numbers * _BYTES[case.formats["activations"]])


def _sizes(case: Case) -> tuple[Heads, int, int, int]:
    heads = Heads(*(int(case.shape[name]) for name in Heads._fields))
    new, prefix = int(case.shape["new_tokens"]), int(case.shape["prefix_tokens"])
    return heads, new, prefix, int(case.shape["seqs"])


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare queries, keys and values token by token, as projections produce them, with
    contiguous KV."""
    import torch

    heads, new, prefix, seqs = _sizes(case)
    flops, num_bytes = work(case)
    draw = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, case.formats["activations"])

    def random(tokens: int, num_heads: int) -> Any:
        size = seqs, tokens, num_heads, heads.head_dim
        return torch.randn(size, dtype=dtype, device=device, generator=draw)

    def inputs() -> tuple[Any, Any, Any]:
        kv_tokens = prefix + new
        return random(new, heads.q_heads), *(random(kv_tokens, heads.kv_heads) for _ in range(2))

    copies = [inputs() for _ in range(num_copies(num_bytes, streamed_l2_bytes(device)))]
    attend = _KERNELS[case.kernel](heads, new, prefix, seqs, copies[0][0])
    calls: list[Call] = [partial(attend, *copy) for copy in copies]

    def error() -> float:
        return relative_error(calls[0](), reference(*copies[0], heads))

    return Prepared(calls=calls, error=error, flops=flops, num_bytes=num_bytes)


def _triton(heads: Heads, new: int, prefix: int, seqs: int, query: Any) -> Callable[..., Any]:
    import torch

    from calibrate.measure.kernels.prefill_triton import prefill

    out = torch.empty_like(query)
    launch = prefill(
        seqs=seqs,
        new=new,
        prefix=prefix,
        kv_heads=heads.kv_heads,
        group=heads.group,
        head_dim=heads.head_dim,
        window=heads.window,
        device=str(query.device),
    )

    def call(query: Any, keys: Any, values: Any) -> Any:
        launch(query, keys, values, out)
        return out

    return call


def _flash(heads: Heads, new: int, prefix: int, seqs: int, query: Any) -> Callable[..., Any]:
    """Return torch's FlashAttention, which aligns its causal mask to the last key, and shares KV
    heads."""
    import torch

    _no_window(heads)
    attend = torch.ops.aten._scaled_dot_product_flash_attention

    def call(query: Any, keys: Any, values: Any) -> Any:
        q, k, v = (part.transpose(1, 2) for part in (query, keys, values))
        return attend(q, k, v, 0.0, is_causal=True)[0].transpose(1, 2)

    return call


def _cudnn(heads: Heads, new: int, prefix: int, seqs: int, query: Any) -> Callable[..., Any]:
    """Return cuDNN's attention, which also shares KV heads; its causal mask is aligned to the
    first key."""
    import torch

    _no_window(heads)
    if prefix:
        raise ValueError("its causal mask has no place for a prefix")
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention

    def call(query: Any, keys: Any, values: Any) -> Any:
        q, k, v = (part.transpose(1, 2) for part in (query, keys, values))
        return attend(q, k, v, None, False, 0.0, is_causal=True)[0].transpose(1, 2)

    return call


def _on_host(heads: Heads, new: int, prefix: int, seqs: int, query: Any) -> Callable[..., Any]:
    import torch

    at = torch.arange(prefix + new, device=query.device)
    ahead = at - at[prefix:, None]
    mask = ahead <= 0
    if heads.window:
        mask &= ahead > -heads.window

    def call(query: Any, keys: Any, values: Any) -> Any:
        q, k, v = (part.transpose(1, 2) for part in (query, keys, values))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)

    return call


def _no_window(heads: Heads) -> None:
    if heads.window:
        raise ValueError("torch has no sliding window here")


_KERNELS = {"triton": _triton, "torch_flash": _flash, "torch_cudnn": _cudnn, "torch": _on_host}


def reference(query: Any, keys: Any, values: Any, heads: Heads) -> Any:
    """Compute attention in float32, for one KV head and as many queries at a time as fit into
    memory."""
    import torch

    new, length = query.shape[1], keys.shape[1]
    prefix = length - new
    at = torch.arange(length, device=query.device)
    out = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    for begin, end in _chunks(new, _MOST_SCORES // (length * heads.group)):
        # Keys from the first one that the first query sees to the last one that the last query
        # sees.
        visible = slice(prefix + begin + 1 - seen(prefix + begin + 1, heads.window), prefix + end)
        ahead = at[visible] - at[prefix + begin : prefix + end, None]
        hidden = (ahead > 0) | (ahead <= -seen(length, heads.window))
        for seq in range(query.shape[0]):
            for head in range(heads.kv_heads):
                some = slice(head * heads.group, (head + 1) * heads.group)
                q = query[seq, begin:end, some].float().transpose(0, 1)
                scores = q @ keys[seq, visible, head].float().T * heads.head_dim**-0.5
                weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
                found = weights @ values[seq, visible, head].float()
                out[seq, begin:end, some] = found.transpose(0, 1)
    return out


def _chunks(count: int, most: int) -> Iterator[tuple[int, int]]:
    step = max(1, most)
    return ((begin, min(count, begin + step)) for begin in range(0, count, step))
