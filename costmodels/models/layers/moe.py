"""A mixture of experts: a router, routed experts, shared experts that every token passes.

Under even routing B tokens reach E (1 - (1 - k/E)^B) of E experts. With a `Placement`, experts are
whole on ranks, and the rank with most tokens is the one described.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from costmodels.formats import Params
from costmodels.models.expert_load import Placement, busiest_rank
from costmodels.models.layers.dense import ffn_operators
from costmodels.models.layers.parts import Frame, split_width
from costmodels.work import Array, Operator, elementwise, linear, operator, plain_gemm


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """``num_experts`` gated FFNs of ``width`` each, of which every token passes ``top_k``."""

    kind: ClassVar[str] = "moe"

    num_experts: int
    top_k: int
    width: int
    shared_width: int = 0
    """Inner features of all shared experts together."""
    latent: int = 0
    """Features that routed experts work in, projected down and up around them; 0: hidden size."""
    shared_gate: bool = False
    """Whether the shared expert's output is scaled by a gate of its own."""
    expert_bias: bool = False
    router_bias: bool = False
    gated: bool = True
    """Whether experts have a gate matrix beside up and down."""
    placement: Placement | None = None
    """Routed experts over ranks; None: all of them here, or a slice of each."""
    chosen_from: float = 0.0
    """Experts among which tokens choose, if routing has collapsed to a few; 0: all."""

    @property
    def inputs(self) -> int:
        """Number of an expert's matrices before its activation."""
        return 2 if self.gated else 1

    def params(self, hidden: int, *, active: bool = False) -> Params:
        """Count the parameters; ``active``: of the routed experts only the chosen ones."""
        experts = self.placement.most_experts if self.placement else self.num_experts
        experts = self.top_k if active else experts
        outer = self.latent or hidden
        others = self.num_experts * (hidden + self.router_bias) + hidden * self.shared_gate
        others += experts * (self.inputs * self.width + outer) * self.expert_bias
        # Projections to the latent and back, and the norm of the latter.
        latent = 2 * hidden * self.latent
        return Params(
            experts=experts * (self.inputs + 1) * outer * self.width,
            ffn=(self.inputs + 1) * hidden * self.shared_width + latent,
            others=others + self.latent,
        )

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the router, the experts' grouped GEMMs, and the shared experts as a dense FFN."""
        before, after = self.own_operators(frame, calls, tokens)
        return [*before, *self.routed_operators(frame, calls, tokens), *after]

    def routed_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the routed experts. ``tokens`` are those of all ranks that share them."""
        hidden, precision, _ = frame
        elem, width, top_k = precision.dtype_bytes, self.width, self.top_k
        outer = self.latent or hidden
        if self.placement is None:
            routed = tokens * top_k
            experts = distinct_experts(self.chosen_from or self.num_experts, top_k, tokens)
        else:
            busiest = busiest_rank(self.placement, tokens)
            routed, experts = busiest.rows, busiest.experts
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
                matrix=(inner, outer),
            )

        if self.placement is None:
            sums = elementwise("expert_sum", calls, (top_k + 1) * outer * elem, tokens)
        else:  # each rank sums the copies that it computed
            summed = outer * elem * (routed + tokens / self.placement.ranks)
            sums = operator("expert_sum", "elementwise", calls, tokens, activation_bytes=summed)
        return [
            grouped("expert_gate_up", outer, self.inputs * width),
            elementwise("expert_activation", calls, (self.inputs + 1) * width * elem, routed),
            grouped("expert_down", width, outer),
            sums,
        ]

    def own_operators(
        self, frame: Frame, calls: int, tokens: Array
    ) -> tuple[list[Operator], list[Operator]]:
        """Return a rank's operators for its own tokens, before and after the routed experts."""
        hidden, precision, _ = frame
        outer = self.latent or hidden
        before = [
            plain_gemm("router", calls, hidden, self.num_experts, tokens, precision),
            # Top-k choice and sorting tokens by expert take several small kernels.
            elementwise(
                "route", calls, 4 * self.num_experts * precision.dtype_bytes, tokens, launches=3
            ),
        ]
        after = []
        if self.latent:
            after += [
                linear("latent_down", calls, hidden, outer, tokens, precision, precision.ffn),
                linear("latent_up", calls, outer, hidden, tokens, precision, precision.ffn),
            ]
        if self.shared_width:
            after += ffn_operators("shared_", self.shared_width, self.inputs, frame, calls, tokens)
        return before, after

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output and the shared experts' width; routed experts
        convert their own activations."""
        return (hidden, self.shared_width) if self.shared_width else (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count inputs and outputs once for every expert chosen."""
        outer = self.latent or hidden
        copies = self.top_k
        if self.placement:  # ranks with tokens of their own receive the number that they send
            copies = min(copies, self.placement.most_experts)
        return copies * (max(2 * self.width, outer) + self.width) + 3 * self.shared_width

    def sharded(self, ranks: int) -> Moe:
        """Split the width of every expert; router and latent projections are whole."""
        return replace(
            self,
            width=split_width(self.width, ranks, "expert width"),
            shared_width=split_width(self.shared_width, ranks, "shared expert width"),
        )


def distinct_experts(num_experts: float, top_k: int, tokens: Array) -> Array:
    """Return the expected experts that ``tokens`` reach, each choosing ``top_k`` evenly:
    ``[n]``."""
    if top_k == num_experts:
        return np.where(tokens > 0, float(num_experts), 0.0)
    reached: Array = num_experts * -np.expm1(tokens * np.log1p(-top_k / num_experts))
    return reached
