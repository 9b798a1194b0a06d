"""One matrix in the place of an FFN, which joins or projects features in a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costmodels.formats import Params
from costmodels.models.layers.parts import Frame
from costmodels.work import Array, Operator, linear


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
