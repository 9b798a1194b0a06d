"""A static tree of drafts: several candidates for a position, and for what may follow each."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from policies.acceptance.rounds import Survival, drawn_gains, survival_of
from sim.errors import ScenarioError
from sim.request import Request

Path = tuple[int, ...]
"""Of a node: the rank of its candidate at each depth, best first."""
Rates = Sequence[Sequence[float]]
"""By depth and rank: how often that candidate is the target's token. The last depth given stands
for further ones; ranks beyond those given are never right."""


class Tree:
    """At depth ``j`` the candidate of rank ``r`` is the target's token at rate ``a[j][r]``.

    At most one candidate of a position is, so a depth's rates add up to 1 at most. A step goes
    down as long as the tree has the right child: mean tokens a step are 1 plus, summed over the
    nodes, the product of the rates on their paths (Cai et al. 2024, Medusa, arXiv 2401.10774).
    A step with fewer drafts verifies the first ones in the order given.
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
        """Tokens of each further decode step."""
        key = min(request.tenant, len(self._rates) - 1), drafts
        if key not in self._survivals:
            survival = tree_survivals(self._paths[:drafts], self._rates[key[0]])
            self._survivals[key] = survival_of(survival)
        return drawn_gains(self._survivals[key], request, sampled_tokens, self._seed)


def tree_survivals(paths: Sequence[Path], rates: Rates) -> NDArray[np.float64]:
    """Chances that a step goes down at least 1, 2, ... levels: ``[depth of the tree]``."""
    found = np.zeros(max(map(len, paths), default=0))
    for path in paths:
        found[len(path) - 1] += path_chance(path, rates)
    return found


def path_chance(path: Path, rates: Rates) -> float:
    """Product of the rates along a path."""
    chance = 1.0
    for depth, rank in enumerate(path):
        row = rates[min(depth, len(rates) - 1)]
        chance *= row[rank] if rank < len(row) else 0.0
    return chance


def best_tree(rates: Rates, nodes: int, depth: int) -> tuple[Path, ...]:
    """The likeliest ``nodes`` nodes of at most ``depth`` levels, likeliest first.

    No parent comes after its child, because a child is no likelier.
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
    """Rates by rank from that of the best: each further candidate is right as often among the rest.

    An assumption, for where only one rate is known.
    """
    return [rate * (1 - rate) ** rank for rank in range(width)]


def check_paths(paths: Sequence[Path]) -> None:
    """Raises `ScenarioError` unless every node's parent stands before it, and no node twice."""
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
    """Raises `ScenarioError` unless each depth's rates could be of one position's candidates."""
    for row in rates:
        if not row or min(row) < 0 or sum(row) > 1 + 1e-9:
            raise ScenarioError(
                "the acceptance rates of one depth's candidates are not negative and add up to 1 "
                f"at most, not {list(row)}"
            )
