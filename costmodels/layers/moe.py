"""A mixture of experts: a router, routed experts, shared experts that every token passes.

Under even routing B tokens reach E (1 - (1 - k/E)^B) of E experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from costmodels.layers.dense import ffn_operators
from costmodels.layers.parts import Frame, Params
from costmodels.layers.split import split_width
from costmodels.work import Array, Operator, elementwise, linear, operator, plain_gemm


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """``num_experts`` gated FFNs of ``width`` each, ``top_k`` of them a token."""

    kind: ClassVar[str] = "moe"

    num_experts: int
    top_k: int
    width: int
    shared_width: int = 0
    """Inner features of all shared experts together."""
    latent: int = 0
    """Routed experts work in so many features, projected down and up around them; 0: in hidden."""
    shared_gate: bool = False
    """The shared expert's output is scaled by a gate of its own."""
    expert_bias: bool = False
    router_bias: bool = False
    gated: bool = True
    """Experts have a gate matrix beside up and down."""

    @property
    def inputs(self) -> int:
        """Matrices of an expert before its activation."""
        return 2 if self.gated else 1

    def params(self, hidden: int, *, active: bool = False) -> Params:
        """``active``: of the routed experts only the chosen ones."""
        experts = self.top_k if active else self.num_experts
        outer = self.latent or hidden
        others = self.num_experts * (hidden + self.router_bias) + hidden * self.shared_gate
        others += experts * (self.inputs * self.width + outer) * self.expert_bias
        # Projections to the latent and back, and the norm of what comes back.
        latent = 2 * hidden * self.latent
        return Params(
            experts=experts * (self.inputs + 1) * outer * self.width,
            ffn=(self.inputs + 1) * hidden * self.shared_width + latent,
            others=others + self.latent,
        )

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """The router, the experts' grouped GEMMs, and the shared experts as a dense FFN."""
        hidden, precision, _ = frame
        elem, width, top_k = precision.dtype_bytes, self.width, self.top_k
        outer, routed = self.latent or hidden, tokens * top_k
        experts = distinct_experts(self.num_experts, top_k, tokens)
        rows = routed / np.maximum(experts, 1.0)
        stored, multiplied = precision.matrix(precision.experts)

        def grouped(name: str, inner: int, outer: int) -> Operator:
            return operator(
                name,
                "grouped_gemm",
                calls,
                rows,
                flops=2.0 * inner * outer * routed,
                weight_bytes=float(inner * outer * stored.moved_bytes) * experts,
                activation_bytes=float(inner * multiplied.moved_bytes + outer * elem) * routed,
                peak=multiplied.peak,
                weights=stored.name,
            )

        operators = [
            plain_gemm("router", calls, hidden, self.num_experts, tokens, precision),
            # Top-k choice and sorting tokens by expert: several small kernels.
            elementwise("route", calls, 4 * self.num_experts * elem, tokens, launches=3),
            grouped("expert_gate_up", outer, self.inputs * width),
            elementwise("expert_activation", calls, (self.inputs + 1) * width * elem, routed),
            grouped("expert_down", width, outer),
            elementwise("expert_sum", calls, (top_k + 1) * outer * elem, tokens),
        ]
        if self.latent:
            operators += [
                linear("latent_down", calls, hidden, outer, tokens, precision, precision.ffn),
                linear("latent_up", calls, outer, hidden, tokens, precision, precision.ffn),
            ]
        if self.shared_width:
            operators += ffn_operators(
                "shared_", self.shared_width, self.inputs, frame, calls, tokens
            )
        return operators

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """The norm's output; routed experts convert their own activations."""
        return (hidden, self.shared_width) if self.shared_width else (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Inputs and outputs once for every expert chosen."""
        outer = self.latent or hidden
        return self.top_k * (max(2 * self.width, outer) + self.width) + 3 * self.shared_width

    def sharded(self, ranks: int) -> Moe:
        """The width of every expert is split; router and latent projections are whole."""
        return replace(
            self,
            width=split_width(self.width, ranks, "expert width"),
            shared_width=split_width(self.shared_width, ranks, "shared expert width"),
        )


def distinct_experts(num_experts: int, top_k: int, tokens: Array) -> Array:
    """Expected experts that ``tokens`` tokens reach, each choosing ``top_k`` evenly: ``[n]``."""
    if top_k == num_experts:
        return np.where(tokens > 0, float(num_experts), 0.0)
    reached: Array = num_experts * -np.expm1(tokens * np.log1p(-top_k / num_experts))
    return reached
