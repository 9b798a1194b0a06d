"""Operators of the loop's steps, computed by the functions that `calibrate.measure` measures."""

from __future__ import annotations

from typing import Any

import torch

from calibrate.measure.kernels import elementwise_torch
from calibrate.measure.kernels.sampling import Random


class TorchKernels:
    """Each method is one operator as fleetcast prices it; all but `attend` write into ``out``."""

    def embed(self, ids: Any, table: Any, out: Any) -> None:
        """Rows of the token table."""
        torch.index_select(table, 0, ids, out=out)

    def norm(self, x: Any, residual: Any, weight: Any, out: Any) -> None:
        """Adds ``x`` to the residual and norms that."""
        elementwise_torch.add_rms_norm(x, residual, weight, residual, out)

    def linear(self, name: str, x: Any, weight: Any, out: Any) -> None:
        """``x`` [rows, k] times ``weight`` [n, k] transposed."""
        torch.mm(x, weight.t(), out=out)

    def rotary(self, x: Any, positions: Any, cos: Any, sin: Any, out: Any) -> None:
        """Turns queries and keys."""
        elementwise_torch.rotary(x, positions, cos, sin, out)

    def kv_write(self, keys: Any, values: Any, slots: Any, cache: Any) -> None:
        """Keys and values of the new tokens go to their slots."""
        cache[0].index_copy_(0, slots, keys)
        cache[1].index_copy_(0, slots, values)

    def attend(self, query: Any, keys: Any, values: Any, mask: Any, out: Any) -> Any:
        """[seqs, tokens, heads, head_dim] over [seqs, kv_tokens, kv_heads, head_dim]: rows."""
        q, k, v = (part.transpose(1, 2) for part in (query, keys, values))
        attention = torch.nn.functional.scaled_dot_product_attention
        found = attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return found.transpose(1, 2).reshape(out.shape)

    def silu_mul(self, x: Any, out: Any) -> None:
        """Compute the gated activation."""
        elementwise_torch.silu_mul(x, out)

    def sample(self, sampler: Random, logits: Any) -> None:
        """A token a row, by its probability, into ``sampler.tokens``."""
        sampler.sample(logits)


class NoKernels(TorchKernels):
    """Kernels that do no work, so that only the time of Python and of torch's views remains."""

    def embed(self, ids: Any, table: Any, out: Any) -> None:
        """Skip the embedding lookup."""

    def norm(self, x: Any, residual: Any, weight: Any, out: Any) -> None:
        """Skip the residual and norm."""

    def linear(self, name: str, x: Any, weight: Any, out: Any) -> None:
        """Skip the matrix product."""

    def rotary(self, x: Any, positions: Any, cos: Any, sin: Any, out: Any) -> None:
        """Skip the rotary positions."""

    def kv_write(self, keys: Any, values: Any, slots: Any, cache: Any) -> None:
        """Skip the cache write."""

    def attend(self, query: Any, keys: Any, values: Any, mask: Any, out: Any) -> Any:
        """What is in the buffer."""
        return out

    def silu_mul(self, x: Any, out: Any) -> None:
        """Skip the gated activation."""

    def sample(self, sampler: Random, logits: Any) -> None:
        """Skip sampling, and keep the previous tokens."""
