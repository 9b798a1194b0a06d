"""Block ids of generated prompts: equal ids mean equal content from the start up to there.

A prompt is its shared levels (system prompt, documents) and then tokens of its own; or it continues
an earlier request, whose leading blocks it takes over. New content has new ids, numbered in the
order of the rows, so the first rows' ids do not depend on how many follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sim.arrays import Int64
from sim.errors import ScenarioError
from sim.request_table import PrefixChains
from workloads.chains import chain_offsets
from workloads.generator.shared_prefixes import NONE

_MOST_IDS = 400_000_000
_IDS_PER_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lineage:
    """Origins of the tokens of ``n`` rows."""

    chain_tokens: Int64
    """Tokens ``[n]`` that the chain covers: the prompt, or prompt and output."""
    parent: Int64
    """The earlier row ``[n]`` that each row continues; NONE if it begins with its shared levels."""
    shared_tokens: Int64
    """Leading tokens ``[n]`` in common with the parent."""
    kind: Int64
    """Kind of request ``[n]``; levels of different kinds are different content."""
    level_content: Int64
    """The content ``[n, levels]`` of each level; NONE if there is none."""
    level_tokens: Int64
    """Tokens ``[n, levels]`` of each level in this row."""
    whole_level_tokens: Int64
    """Tokens ``[n, levels]`` that each level has if the prompt is long enough not to cut it
    short."""


def build_chains(lineage: Lineage, block_tokens: int, *, covers_output: bool) -> PrefixChains:
    """Build the chains of all rows. Raises ScenarioError if there would be too many ids."""
    blocks = -(-lineage.chain_tokens // block_tokens)
    offsets = chain_offsets(blocks)
    if offsets[-1] > _MOST_IDS:
        raise ScenarioError(
            f"{int(offsets[-1]):,} prefix blocks of {block_tokens} tokens are too many to keep; "
            "set generator.block_tokens higher (512 is enough for contexts of 100k tokens)"
        )
    shared = _shared_blocks(lineage, block_tokens)
    level_blocks, level_new, level_owner = _levels(lineage, block_tokens)
    level_end = level_blocks.sum(axis=1)
    is_root = lineage.parent == NONE
    # New ids of a row are those of levels that it has first, then those of its own tokens.
    own_start = np.where(is_root, level_end, shared)
    base = chain_offsets(level_new.sum(axis=1) + blocks - own_start)[:-1]
    level_first = base[:, None] + np.cumsum(level_new, axis=1) - level_new
    ids = np.empty(offsets[-1], np.int64)
    start = offsets[:-1].copy()
    for level in range(level_blocks.shape[1]):
        length = level_blocks[:, level]
        _fill(ids, start, length, level_first[level_owner[:, level], level])
        start += length
    _fill(ids, offsets[:-1] + own_start, blocks - own_start, base + level_new.sum(axis=1))
    for rows in _by_depth(lineage.parent):
        _copy(ids, offsets[:-1][lineage.parent[rows]], offsets[:-1][rows], shared[rows])
    return PrefixChains(
        ids=ids,
        offsets=offsets,
        tokens=lineage.chain_tokens,
        block_tokens=block_tokens,
        covers_output=covers_output,
    )


def _shared_blocks(lineage: Lineage, block_tokens: int) -> Int64:
    """Return ``[n]`` leading blocks taken over from the parent; 0 for rows without one."""
    before = np.maximum(lineage.parent, 0)
    # A row that alone continues its parent to the very end fills up the parent's partial block.
    is_whole = lineage.shared_tokens == lineage.chain_tokens[before]
    is_last = np.bincount(before[(lineage.parent != NONE) & is_whole], minlength=len(before)) == 1
    round_up = is_whole & is_last[before]
    blocks = (lineage.shared_tokens + np.where(round_up, block_tokens - 1, 0)) // block_tokens
    return np.where(lineage.parent == NONE, 0, blocks)


def _levels(lineage: Lineage, block_tokens: int) -> tuple[Int64, Int64, Int64]:
    """Return ``[n, levels]`` blocks of each level, how many are new, and the first row with it.

    A block that reaches into the next level belongs to that level, since its content does.
    """
    n, num_levels = lineage.level_content.shape
    blocks, new, owner = (np.zeros((n, num_levels), np.int64) for _ in range(3))
    rows = np.flatnonzero(lineage.parent == NONE)
    path, end = lineage.kind.copy(), np.zeros(n, np.int64)
    for level in range(num_levels):
        # Equal content after an equal path is an equal prefix; its first row gives it its ids.
        content = lineage.level_content[rows, level] - NONE
        key = path[rows] * (int(content.max(initial=0)) + 1) + content
        _, first, node = np.unique(key, return_index=True, return_inverse=True)
        path[rows] = node
        start = end[rows] // block_tokens
        whole = (end[rows] + lineage.whole_level_tokens[rows, level]) // block_tokens - start
        end[rows] += lineage.level_tokens[rows, level]
        blocks[rows, level] = end[rows] // block_tokens - start
        owner[rows, level] = rows[first][node]
        new[rows[first], level] = whole[first]
    return blocks, new, owner


def _by_depth(parent: Int64) -> list[Int64]:
    """Group the rows with a parent by depth, so that each group follows that of its parents."""
    depth = [0] * len(parent)
    rows = np.flatnonzero(parent != NONE)
    for row, before in zip(rows.tolist(), parent[rows].tolist(), strict=True):
        depth[row] = depth[before] + 1
    depths = np.array(depth, np.int64)[rows]
    order = np.argsort(depths, kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(depths))[:-1]) if len(rows) else []


def _fill(ids: Int64, start: Int64, length: Int64, first_id: Int64) -> None:
    """Set ``ids[start:start + length]`` to first_id, first_id + 1, ... for each row."""
    for rows in _chunks(length):
        step = _steps(length[rows])
        ids[step + np.repeat(start[rows], length[rows])] = step + np.repeat(
            first_id[rows], length[rows]
        )


def _copy(ids: Int64, source: Int64, target: Int64, length: Int64) -> None:
    """Set ``ids[target:target + length]`` to ``ids[source:source + length]`` for each row."""
    for rows in _chunks(length):
        step = _steps(length[rows])
        copied = ids[step + np.repeat(source[rows], length[rows])]
        ids[step + np.repeat(target[rows], length[rows])] = copied


def _steps(length: Int64) -> Int64:
    """Return 0, 1, ... length[0] - 1, 0, 1, ... length[1] - 1, ..."""
    ends = np.cumsum(length)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - length, length)


def _chunks(length: Int64) -> list[slice]:
    """Split the rows into slices whose ids fit comfortably into memory."""
    chunk = np.cumsum(length) // _IDS_PER_CHUNK
    bounds = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(length)]
    return [slice(a, b) for a, b in pairwise(bounds)]
