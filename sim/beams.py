"""Beam search: the hypotheses of a request, which advance together, and the KV they do not share.

As vLLM's paper has it (Kwon et al. 2023, arXiv 2309.06180, section 4.4): ``width`` hypotheses of
equal length are sequences of one request; each step gives each a token and keeps as many of all
their continuations, so that some have several heirs and others none. Blocks are copied on write:
what hypotheses have in common is held once. One answer comes out. (vLLM has since moved beam
search out of its engine; there each hypothesis is a new request a token.)

The copies of partly filled blocks take device time that is left out: where beams descend
uniformly, ``width - width * (1 - (1 - 1 / width) ** width)`` copies of half a block a step and
request, 10 tokens read and 10 written for 4 beams and blocks of 16, beside 4 whole contexts that
attention reads (each hypothesis's by itself: the kernel does not know that blocks are shared). A
request that is preempted computes one hypothesis again, not what the others have of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sim.draws import uniform

_DRAW = 1 << 40  # an index of its own: no step of a request has it


@dataclass(frozen=True, slots=True)
class Beams:
    """The hypotheses of one request."""

    width: int
    """How many; at least 2."""
    own_tokens: float
    """Tokens that they hold beside one whole hypothesis, each counted once."""
    draw: float = 0.0
    """Uniform from 0 to 1: the request's, which rounds blocks up or down."""

    def blocks(self, block_size: int) -> int:
        """Blocks that they hold beside one whole hypothesis, from admission to the end.

        Each further hypothesis writes a last block of its own, in which its newest token is. One
        before it costs a block if a block's edge lies behind it, which is so for one place in
        ``block_size``: the mean over where edges fall, rounded by the draw so that it stays the
        mean over requests.
        """
        further = self.width - 1
        older = max(self.own_tokens - further, 0.0)
        return further + math.floor(older / block_size + self.draw)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BeamSearch:
    """Which requests of a table are answered by beam search."""

    widths: NDArray[np.int64]
    """``[n]`` hypotheses of each request; 1: none beside the answer."""
    tail_tokens: float | None = None
    """Tokens that each further hypothesis has of its own; None: as `neutral_tokens` says."""
    seed: int = 0
    """Of the requests' draws."""

    def of(self, request: int, output_tokens: int) -> Beams | None:
        """A request's hypotheses; None where it has one."""
        width = int(self.widths[request])
        if width == 1:
            return None
        draw = uniform(self.seed, request, _DRAW)
        return beams(width, output_tokens, self.tail_tokens, draw=draw)

    def own_tokens(self, output_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """`Beams.own_tokens` of each request, 0 where it has one hypothesis, ``[n]``."""
        pairs = zip(self.widths.tolist(), output_tokens.tolist(), strict=True)
        found = (beams(w, o, self.tail_tokens).own_tokens if w > 1 else 0.0 for w, o in pairs)
        return np.fromiter(found, np.float64, len(output_tokens))


def beams(
    width: int, output_tokens: int, tail_tokens: float | None = None, *, draw: float = 0.0
) -> Beams:
    """So many hypotheses of an answer: they have nothing more of their own than what they wrote."""
    further = width - 1
    own = neutral_tokens(width) if tail_tokens is None else further * max(tail_tokens, 1.0)
    return Beams(width, min(own, float(further * output_tokens)), draw)


@cache
def neutral_tokens(width: int) -> float:
    """Tokens that hypotheses hold beside one whole one if each step's heirs have parents drawn
    uniformly, all alike (Wright and Fisher's neutral model). Assumed: a model whose scores tell
    hypotheses apart early drops the losers sooner, and they hold less.

    Looked back from now, ``width`` lineages meet until one is left. A step back, ``k`` lineages
    have as many parents as ``k`` balls thrown at ``width`` boxes hit; each lineage beside one is a
    token. Exact, in expectation, long after the beginning: 2 for 2 hypotheses.
    """
    hit = np.zeros(width + 1)  # probability that so many boxes are hit
    hit[0] = 1.0
    boxes = np.arange(width + 1)
    expected = np.zeros(width + 1)
    for lineages in range(1, width + 1):
        missed = np.roll(hit * (width - boxes), 1)
        hit = (hit * boxes + missed) / width
        if lineages > 1:
            later = float(hit[:lineages] @ expected[:lineages])
            expected[lineages] = (lineages - 1 + later) / (1 - hit[lineages])
    return float(expected[width])
