"""The kernels that an engine chooses for a rank, where fitted constants are of other ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from costmodels.engines.attention_kernels import AttentionKernel
from costmodels.engines.expert_kernels import ExpertKernel
from costmodels.formats import ModelPrecision
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.roofline import OperatorSeconds, peak_of
from costmodels.models.layers.parts import Mixer
from costmodels.operators.operators import term_operator
from costmodels.work import Operator
from sim.evidence import Evidence, Source, weakest
from sim.shape import Clip


@dataclass(frozen=True, kw_only=True)
class ChosenKernels:
    """Kernels of attention and of routed experts; without any, constants price everything."""

    attention: Mapping[Mixer, AttentionKernel] = field(default_factory=dict)
    """By kind of layer."""
    experts: ExpertKernel | None = None

    def prices(self, operator: Operator) -> bool:
        """Return whether the rates of a chosen kernel price an operator."""
        experts = self.experts
        return operator.kind == "grouped_gemm" and experts is not None and experts.rates is not None

    @property
    def attention_names(self) -> str:
        """The kernels of attention, joined by ``+`` if kinds of layers differ."""
        return "+".join(dict.fromkeys(one.name for one in self.attention.values()))

    def name_of(self, operator: Operator) -> str:
        """Return the kernel of an operator; empty if its rule is not known."""
        if operator.kind == "attention":
            return self.attention_names
        if operator.kind == "grouped_gemm" and self.experts is not None:
            return self.experts.name
        return ""

    def sources(self) -> list[Source]:
        """Return the rates of the kernels, with their labels and sources."""
        found = [] if self.experts is None else self.experts.sources()
        for kernel in self.attention.values():
            found += kernel.sources()
        return found

    def label(self, family: str) -> str | None:
        """Return the weakest label of the rates of ``experts`` or ``attention``; None without
        any."""
        labels = [kernel.label for kernel in self.attention.values() if kernel.label]
        if family == "experts":
            rates = None if self.experts is None else self.experts.rates
            labels = [] if rates is None else [rates.label]
        return weakest(labels) if labels else None

    def price(self, operator: Operator, gpu: GpuSpec) -> OperatorSeconds:
        """Price a grouped GEMM by the kernel of routed experts, which must have rates."""
        assert self.experts is not None
        parts = self.experts.parts(operator, gpu, peak_of(operator, gpu))
        calls, called = operator.calls, operator.rows > 0
        return OperatorSeconds(
            operator=operator,
            work_s=np.where(called, calls * parts.work_s, 0.0),
            fixed_s=np.where(called, calls * operator.launches * parts.fixed_s, 0.0),
            compute_bound=parts.compute_s > parts.weights_s,
        )

    def served(self, mixer: Mixer) -> Mixer:
        """Return a layer as its kernel computes it."""
        kernel = self.attention.get(mixer)
        return mixer if kernel is None else kernel.served

    def prefill_constants(self, mixer: Mixer, constants: Efficiency, gpu: GpuSpec) -> Efficiency:
        """Return the constants of a layer's prompts."""
        kernel = self.attention.get(mixer)
        if kernel is None:
            return constants
        return _at_rates(kernel, constants, gpu, kernel.prefill_flop_per_s, kernel.prefill_memory)

    def decode_constants(self, mixer: Mixer, constants: Efficiency, gpu: GpuSpec) -> Efficiency:
        """Return the constants of a layer's decodes."""
        kernel = self.attention.get(mixer)
        if kernel is None:
            return constants
        return _at_rates(kernel, constants, gpu, kernel.decode_flop_per_s, kernel.decode_memory)

    def mixed_s(
        self,
        mixer: Mixer,
        count: int,
        precision: ModelPrecision,
        price: Callable[[Operator], float],
    ) -> dict[Clip | None, float]:
        """Return the compute seconds per context token that decodes add to steps with prompts.

        Of ``count`` layers, by clip; empty if the kernel adds none. ``price`` is that of prompts:
        both are computed in one launch.
        """
        kernel = self.attention.get(mixer)
        if kernel is None or not kernel.mixed_tile_rows:
            return {}
        rows, none = np.array([float(kernel.mixed_tile_rows)]), np.zeros(1)
        return {
            term.clip: price(term_operator(term, count, rows, none))
            for term in mixer.attention(precision).decode
            if term.flops
        }


def _at_rates(
    kernel: AttentionKernel,
    constants: Efficiency,
    gpu: GpuSpec,
    flop_per_s: float | None,
    memory: float | None,
) -> Efficiency:
    """Return the constants with the rate and share of bandwidth that a kernel has, if it has
    them."""
    own: dict[str, Any] = {}
    if flop_per_s is not None:
        own["attention_compute"] = flop_per_s / gpu.bf16_flop_per_s
    if memory is not None:
        own["attention_memory"] = memory
    if not own:
        return constants
    known = dict.fromkeys(own, Evidence(label=kernel.label, source=kernel.source))
    return replace(constants, **own, evidence={**constants.evidence, **known})
