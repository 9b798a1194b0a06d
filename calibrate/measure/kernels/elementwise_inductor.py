"""The small operators between matrix products as compiled by torch, which is what vLLM runs.

vLLM writes them in torch and compiles the model for any number of rows and for its own widths.
Tensors are [rows, width], contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Every width is compiled separately, as in a model, and one row separately from several.
torch._dynamo.config.automatic_dynamic_shapes = False
torch._dynamo.config.recompile_limit = 64
_COMPILED_ROWS = 8192
"""Rows for which vLLM compiles: the default max_num_batched_tokens."""
_HEAD_DIM = 128
_QUERY_HEADS_A_KEY_HEAD = 4
"""Query heads per key head. Queries and keys are rotated by one kernel each."""


def _compiled(*fixed: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for any number of rows; the arguments at ``fixed`` have no rows."""

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = torch.compile(function, fullgraph=True)
        widths: set[int] = set()

        def call(*tensors: Any) -> Any:
            width = tensors[0].shape[1]
            if width not in widths:
                widths.add(width)
                batched = enumerate(tensors)
                compiled(*(one if at in fixed else _tall(one) for at, one in batched))
            return compiled(*tensors)

        return call

    return compile_it


def _tall(tensor: Any) -> Any:
    """Return a tensor with as many rows as vLLM compiles with; block sizes are chosen for them,
    and kept for fewer rows."""
    tall = torch.zeros(
        (_COMPILED_ROWS, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device
    )
    torch._dynamo.mark_dynamic(tall, 0)
    return tall


@_compiled(2)
def add_rms_norm(x: Any, residual: Any, weight: Any, total: Any, out: Any) -> None:
    """Compute total = x + residual and out = total over its root mean square, times weight."""
    summed = x.float() + residual.float()
    total.copy_(summed.to(total.dtype))
    normed = summed * torch.rsqrt(summed.pow(2).mean(-1, keepdim=True) + 1e-6)
    out.copy_(normed.to(out.dtype) * weight)


@_compiled()
def residual_add(x: Any, residual: Any, out: Any) -> None:
    """Compute out = x + residual."""
    out.copy_(x + residual)


@_compiled()
def silu_mul(x: Any, out: Any) -> None:
    """Compute out = silu(x's first half) * its second half; ``x`` is [rows, 2 width]."""
    half = x.shape[-1] // 2
    out.copy_(torch.nn.functional.silu(x[..., :half]) * x[..., half:])


@_compiled(2, 3)
def _turned(x: Any, positions: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
    rows, heads = x.shape[0], x.shape[1] // _HEAD_DIM
    keys = heads // (_QUERY_HEADS_A_KEY_HEAD + 1) * _HEAD_DIM
    c, s = (part.index_select(0, positions).unsqueeze(-2) for part in (cos, sin))
    turned = []
    for part in x.split((x.shape[1] - keys, keys), 1):
        first, second = part.view(rows, -1, _HEAD_DIM).chunk(2, -1)
        both = torch.cat((first * c - second * s, second * c + first * s), -1)
        turned.append(both.view(rows, -1))
    return tuple(turned)


def rotary(x: Any, positions: Any, cos: Any, sin: Any, out: Any) -> tuple[Any, ...]:
    """Rotate queries and keys, and return them. cos and sin are [positions, head_dim / 2];
    ``out`` is not used."""
    parts: tuple[Any, ...] = _turned(x, positions, cos, sin)
    return parts
