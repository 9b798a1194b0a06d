"""How long prompts and outputs are: a fixed length, a clipped mixture, or those of a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.mixtures import Gamma, Lognormal, check_components, draw, midpoints
from workloads.readers.rows import MAX_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A mixture of ``components`` clipped to ``[min_tokens, max_tokens]``; equal ends are a fixed
    length and need no component. Weights sum to 1 up to rounding and are normalised.

    Raises ScenarioError for values it cannot have.
    """

    components: tuple[Lognormal | Gamma, ...] = ()
    min_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        lo, hi = self.min_tokens, self.max_tokens
        if not 0 <= lo <= hi <= MAX_TOKENS:
            raise ScenarioError(
                f"lengths from {lo} to {hi} tokens; expected 0 <= min <= max <= {MAX_TOKENS}"
            )
        if lo == hi:
            return
        if lo < 1:
            raise ScenarioError("lengths that vary need min_tokens of at least 1")
        check_components(self.components, "lengths")


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Lengths of a file, each as likely as any other."""

    tokens: Int64
    """``[k]``, ascending; or in the order of the lengths they are drawn together with."""

    @property
    def min_tokens(self) -> int:
        """The shortest."""
        return int(self.tokens.min())


def fixed(tokens: int) -> Lengths:
    """Every request has ``tokens`` tokens."""
    return Lengths(min_tokens=tokens, max_tokens=tokens)


def sample_tokens(lengths: Lengths | Observed, uniforms: Float64) -> Int64:
    """``[n]`` token counts: the inverse CDF at ``uniforms`` ``[n]``.

    So a request that is long under one distribution is long under another of the same stream.
    """
    if isinstance(lengths, Observed):
        return lengths.tokens[(uniforms * len(lengths.tokens)).astype(np.int64)]
    if lengths.min_tokens == lengths.max_tokens:
        return np.full(len(uniforms), lengths.min_tokens, np.int64)
    drawn = draw(lengths.components, lengths.min_tokens, lengths.max_tokens, uniforms)
    return np.rint(drawn).astype(np.int64)


def mean_tokens(lengths: Lengths | Observed) -> float:
    """The mean of the distribution."""
    return float(sample_tokens(lengths, midpoints()).mean())
