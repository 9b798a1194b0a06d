"""One batch served from start to end: all prompts at once, then one step per token; no request
joins.

This is how engines were compared before in-flight batching. Kernels follow each other without host
time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gemm_paths import PrecisionPath, gemm_seconds
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.kernel_curves import core_instructions_per_s
from costmodels.hardware.roofline import operator_seconds
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.gqa import Gqa
from costmodels.operators.operators import (
    DecodeSums,
    PrefillSums,
    decode_operators,
    logit_operators,
    prefill_operators,
    token_operators,
)
from costmodels.work import Array, Operator
from sim.shape import Clip, causal_pairs_clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatch:
    """A batch of equal requests on one rank of ``rank``'s group."""

    rank: RankShard
    gpu: GpuSpec
    efficiency: Efficiency
    path: PrecisionPath | None = None
    """What dequantising costs beside the GEMMs; None: nothing."""

    def prefill_s(self, batch: int, prompt_tokens: int) -> float:
        """Seconds until every request has its first token."""
        tokens, seqs = _one(batch * prompt_tokens), _one(batch)
        caps = _caps(self.rank)
        chunks = PrefillSums(
            seqs=seqs,
            tokens=tokens,
            prefix=dict.fromkeys(caps, _one(0)),
            pairs={cap: _one(batch * _pairs(prompt_tokens, cap)) for cap in caps},
        )
        return self._seconds([*self._common(tokens, seqs), *prefill_operators(self.rank, chunks)])

    def decode_step_s(self, batch: int, context: float, prompt_tokens: int | None = None) -> float:
        """Seconds of one token for every request with so much ``context``.

        ``prompt_tokens``: how much of it was the prompt; None: all.
        """
        prompt = context if prompt_tokens is None else float(prompt_tokens)
        seqs = _one(batch)
        sums = DecodeSums(
            seqs=seqs,
            clipped={cap: _one(batch * _reach(context, prompt, cap)) for cap in _caps(self.rank)},
        )
        attention_s = self._seconds(decode_operators(self.rank, sums))
        attention_s = max(attention_s, self._kv_instructions_s(batch * context))
        return self._seconds(self._common(seqs, seqs)) + attention_s

    def seconds(self, batch: int, prompt_tokens: int, output_tokens: int) -> tuple[float, float]:
        """Prefill and decode seconds of the whole batch. The prefill makes the first token."""
        middle = prompt_tokens + output_tokens / 2
        steps = output_tokens - 1
        decode_s = steps * self.decode_step_s(batch, middle, prompt_tokens)
        return self.prefill_s(batch, prompt_tokens), decode_s

    def tokens_per_s(self, batch: int, prompt_tokens: int, output_tokens: int) -> float:
        """Generated tokens over all seconds."""
        return batch * output_tokens / sum(self.seconds(batch, prompt_tokens, output_tokens))

    def _kv_instructions_s(self, context_tokens: float) -> float:
        """Decode attention beside the tensor cores, where a path says what it takes."""
        rate = core_instructions_per_s(self.gpu)
        if self.path is None or rate is None:
            return 0.0
        elements = sum(
            count * 2 * mixer.heads * mixer.head_dim
            for mixer, count in self.rank.local.mixers
            if isinstance(mixer, Gqa)
        )
        return self.path.kv_instructions * elements * context_tokens / rate

    def _common(self, tokens: Array, logits: Array) -> list[Operator]:
        per_logit = self.efficiency.sampling_bytes_per_logit
        return [*token_operators(self.rank, tokens), *logit_operators(self.rank, logits, per_logit)]

    def _seconds(self, operators: list[Operator]) -> float:
        return sum(self._operator_s(operator) for operator in operators)

    def _operator_s(self, operator: Operator) -> float:
        ranks = self.rank.tensor_parallel_size
        priced = operator_seconds(operator, self.gpu, self.efficiency, ranks)
        found = float(priced.total_s[0])
        if self.path is None or operator.weights != self.path.weights or operator.matrix is None:
            return found
        # Tensor cores wait while the main loop unpacks weights: it adds to the compute side.
        rows = int(operator.rows[0])
        extra_s = (
            operator.calls * gemm_seconds(self.path, self.gpu, rows, *operator.matrix).dequantize
        )
        no_bytes = np.zeros_like(operator.rows)
        computed = operator_seconds(
            replace(operator, weight_bytes=no_bytes, activation_bytes=no_bytes),
            self.gpu,
            self.efficiency,
            ranks,
        )
        return max(found, float(computed.total_s[0]) + extra_s)


def _caps(rank: RankShard) -> tuple[Clip | None, ...]:
    return (None, *rank.model.clips)


def _pairs(tokens: int, clip: Clip | None) -> int:
    return 0 if isinstance(clip, tuple) else causal_pairs_clipped(0, tokens, clip)


def _reach(context: float, prompt: float, clip: Clip | None) -> float:
    """`sim.shape.clipped` of a context that need not be whole tokens."""
    if isinstance(clip, tuple):
        return sum(min(prompt, budget) + context - prompt for budget in clip)
    return context if clip is None else min(context, clip)


def _one(value: float) -> Array:
    return np.array([float(value)])
