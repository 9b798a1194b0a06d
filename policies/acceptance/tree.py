"""Acceptance of a static tree of drafts: several candidates for a position and its successors."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from policies.acceptance.rounds import Survival, drawn_gains, survival_of
from sim.errors import ScenarioError
from sim.request import Request

Path = tuple[int, ...]
"""A node, as the rank of its candidate at each depth; rank 0 is the best."""
Rates = Sequence[Sequence[float]]
"""Probability, by depth and rank, that a candidate is the target's token.

The last depth given holds for all further ones; ranks beyond those given are never right.
"""


class Tree:
    """Accept the candidate of rank ``r`` at depth ``j`` with probability ``a[j][r]``.

    At most one candidate of a position is right, so the rates of a depth sum to at most 1. A step
    descends while the tree has the right child. The mean number of tokens per step is 1 plus the
    sum over the nodes of the product of the rates on their paths (Cai et al. 2024, Medusa, arXiv
    2401.10774). A step with fewer drafts verifies the first nodes in the given order. Raises
    ScenarioError as `check_paths` and `check_rates` do.
    """

    def __init__(
        self, paths: Sequence[Path], rates_by_class: Sequence[Rates], seed: int = 0
    ) -> None:
        check_paths(paths)
        for rates in rates_by_class:
            check_rates(rates)
        self._paths = [tuple(path) for path in paths]
        self._rates = list(rates_by_class)
        self._survivals: dict[tuple[int, int], Survival] = {}
        self._seed = seed

    def gains(self, request: Request, sampled_tokens: int, drafts: int, /) -> NDArray[np.int64]:
        key = min(request.tenant, len(self._rates) - 1), drafts
        if key not in self._survivals:
            survival = tree_survivals(self._paths[:drafts], self._rates[key[0]])
            self._survivals[key] = survival_of(survival)
        return drawn_gains(self._survivals[key], request, sampled_tokens, self._seed)


def tree_survivals(paths: Sequence[Path], rates: Rates) -> NDArray[np.float64]:
    """Return ``[depth of the tree]`` probabilities that a step descends at least 1, 2, ...
    levels."""
    found = np.zeros(max(map(len, paths), default=0))
    for path in paths:
        found[len(path) - 1] += path_chance(path, rates)
    return found


def path_chance(path: Path, rates: Rates) -> float:
    """Return the product of the rates along a path."""
    chance = 1.0
    for depth, rank in enumerate(path):
        row = rates[min(depth, len(rates) - 1)]
        chance *= row[rank] if rank < len(row) else 0.0
    return chance


def best_tree(rates: Rates, nodes: int, depth: int) -> tuple[Path, ...]:
    """Return the ``nodes`` likeliest nodes of at most ``depth`` levels, the likeliest first.

    A parent always precedes its children, because no child is likelier.
    """
    heap: list[tuple[float, Path]] = []
    found: list[Path] = []

    def push(chance: float, parent: Path) -> None:
        if len(parent) < depth:
            for rank, rate in enumerate(rates[min(len(parent), len(rates) - 1)]):
                if rate > 0:
                    heappush(heap, (-chance * rate, (*parent, rank)))

    push(1.0, ())
    while heap and len(found) < nodes:
        chance, path = heappop(heap)
        found.append(path)
        push(-chance, path)
    return tuple(found)


def ranked_rates(rate: float, width: int) -> list[float]:
    """Return the rates of ``width`` ranks, given the rate of the best candidate.

    Assumed where only one rate is known: among the cases left over by better candidates, each
    candidate is right equally often.
    """
    return [rate * (1 - rate) ** rank for rank in range(width)]


def check_paths(paths: Sequence[Path]) -> None:
    """Raise ScenarioError unless each node appears once and after its parent."""
    if not paths:
        raise ScenarioError("a tree of drafts needs at least one node")
    seen: set[Path] = {()}
    for path in map(tuple, paths):
        if not path or min(path) < 0:
            raise ScenarioError(f"a tree's node is a path of ranks from 0, not {list(path)}")
        if path in seen or path[:-1] not in seen:
            problem = "stands twice" if path in seen else "stands before its parent"
            raise ScenarioError(f"the tree's node {list(path)} {problem}")
        seen.add(path)


def check_rates(rates: Rates) -> None:
    """Raise ScenarioError unless the rates of each depth can belong to candidates of one
    position."""
    for row in rates:
        if not row or min(row) < 0 or sum(row) > 1 + 1e-9:
            raise ScenarioError(
                "the acceptance rates of one depth's candidates are not negative and add up to 1 "
                f"at most, not {list(row)}"
            )
