"""Beam search: the hypotheses of a request, and the KV that they do not share.

As in vLLM's paper (Kwon et al. 2023, arXiv 2309.06180, section 4.4), the ``width`` hypotheses of a
request are sequences of equal length that advance together. Each step gives every hypothesis a
token and keeps the best ``width`` continuations, so that some hypotheses have several successors
and others none. Blocks are copied on write: what hypotheses have in common is held once. The
request returns one answer. (vLLM has since moved beam search out of its engine; there every
hypothesis becomes a new request at each token.)

The device time of copying partly filled blocks is left out. If beams descend uniformly, that is
``width - width * (1 - (1 - 1 / width) ** width)`` copies of half a block per step and request: 10
tokens read and 10 written for 4 beams and blocks of 16, against 4 whole contexts that attention
reads (one per hypothesis, because the kernel does not know that blocks are shared). A preempted
request recomputes one hypothesis, without the tokens that only the others hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sim.draws import uniform

_DRAW = 1 << 40  # an index of its own, which no step of a request uses


@dataclass(frozen=True, slots=True)
class Beams:
    """The hypotheses of one request and the KV tokens they hold."""

    width: int
    """Number of hypotheses, at least 2."""
    own_tokens: float
    """Tokens held in addition to one whole hypothesis; tokens shared by hypotheses count once."""
    draw: float = 0.0
    """Uniform in [0, 1), drawn once per request; decides whether its blocks are rounded up or down.
    """

    def blocks(self, block_size: int) -> int:
        """Return the blocks held in addition to one whole hypothesis, from admission to the end.

        Each further hypothesis writes a last block of its own, which holds its newest token. The
        token before it costs another block if a block boundary lies between them, which happens for
        one position in ``block_size``. The result is the mean over all positions of the boundaries,
        rounded by the draw so that it stays the mean over requests.
        """
        further = self.width - 1
        older = max(self.own_tokens - further, 0.0)
        return further + math.floor(older / block_size + self.draw)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BeamSearch:
    """Which requests of a table are answered by beam search."""

    widths: NDArray[np.int64]
    """``[n]`` hypotheses of each request; 1 means no beam search."""
    tail_tokens: float | None = None
    """Tokens that each further hypothesis holds alone; None: the mean given by `neutral_tokens`."""
    seed: int = 0
    """Seed of the draws, which are one per request."""

    def of(self, request: int, output_tokens: int) -> Beams | None:
        """Return the hypotheses of one request, or None if it has only one."""
        width = int(self.widths[request])
        if width == 1:
            return None
        draw = uniform(self.seed, request, _DRAW)
        return beams(width, output_tokens, self.tail_tokens, draw=draw)

    def own_tokens(self, output_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return `Beams.own_tokens` of each request, float ``[n]``; 0 for requests with one
        hypothesis."""
        pairs = zip(self.widths.tolist(), output_tokens.tolist(), strict=True)
        found = (beams(w, o, self.tail_tokens).own_tokens if w > 1 else 0.0 for w, o in pairs)
        return np.fromiter(found, np.float64, len(output_tokens))


def beams(
    width: int, output_tokens: int, tail_tokens: float | None = None, *, draw: float = 0.0
) -> Beams:
    """Return ``width`` hypotheses of an answer; none holds more tokens alone than it has
    generated."""
    further = width - 1
    own = neutral_tokens(width) if tail_tokens is None else further * max(tail_tokens, 1.0)
    return Beams(width, min(own, float(further * output_tokens)), draw)


@cache
def neutral_tokens(width: int) -> float:
    """Return the mean number of tokens held in addition to one hypothesis, under neutral descent.

    Assumes that the parents of each step's successors are drawn uniformly and independently (the
    Wright-Fisher model). A model whose scores separate hypotheses early drops the losers sooner,
    and holds less.

    Seen backwards in time, ``width`` lineages merge until one is left. One step back, ``k``
    lineages have as many parents as ``k`` balls thrown at ``width`` boxes hit; every lineage beyond
    the first is one token. The expectation is exact long after the start: 2 tokens for 2
    hypotheses.
    """
    hit = np.zeros(width + 1)  # probability that this many boxes are hit
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
