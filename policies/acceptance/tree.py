"""A static tree of drafts: several candidates for a position, and for what may follow each."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from policies.acceptance.rounds import chased, position_draws
from sim.errors import ScenarioError
from sim.request import Request

Path = tuple[int, ...]
"""Of a node: the rank of its candidate at each depth, best first."""


class Tree:
    """At depth ``j`` the candidate of rank ``r`` is the target's token at rate ``a[j][r]``.

    At most one candidate of a position is, so a depth's rates add up to 1 at most. A step goes
    down as long as the tree has the right child: mean tokens a step are 1 plus, summed over the
    nodes, the product of the rates on their paths (Cai et al. 2024, Medusa, arXiv 2401.10774).
    A step with fewer drafts verifies the first ones in the order given.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        rates_by_class: Sequence[Sequence[Sequence[float]]],
        seed: int = 0,
    ):
        check_paths(paths)
        self._depth = max(map(len, paths))
        self._width = 1 + max(max(path) for path in paths)
        self._children = _child_table(paths, self._width)
        self._edges = [self._cumulative(rates) for rates in rates_by_class]
        self._seed = seed

    def gains(self, request: Request, sampled_tokens: int, drafts: int, /) -> list[int]:
        """Tokens of each further decode step."""
        output_tokens = request.output_tokens
        if not drafts:
            return [1] * (output_tokens - sampled_tokens)
        if request.accepted is None:
            request.accepted = {}
        if drafts not in request.accepted:
            request.accepted[drafts] = self.accepted(request, drafts).tolist()
        return chased(request.accepted[drafts], sampled_tokens, output_tokens, drafts)

    def accepted(self, request: Request, drafts: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Drafts accepted from each position of the answer on: ``[output_tokens]``."""
        edges = self._edges[min(request.tenant, len(self._edges) - 1)]
        draws, positions = position_draws(self._seed, request, self._depth), request.output_tokens
        node = np.zeros(positions, np.int64)
        found = np.zeros(positions, np.int64)
        for depth in range(self._depth):
            rank = np.searchsorted(edges[depth], draws[depth : depth + positions], side="right")
            child = self._children[node, rank]
            child[child > drafts] = 0  # 0: none; the root is nobody's child
            node = np.where((child > 0) & (found == depth), child, 0)
            found += node > 0
        return found

    def _cumulative(self, rates: Sequence[Sequence[float]]) -> list[np.ndarray]:
        edges = []
        for depth in range(self._depth):
            row = list(rates[min(depth, len(rates) - 1)])[: self._width]
            if not row or min(row) < 0 or sum(row) > 1 + 1e-9:
                raise ScenarioError(
                    "the rates of one depth's candidates are not negative and add up to 1 at "
                    f"most, not {row}"
                )
            row += [0.0] * (self._width - len(row))
            edges.append(np.cumsum(row))
        return edges


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


def ranked_rates(rate: float, width: int) -> list[float]:
    """Rates by rank from that of the best: each further candidate is right as often among the rest.

    An assumption, for where only one rate is known.
    """
    return [rate * (1 - rate) ** rank for rank in range(width)]


def _child_table(paths: Sequence[Path], width: int) -> np.ndarray:
    """``[nodes + 1, width + 1]``: the child of each rank, 0 for none; the last rank is beyond all.

    Node 0 is the root, node ``i`` the ``i``-th path.
    """
    numbers = {tuple(path): number for number, path in enumerate(paths, 1)}
    table = np.zeros((len(paths) + 1, width + 1), np.int64)
    for path, number in numbers.items():
        table[numbers.get(path[:-1], 0), path[-1]] = number
    return table


def best_tree(rates: Sequence[Sequence[float]], nodes: int, depth: int) -> tuple[Path, ...]:
    """The likeliest ``nodes`` nodes of at most ``depth`` levels, likeliest first.

    ``rates`` by depth and rank; the last depth given stands for further ones. A node is reached
    with the product of the rates on its path, so that no parent comes after its child.
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
