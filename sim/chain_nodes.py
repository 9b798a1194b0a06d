"""The cache nodes of a request's content, from the prefix ids of its trace."""

from __future__ import annotations

from sim.errors import ScenarioError
from sim.request_table import PrefixChains


def check_blocks(chains: PrefixChains, block_size: int) -> None:
    """Raise ScenarioError where prefix ids and blocks cannot be lined up."""
    small, large = sorted((chains.block_tokens, block_size))
    if large % small:
        raise ScenarioError(
            f"block_size {block_size} does not divide, nor is divided by, the trace's "
            f"prefix blocks of {chains.block_tokens} tokens; choose one that does"
        )


def chain_nodes(chains: PrefixChains | None, index: int, block_size: int) -> list[tuple[int, int]]:
    """(prefix id, whole blocks it names) of a request: an id of each block, or of several."""
    if chains is None:
        return []
    ids_a_node = max(1, block_size // chains.block_tokens)
    start, stop = int(chains.offsets[index]), int(chains.offsets[index + 1])
    tokens = int(chains.tokens[index])
    node_tokens = max(chains.block_tokens, block_size)
    ids = chains.ids[start + ids_a_node - 1 : stop : ids_a_node].tolist()
    node_blocks = node_tokens // block_size
    nodes = [(node_id, node_blocks) for node_id in ids]
    if nodes:
        last_blocks = (tokens - (len(nodes) - 1) * node_tokens) // block_size
        if last_blocks < node_blocks:
            nodes[-1] = (nodes[-1][0], last_blocks)
            if last_blocks <= 0:
                nodes.pop()
    return nodes
