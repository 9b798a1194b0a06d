"""A dense FFN: gate, up and down matrices (SwiGLU, GeGLU), or two matrices (OPT, Falcon); and a
single matrix in its place, which joins or projects features in a drafter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.formats import Params
from costmodels.models.layers.parts import Frame, split_width
from costmodels.work import Array, Operator, elementwise, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A dense FFN with ``width`` inner features; ``gated``: three matrices, else two."""

    kind: ClassVar[str] = "dense"

    width: int
    gated: bool = True
    bias: bool = False

    @property
    def inputs(self) -> int:
        """Number of matrices before the activation."""
        return 2 if self.gated else 1

    def params(self, hidden: int, *, active: bool = False) -> Params:
        """Count all parameters: every one is active."""
        others = (self.inputs * self.width + hidden) * self.bias
        return Params(ffn=(self.inputs + 1) * hidden * self.width, others=others)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return two GEMMs and the activation between them."""
        return ffn_operators("", self.width, self.inputs, frame, calls, tokens)

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the widths of the norm's output and of the activation's."""
        return (hidden, self.width)

    def row_elements(self, hidden: int) -> int:
        """Count both sides of the activation."""
        return (self.inputs + 1) * self.width

    def sharded(self, ranks: int) -> Dense:
        """Split the width over the ranks."""
        return replace(self, width=split_width(self.width, ranks, "FFN width"))


def ffn_operators(
    prefix: str, width: int, inputs: int, frame: Frame, calls: int, tokens: Array
) -> list[Operator]:
    """Return the operators of a dense FFN, with ``prefix`` before their names."""
    hidden, precision = frame.hidden, frame.precision
    weights = precision.ffn
    return [
        linear(f"{prefix}gate_up", calls, hidden, inputs * width, tokens, precision, weights),
        elementwise(
            f"{prefix}activation", calls, (inputs + 1) * width * precision.dtype_bytes, tokens
        ),
        linear(f"{prefix}down", calls, width, hidden, tokens, precision, weights),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix of ``inner`` by ``outer`` features; whole on every rank, as drafters keep it."""

    kind: ClassVar[str] = "matrix"

    inner: int
    outer: int

    def params(self, hidden: int, *, active: bool = False) -> Params:
        """Count all parameters: every one is active."""
        return Params(ffn=self.inner * self.outer)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return a single GEMM."""
        precision = frame.precision
        return [
            linear("join", calls, self.inner, self.outer, tokens, precision, precision.ffn),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of its input."""
        return (self.inner,)

    def row_elements(self, hidden: int) -> int:
        """Count both sides of the matrix."""
        return self.inner + self.outer

    def sharded(self, ranks: int) -> Matrix:
        """Return the whole matrix: it is not split."""
        return self
