"""A decoder-only transformer with a KV cache, run step by step in plain torch on a processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from calibrate.measure.kernels.sampling import Random
from tests.bench.cpu_loop.kernels import TorchKernels
from tests.bench.cpu_loop.shape import LoopModel, LoopStep

Mark = Callable[[str], None]


class Layer(NamedTuple):
    """Weights of a layer, matrices as [n, k], and its cache: keys and values [slots, kv_size]."""

    attention_norm: Any
    qkv: Any
    o: Any
    ffn_norm: Any
    gate_up: Any
    down: Any
    cache: tuple[Any, Any]


class Decoder:
    """Random weights, buffers for steps of up to ``most_tokens``, a cache of ``slots`` tokens.

    Slots are dealt to sequences in equal runs: as many as a step has sequences.
    """

    def __init__(self, model: LoopModel, *, most_tokens: int, slots: int, seed: int = 0) -> None:
        self.model = model
        self._slots = slots
        self._draw = torch.Generator().manual_seed(seed)
        self.table = self._random(model.vocab, model.hidden)
        self.layers = [self._layer() for _ in range(model.layers)]
        self.last_norm = torch.ones(model.hidden)
        self.lm_head = self._matrix(model.vocab, model.hidden)
        widths = {
            "x": model.hidden,
            "residual": model.hidden,
            "normed": model.hidden,
            "qkv": model.q_size + 2 * model.kv_size,
            "turned": model.q_size + model.kv_size,
            "attended": model.q_size,
            "gate_up": 2 * model.inter,
            "activated": model.inter,
        }
        self._buffers = {name: torch.zeros(most_tokens, width) for name, width in widths.items()}
        self._logits = torch.zeros(most_tokens, model.vocab)
        half = model.head_dim // 2
        angles = torch.outer(
            torch.arange(slots, dtype=torch.float32),
            1e4 ** (-torch.arange(half, dtype=torch.float32) / half),
        )
        self._cos, self._sin = angles.cos(), angles.sin()
        self._sampler = lru_cache(maxsize=None)(self._make_sampler)

    def step(self, step: LoopStep, ids: Any, kernels: TorchKernels, mark: Mark) -> Any:
        """Run a step on ``ids`` [tokens], the decodes first; the sampled tokens: [logits].

        ``mark`` is called after each part, with its name.
        """
        run, tokens = self._run_length(step), step.tokens
        positions, slots, last = self._places(step, run)
        x, residual, normed, *buffers = (part[:tokens] for part in self._buffers.values())
        residual.zero_()
        kernels.embed(ids, self.table, x)
        mark("embedding")
        for number, layer in enumerate(self.layers):
            kernels.norm(x, residual, layer.attention_norm, normed)
            self._attention(layer, step, run, normed, (positions, slots), buffers, kernels, x)
            mark(f"attention {number}")
            kernels.norm(x, residual, layer.ffn_norm, normed)
            kernels.linear("gate_up", normed, layer.gate_up, buffers[3])
            kernels.silu_mul(buffers[3], buffers[4])
            kernels.linear("down", buffers[4], layer.down, x)
            mark(f"ffn {number}")
        kernels.norm(x, residual, self.last_norm, normed)
        chosen = normed if last is None else normed[last]
        logits, sampler = self._logits[: step.logits], self._sampler(step.logits)
        kernels.linear("lm_head", chosen, self.lm_head, logits)
        kernels.sample(sampler, logits)
        mark("head")
        return sampler.tokens

    @property
    def logits(self) -> Any:
        """Return the logits of the last step, in the first rows."""
        return self._logits

    def _attention(
        self,
        layer: Layer,
        step: LoopStep,
        run: int,
        normed: Any,
        places: tuple[Any, Any],
        buffers: list[Any],
        kernels: TorchKernels,
        out: Any,
    ) -> None:
        model, (qkv, turned, attended, *_) = self.model, buffers
        kernels.linear("qkv", normed, layer.qkv, qkv)
        rotated = model.q_size + model.kv_size
        kernels.rotary(qkv[:, :rotated], places[0], self._cos, self._sin, turned)
        kernels.kv_write(turned[:, model.q_size :], qkv[:, rotated:], places[1], layer.cache)
        query = turned[:, : model.q_size].unflatten(1, (model.heads, model.head_dim))
        results = []
        if step.decodes:
            seqs, context = step.decodes, step.context_tokens + 1
            keys, values = self._cached(layer, slice(0, seqs), run, context)
            rows = attended[:seqs]
            results.append(kernels.attend(query[:seqs, None], keys, values, None, rows))
        if step.chunk_tokens:
            new, prefix = step.chunk_tokens, step.prefix_tokens
            one = slice(step.decodes, step.decodes + 1)
            keys, values = self._cached(layer, one, run, prefix + new)
            rows, mask = attended[step.decodes :], causal_mask(new, prefix)
            results.append(kernels.attend(query[None, step.decodes :], keys, values, mask, rows))
        rows = results[0] if len(results) == 1 else torch.cat(results)
        kernels.linear("o", rows, layer.o, out)

    def _cached(self, layer: Layer, seqs: slice, run: int, tokens: int) -> list[Any]:
        """Keys and values [seqs, tokens, kv_heads, head_dim]: views of the cache."""
        kv_heads, head_dim = self.model.kv_heads, self.model.head_dim
        return [
            part[seqs.start * run : seqs.stop * run].view(-1, run, kv_heads, head_dim)[:, :tokens]
            for part in layer.cache
        ]

    def _run_length(self, step: LoopStep) -> int:
        run = self._slots // step.logits
        needed = max(step.context_tokens + 1, step.prefix_tokens + step.chunk_tokens)
        if needed > run:
            raise ValueError(f"{step}: a sequence of {needed} tokens has {run} slots")
        return run

    def _places(self, step: LoopStep, run: int) -> tuple[Any, Any, Any]:
        """Positions and slots of the new tokens; the rows that sample, None for all."""
        positions = torch.full((step.decodes,), step.context_tokens)
        slots = torch.arange(step.decodes) * run + step.context_tokens
        if not step.chunk_tokens:
            return positions, slots, None
        chunk = torch.arange(step.prefix_tokens, step.prefix_tokens + step.chunk_tokens)
        last = torch.arange(step.logits)
        last[-1] = step.tokens - 1
        return (
            torch.cat((positions, chunk)),
            torch.cat((slots, chunk + step.decodes * run)),
            last,
        )

    def _layer(self) -> Layer:
        model = self.model
        return Layer(
            attention_norm=torch.ones(model.hidden),
            qkv=self._matrix(model.q_size + 2 * model.kv_size, model.hidden),
            o=self._matrix(model.hidden, model.q_size),
            ffn_norm=torch.ones(model.hidden),
            gate_up=self._matrix(2 * model.inter, model.hidden),
            down=self._matrix(model.hidden, model.inter),
            cache=(
                self._random(self._slots, model.kv_size),
                self._random(self._slots, model.kv_size),
            ),
        )

    def _matrix(self, outer: int, inner: int) -> Any:
        return self._random(outer, inner) * inner**-0.5

    def _random(self, *shape: int) -> Any:
        return torch.randn(shape, generator=self._draw)

    def _make_sampler(self, rows: int) -> Random:
        return Random(rows, self.model.vocab, "cpu", self._draw)


@lru_cache(maxsize=64)
def causal_mask(new: int, prefix: int) -> Any:
    """[new, prefix + new]: which tokens a new one looks at. Made once: kernels of engines need
    none."""
    at = torch.arange(prefix + new)
    return at <= at[prefix:, None]
