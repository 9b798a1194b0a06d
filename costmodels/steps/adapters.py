"""Term of a step's price: the kernels of LoRA adapters.

vLLM runs two kernels for each adapted projection, ``lora_shrink`` (x A) and ``lora_expand``
(+ ... B), over all tokens and adapters of the step, with the slots' rank. They read the matrices of
each adapter in the step once, and move the activations of the tokens that use one. A step without
adapters runs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.shard import RankShard
from costmodels.operators.adapters import adapted_matrices, adapter_bytes
from costmodels.steps.compiled import to_fixed_ns
from costmodels.steps.describe import StepRow
from costmodels.work import FRACTION_BITS, ONE, Array, slowed
from sim import accounts
from sim.clock import NS_PER_S, to_ns
from sim.evidence import Source
from sim.shape import AdapterSums, StepShape

_KERNELS = 2
_BUFFER_BYTES = 4
"""The product with A is kept in 32 bits between the two kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterKernels:
    """The time of adapters' kernels on one rank; a `combined.StepTerm`."""

    rank: int
    calls: int
    """Kernels of a step with adapters."""
    fixed_ns: int
    """Launches of a step's kernels."""
    adapter_fixed_ns: int
    """Reading one adapter, `FRACTION_BITS` bits behind the point; the next two: moving and
    multiplying the activations of one token."""
    moved_fixed_ns: int
    multiplied_fixed_ns: int
    adapter_bytes: int
    token_bytes: float
    token_flops: float

    def beside_ns(self, shape: StepShape, kernels_ns: int) -> int:
        """Return the time of a step's adapter kernels."""
        sums = AdapterSums(*shape.adapters)
        tokens = sums.decode_adapter_tokens + sums.prefill_adapter_tokens
        if not tokens:
            return 0
        read = (sums.decode_adapters + sums.prefill_adapters) * self.adapter_fixed_ns
        work = max(read + tokens * self.moved_fixed_ns, tokens * self.multiplied_fixed_ns)
        return self.fixed_ns + (work >> FRACTION_BITS)

    def beside_s(self, columns: Mapping[str, Array], kernels_s: Array) -> dict[str, Array]:
        """Return the seconds of the adapter kernels of ``n`` steps."""
        sums = [columns.get(name, np.zeros_like(kernels_s)) for name in AdapterSums._fields]
        adapters, tokens = sums[0] + sums[2], sums[1] + sums[3]
        memory = adapters * self.adapter_fixed_ns + tokens * self.moved_fixed_ns
        work_ns = np.maximum(memory, tokens * self.multiplied_fixed_ns) / ONE
        return {accounts.ADAPTERS: np.where(tokens > 0, self.fixed_ns + work_ns, 0.0) / NS_PER_S}

    def rows(self, shape: StepShape, kernels_ns: int) -> list[StepRow]:
        """Return one row with all of a step's adapter kernels; none without adapters."""
        sums = AdapterSums(*shape.adapters)
        tokens = sums.decode_adapter_tokens + sums.prefill_adapter_tokens
        if not tokens:
            return []
        adapters = sums.decode_adapters + sums.prefill_adapters
        row = StepRow(
            "lora",
            self.calls,
            flops=tokens * self.token_flops,
            weight_bytes=float(adapters * self.adapter_bytes),
            activation_bytes=tokens * self.token_bytes,
            seconds=self.beside_ns(shape, kernels_ns) / NS_PER_S,
        )
        return [row]

    def evidence(self, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels of accounts, given those of the kernels."""
        return labels | {accounts.ADAPTERS: "assumed"}

    def sources(self) -> list[Source]:
        """Return what the prices of adapters rest on."""
        return [
            Source(
                what=f"LoRA kernels of rank {self.rank}",
                value=self.fixed_ns / NS_PER_S,
                label="assumed",
                source="bytes and FLOPs of vLLM's lora_shrink and lora_expand, at the shares of "
                "the GPU's peaks that elementwise kernels and matrices reach; value: seconds of "
                "their launches per step",
            )
        ]

    def slower(self, factor: float) -> AdapterKernels:
        """Return a copy with all times multiplied by ``factor``."""
        names = ("fixed_ns", "adapter_fixed_ns", "moved_fixed_ns", "multiplied_fixed_ns")
        return slowed(self, factor, *names)


def adapter_kernels(
    shard: RankShard, gpu: GpuSpec, efficiency: Efficiency, rank: int
) -> AdapterKernels:
    """Price the kernels of adapters in slots of this rank."""
    matrices, elem = adapted_matrices(shard), shard.model.dtype_bytes
    calls = _KERNELS * sum(matrix.calls for matrix in matrices)
    # The input is read and the product with A written; that is read, and the output updated.
    token_bytes = float(
        sum(
            m.calls * (elem * (m.inner + 2 * m.outer) + 2 * _BUFFER_BYTES * m.parts * rank)
            for m in matrices
        )
    )
    token_flops = 2.0 * sum(matrix.elements(rank) for matrix in matrices)
    bandwidth = gpu.hbm_bytes_per_s * efficiency.elementwise_memory
    compute = gpu.bf16_flop_per_s * efficiency.gemm_compute
    size = adapter_bytes(shard, rank)
    return AdapterKernels(
        rank=rank,
        calls=calls,
        fixed_ns=to_ns(calls * efficiency.elementwise_fixed_s),
        adapter_fixed_ns=to_fixed_ns(size / bandwidth),
        moved_fixed_ns=to_fixed_ns(token_bytes / bandwidth),
        multiplied_fixed_ns=to_fixed_ns(token_flops / compute),
        adapter_bytes=size,
        token_bytes=token_bytes,
        token_flops=token_flops,
    )
