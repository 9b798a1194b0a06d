"""Which experts a rank holds, and how far the busiest rank's work exceeds the mean.

Every token chooses ``top_k`` different experts. Even a perfectly even router leaves some ranks with
more tokens than others: the multinomial floor, which falls with the number of tokens. Popular
experts add to it whatever the number.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

import numpy as np

from costmodels.datafile import read_data
from costmodels.work import Array
from sim.evidence import Source

_SPREAD = 9.0  # standard deviations around the largest mean in which the maximum is sought
_POINTS = 400
_GRID = 2  # token counts per octave


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """How unevenly tokens choose experts; by default all experts are equally likely."""

    skew: float = 0.0
    """Zipf exponent: the n-th most popular expert is chosen in proportion to n^-skew."""
    loads: tuple[float, ...] = ()
    """Relative load of each expert of a layer, in their order; it replaces ``skew``."""


def trained_skew() -> Source:
    """Return the Zipf exponent that is published of a trained model's experts."""
    row = read_data("models/expert_skew.yaml")["trained"]
    return Source(
        what="expert skew of a trained model",
        value=row["exponent"],
        label=row["label"],
        source=row["source"],
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """The routed experts of one layer over ranks."""

    ranks: int
    chances: tuple[tuple[float, ...], ...]
    """Probability that a token goes to each expert, by rank."""

    @property
    def most_experts(self) -> int:
        """Most experts on any rank."""
        return max(len(chances) for chances in self.chances)

    @property
    def skew(self) -> float:
        """Tokens of the rank with the most popular experts over the mean, in the long run."""
        loads = [sum(chances) for chances in self.chances]
        return max(loads) * self.ranks / sum(loads)


def expert_chances(num_experts: int, top_k: int, load: ExpertLoad) -> Array:
    """Return the probability that a token chooses each expert, most popular first:
    ``[num_experts]``.

    They add up to ``top_k``, none above 1. Given loads keep their order.
    """
    if load.loads:
        weights = np.array(load.loads, dtype=np.float64)
    else:
        weights = np.arange(1, num_experts + 1, dtype=np.float64) ** -load.skew
    chances = np.zeros(num_experts)
    free = weights > 0
    left = float(top_k)
    while left > 1e-12 and free.any():
        chances[free] = left * weights[free] / weights[free].sum()
        full = free & (chances >= 1)
        if not full.any():
            break
        chances[full] = 1.0
        free &= ~full
        left = top_k - float(chances[~free].sum())
    return chances


def place(
    num_experts: int,
    top_k: int,
    ranks: int,
    load: ExpertLoad,
    *,
    redundant: int = 0,
    balanced: bool = False,
) -> Placement:
    """Place experts on ranks in their order, as in vLLM; a fixed shuffle draws their popularity.

    With ``balanced`` they are placed as by vLLM's load balancer, which knows the loads:
    ``redundant`` copies go to the experts with the most tokens per copy, then the heaviest copies
    are placed first, each on the least loaded rank.
    """
    chances = expert_chances(num_experts, top_k, load)
    if not balanced:
        if not load.loads:
            chances = np.random.default_rng(0).permutation(chances)
        parts = np.array_split(chances, ranks)
        return Placement(ranks, tuple(tuple(part.tolist()) for part in parts))
    copies = _copies(chances, redundant)
    room = len(copies) // ranks
    held: list[list[float]] = [[] for _ in range(ranks)]
    queue = [(0.0, rank) for rank in range(ranks)]
    for chance in sorted(copies, reverse=True):
        total, rank = heapq.heappop(queue)
        held[rank].append(chance)
        if len(held[rank]) < room:
            heapq.heappush(queue, (total + chance, rank))
    return Placement(ranks, tuple(map(tuple, held)))


def _copies(chances: Array, redundant: int) -> list[float]:
    """Return the load of each copy of each expert."""
    counts = [1] * len(chances)
    queue = [(-chance, expert) for expert, chance in enumerate(chances.tolist())]
    heapq.heapify(queue)
    for _ in range(redundant):
        _, expert = heapq.heappop(queue)
        counts[expert] += 1
        heapq.heappush(queue, (-chances[expert] / counts[expert], expert))
    return [float(c) / n for c, n in zip(chances, counts, strict=True) for _ in range(n)]


@dataclass(frozen=True, slots=True)
class BusiestRank:
    """The rank with the most work, expected over routings. Arrays are ``[n]``, by tokens."""

    rows: Array
    """Token copies that it computes."""
    experts: Array
    """Different experts among them, whose weights it reads."""
    imbalance: Array
    """``rows`` over the mean of all ranks; 1 for no tokens."""


def busiest_rank(placement: Placement, tokens: Array) -> BusiestRank:
    """Return the busiest rank for each number of ``tokens``, all ranks' tokens together."""
    means = np.array([sum(chances) for chances in placement.chances])
    mean, worst = float(means.mean()), int(means.argmax())
    chances = np.array(placement.chances[worst])
    last = max(float(tokens.max(initial=1.0)), 1.0)
    grid = np.unique(np.round(2.0 ** (np.arange(0, _GRID * np.log2(last) + _GRID) / _GRID)))
    factors = np.array([_expected_max(placement, count) / (count * mean) for count in grid])
    # Fewer tokens never spread more evenly.
    factors = np.maximum.accumulate(np.maximum(factors, means[worst] / mean)[::-1])[::-1]
    safe = np.maximum(tokens, 1.0)
    imbalance = np.interp(np.log(safe), np.log(grid), factors)
    rows = np.where(tokens > 0, imbalance * mean * tokens, 0.0)
    # Number of tokens that would give the rank with the largest mean this number of copies.
    reached = rows / means[worst]
    missed = Counter(np.log1p(-np.minimum(chances, 1 - 1e-12)).tolist())
    experts = sum((n * -np.expm1(reached * log) for log, n in missed.items()), np.zeros_like(rows))
    return BusiestRank(
        rows=rows,
        experts=np.minimum(experts, rows),
        imbalance=np.where(tokens > 0, imbalance, 1.0),
    )


def _expected_max(placement: Placement, tokens: float) -> float:
    """Return the expected largest number of copies on any rank, with ranks taken as independent.

    A rank's copies are binomial with the right mean; with one expert per rank that is exact.
    """
    from scipy.special import bdtr

    alike = Counter((sum(chances), len(chances)) for chances in placement.chances)
    top_k = round(sum(ranks * mean for (mean, _), ranks in alike.items()))
    most = tokens * max(mean for mean, _ in alike)
    spread = _SPREAD * np.sqrt(most) + _SPREAD
    start, end = max(0.0, np.floor(most - spread)), np.ceil(most + spread)
    step = max(1.0, np.ceil((end - start) / _POINTS))
    at = np.arange(start, end + step, step)
    below = np.ones_like(at)
    for (mean, experts), ranks in alike.items():
        if mean <= 0:
            continue
        trials = tokens * min(top_k, experts)
        chance = min(1.0, tokens * mean / trials)
        below *= bdtr(np.minimum(at, trials), int(trials), chance) ** ranks
    largest = tokens * min(top_k, placement.most_experts)
    return min(float(start + step * (1 - below).sum() - (step - 1) / 2), largest)
