"""One matrix in the place of an FFN: what joins or projects features in a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costmodels.formats import Params
from costmodels.models.layers.parts import Frame
from costmodels.work import Array, Operator, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """``inner`` features in, ``outer`` out; whole on every rank, as drafters keep it."""

    kind: ClassVar[str] = "matrix"

    inner: int
    outer: int

    def params(self, hidden: int, *, active: bool = False) -> Params:
        """All of them are active."""
        return Params(ffn=self.inner * self.outer)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """One GEMM."""
        precision = frame.precision
        return [
            linear("join", calls, self.inner, self.outer, tokens, precision, precision.ffn),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Its input."""
        return (self.inner,)

    def row_elements(self, hidden: int) -> int:
        """Both sides of it."""
        return self.inner + self.outer

    def sharded(self, ranks: int) -> Matrix:
        """It is not split."""
        return self
