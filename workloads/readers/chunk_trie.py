"""Block ids for prompts that are given as a sequence of chunks of text."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

BLOCK_TOKENS = 16
"""vLLM's default block size; larger blocks would lose parts of shared prefixes."""


class ChunkTrie:
    """Gives prompts prefix-chained block ids, shared only for blocks inside common leading chunks.

    A prompt is a sequence of chunks, each with its length. A block belongs to the chunk that holds
    its last token, and its id is the same for every prompt with the same chunks up to and including
    that one. Prompts share no block of a chunk in which they differ, and no partial block.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, Hashable], tuple[int, int, int]] = {}
        self._num_ids = 0

    def chain(self, chunks: Iterable[tuple[Hashable, int]], limit: int | None = None) -> list[int]:
        """Return the ids of the whole blocks of a prompt, given as (chunk, tokens).

        Only the first ``limit`` tokens count, if it is given.
        """
        node = start = 0
        ids: list[int] = []
        for chunk, tokens in chunks:
            end = start + tokens
            key = (node, (chunk, tokens))
            found = self._children.get(key)
            if found is None:
                num_blocks = end // BLOCK_TOKENS - start // BLOCK_TOKENS
                found = (len(self._children) + 1, self._num_ids, num_blocks)
                self._children[key] = found
                self._num_ids += num_blocks
            node, first_id, num_blocks = found
            ids.extend(range(first_id, first_id + num_blocks))
            start = end
        return ids if limit is None else ids[: limit // BLOCK_TOKENS]


def token_groups(tokens: Sequence[int]) -> Iterator[tuple[Hashable, int]]:
    """Yield token ids as chunks of one block each; a last partial block is left out."""
    whole = len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    for at in range(0, whole, BLOCK_TOKENS):
        yield tuple(tokens[at : at + BLOCK_TOKENS]), BLOCK_TOKENS
