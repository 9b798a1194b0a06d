"""Term of a step's price: the kernels of LoRA adapters.

For each adapted projection vLLM clears a buffer and runs two kernels, ``lora_shrink`` (x A) and
``lora_expand`` (+ ... B), over all tokens and adapters of the step, with the slots' rank. A step
without adapters runs none of them. Their times are fitted to a measurement
(``costmodels/engines/lora_kernels.yaml``): they are far from the device's bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.datafile import read_data
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.shard import RankShard
from costmodels.operators.adapters import adapted_matrices, adapter_bytes
from costmodels.steps.clips import to_fixed_ns
from costmodels.steps.describe import StepRow
from costmodels.work import FRACTION_BITS, ONE, Array, slowed
from sim import accounts
from sim.clock import NS_PER_S, to_ns
from sim.evidence import Source
from sim.shape import AdapterSums, StepShape

_FILE = "engines/lora_kernels.yaml"
_KERNELS = 3
_BUFFER_BYTES = 4
"""The product with A is kept in 32 bits between the two kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The prices of one configuration of the kernels."""

    fixed_ns: int
    """All projections of a step."""
    adapter_fixed_ns: int
    """More for each adapter, `FRACTION_BITS` bits behind the point; the next: for each token."""
    token_fixed_ns: int

    def ns(self, adapters: int, tokens: int) -> int:
        """Return the time of a step in which ``tokens`` use ``adapters``."""
        work = adapters * self.adapter_fixed_ns + tokens * self.token_fixed_ns
        return self.fixed_ns + (work >> FRACTION_BITS)

    def seconds(self, adapters: Array, tokens: Array) -> Array:
        """Return the times of ``n`` steps."""
        work = adapters * self.adapter_fixed_ns + tokens * self.token_fixed_ns
        seconds: Array = (self.fixed_ns + work / ONE) / NS_PER_S
        return seconds

    def slower(self, factor: float) -> Regime:
        """Return a copy with all times multiplied by ``factor``."""
        return slowed(self, factor, "fixed_ns", "adapter_fixed_ns", "token_fixed_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterKernels:
    """The time of adapters' kernels on one rank; a `combined.StepTerm`."""

    rank: int
    calls: int
    """Kernels of a step with adapters."""
    small: Regime
    large: Regime
    small_tokens: int
    """Tokens of a step from which on it is ``large``."""
    adapter_bytes: int
    token_bytes: float
    token_flops: float
    label: str
    source: str

    def beside_ns(self, shape: StepShape, kernels_ns: int) -> int:
        """Return the time of a step's adapter kernels."""
        adapters, tokens = _totals(shape)
        if not tokens:
            return 0
        regime = self.small if shape.num_tokens < self.small_tokens else self.large
        return regime.ns(adapters, tokens)

    def beside_s(self, columns: Mapping[str, Array], kernels_s: Array) -> dict[str, Array]:
        """Return the seconds of the adapter kernels of ``n`` steps."""
        none = np.zeros_like(kernels_s)
        decoding, at_decodes, prefilling, at_prefills = (
            columns.get(name, none) for name in AdapterSums._fields
        )
        adapters, tokens = decoding + prefilling, at_decodes + at_prefills
        of_step = columns["decode_seqs"] + columns["prefill_tokens"]
        is_small = of_step + columns.get("draft_tokens", none) < self.small_tokens
        seconds = np.where(
            is_small, self.small.seconds(adapters, tokens), self.large.seconds(adapters, tokens)
        )
        return {accounts.ADAPTERS: np.where(tokens > 0, seconds, 0.0)}

    def rows(self, shape: StepShape, kernels_ns: int) -> list[StepRow]:
        """Return one row with all of a step's adapter kernels; none without adapters."""
        adapters, tokens = _totals(shape)
        if not tokens:
            return []
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
        return labels | {accounts.ADAPTERS: self.label}

    def sources(self) -> list[Source]:
        """Return what the prices of adapters rest on."""
        return [
            Source(
                what=f"LoRA kernels of rank {self.rank}, seconds of a step before its adapters",
                value=self.small.fixed_ns / NS_PER_S,
                label=self.label,
                source=self.source,
            )
        ]

    def slower(self, factor: float) -> AdapterKernels:
        """Return a copy with all times multiplied by ``factor``."""
        return slowed(self, factor, "small", "large")


def _totals(shape: StepShape) -> tuple[int, int]:
    """Return the adapters of a step, and the new tokens that use one."""
    decoding, at_decodes, prefilling, at_prefills = AdapterSums(*shape.adapters)
    return decoding + prefilling, at_decodes + at_prefills


def adapter_kernels(shard: RankShard, gpu: GpuSpec, rank: int) -> AdapterKernels:
    """Price the kernels of adapters in slots of this rank."""
    constants = read_data(_FILE)
    matrices, elem = adapted_matrices(shard), shard.model.dtype_bytes
    calls = sum(matrix.calls for matrix in matrices)
    # The input is read and the product with A written; that is read, and the output updated.
    token_bytes = float(
        sum(
            m.calls * (elem * (m.inner + 2 * m.outer) + 2 * _BUFFER_BYTES * m.parts * rank)
            for m in matrices
        )
    )
    size = adapter_bytes(shard, rank)

    def regime(name: str) -> Regime:
        found = constants["regimes"][name]
        read_s = size / (gpu.hbm_bytes_per_s * found["read_share"])
        moved_s = token_bytes / (gpu.hbm_bytes_per_s * found["move_share"])
        return Regime(
            fixed_ns=to_ns(calls * found["call_s"]),
            adapter_fixed_ns=to_fixed_ns(calls * found["adapter_call_s"] + read_s),
            token_fixed_ns=to_fixed_ns(moved_s),
        )

    here = gpu.name == constants["measured_on"]
    return AdapterKernels(
        rank=rank,
        calls=_KERNELS * calls,
        small=regime("small"),
        large=regime("large"),
        small_tokens=constants["small_tokens"],
        adapter_bytes=size,
        token_bytes=token_bytes,
        token_flops=2.0 * sum(matrix.elements(rank) for matrix in matrices),
        label=constants["label"] if here else "extrapolated",
        source=constants["source"],
    )


def copy_s() -> float:
    """Return the host time to bring one matrix of an adapter into its slot."""
    found: float = read_data(_FILE)["copy_s"]
    return found
